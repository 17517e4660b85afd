"""Does the log hold exactly what the ledger says, and does the evidence? Reads everything, trusts nothing."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from admitone.boundary.publishing import HEADER_NAMES
from admitone.core.replay import StreamMetadata
from admitone.evidence.closure import expected_rows
from admitone.evidence.writer import read_file
from admitone.ledger.books import books
from admitone.ledger.columns import logical_digest
from admitone.ledger.decisions import decisions
from admitone.ledger.port import Filter, LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport

_IDENTITY = HEADER_NAMES.index("identity")


def check_log(ledger: LedgerReader, transport: Transport, settings: Settings) -> list[str]:
    """Compare the admitted topics with the pinned admissions, record by record; return what differs."""
    topics = tuple(entry.topic for entry in settings.topics)
    pinned = {
        (row["bus"]["topic"], row["bus"]["partition"], row["bus"]["offset"]): (
            row["identity"],
            StreamMetadata(**row["source"]),
        )
        for row in decisions(ledger, Filter())
        if row["bus"] is not None
    }
    problems = []
    for name in topics:
        topic = transport.topic(name)
        for partition, end in enumerate(transport.ends(topic)):
            for batch in transport.read(topic, partition, 0, end):
                for offset, key, identity in _rows(batch):
                    found = (identity, StreamMetadata.from_bytes(key))
                    expected = pinned.pop((name, partition, offset), None)
                    if found != expected:
                        problems.append(
                            f"{name}:{partition}:{offset} holds {found}, pinned {expected}"
                        )
    return problems + [f"{place} is pinned but not on the log" for place in pinned]


def _rows(batch: pa.RecordBatch) -> list[tuple[int, bytes, str]]:
    return [
        (offset, key, headers[_IDENTITY]["value"].hex())
        for offset, key, headers in zip(
            *(batch.column(name).to_pylist() for name in ("offset", "key", "headers")), strict=True
        )
    ]


def check_evidence(ledger: LedgerReader, settings: Settings) -> list[str]:
    """Compare the evidence files with the ledger: intact, and a row for every decision that needs one."""
    folder = settings.resolve(settings.evidence.path)
    problems = [f"block {number} has no evidence" for number in ledger.pending_evidence()]
    rows: Counter[tuple[str, str]] = Counter()
    for file in ledger.evidence_files():
        try:
            table = read_file(folder, file.path, file.kind)
        except (OSError, pa.ArrowException) as error:
            problems.append(f"{file.path} cannot be read: {error}")
            continue
        if logical_digest(table) != file.digest:
            problems.append(f"{file.path} holds other rows than were written")
        rows[file.run_id, file.kind] += table.num_rows
    for run in books(ledger)["runs"]:
        expected = expected_rows(run, settings.evidence.archive)
        for kind, count in expected.items():
            found = rows[run["run_id"], kind]
            if found != count:
                problems.append(f"run {run['run_id']} has {found} rows of {kind}, expected {count}")
        if not run["balanced"]:
            problems.append(f"the books of run {run['run_id']} do not balance")
    return problems
