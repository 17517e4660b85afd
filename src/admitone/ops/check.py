"""Does the log hold exactly what the ledger says, and does the evidence? Reads everything, trusts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from admitone.core.metadata import positions_of
from admitone.core.replay import StreamMetadata
from admitone.evidence.audit import RunAudit, audit_run
from admitone.evidence.audit_log import IDENTITY_HEADER, ORIGIN_HEADER
from admitone.ledger.books import books
from admitone.ledger.decisions import decisions
from admitone.ledger.model import Filter
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport


class _Record(NamedTuple):
    """A record of an admitted topic: where it is, and what it says it is."""

    offset: int
    identity: str | None
    positions: tuple[StreamMetadata | None, StreamMetadata | None]
    """What the record itself says, and the origin of a late publish."""


def check_log(ledger: LedgerReader, transport: Transport, settings: Settings) -> list[str]:
    """Compare the admitted topics with the pinned admissions, record by record; return what differs."""
    topics = [*(entry.topic for entry in settings.topics), settings.dedup.destination]
    pinned = {
        (row["bus"]["topic"], row["bus"]["partition"], row["bus"]["offset"]): (
            row["identity"],
            StreamMetadata(**row["source"]),
        )
        for row in decisions(ledger, Filter())
        if row["bus"] is not None
    }
    problems = []
    for name, state in transport.describe(topics).items():
        topic = state.topic
        for partition, end in enumerate(transport.ends(topic)):
            for batch in transport.read(topic, partition, 0, end):
                for found in _records(batch):
                    identity, position = pinned.pop((name, partition, found.offset), (None, None))
                    if found.identity != identity or position not in found.positions:
                        problems.append(
                            f"{name}:{partition}:{found.offset} holds {found.identity} from"
                            f" {found.positions}, pinned {identity} from {position}"
                        )
    return problems + [f"{place} is pinned but not on the log" for place in pinned]


def _records(batch: pa.RecordBatch) -> Iterator[_Record]:
    positions = positions_of(batch.column("key"), batch.column("headers"))
    for offset, position, headers in zip(
        batch.column("offset").to_pylist(),
        positions.to_pylist(),
        batch.column("headers").to_pylist(),
        strict=True,
    ):
        named = {header["key"]: header["value"] for header in headers}
        identity = named.get(IDENTITY_HEADER)
        yield _Record(
            offset,
            None if identity is None else identity.hex(),
            (
                StreamMetadata.from_bytes(position),
                StreamMetadata.from_bytes(named.get(ORIGIN_HEADER)),
            ),
        )


def check_evidence(ledger: LedgerReader, settings: Settings) -> list[str]:
    """Compare the evidence with the ledger: intact, and a row for every decision that needs one."""
    problems = [f"block {number} has no evidence" for number in ledger.pending_evidence()]
    problems += [f"resolution {number} has no evidence" for number in ledger.pending_resolutions()]
    for run in ledger.runs():
        problems += _problems(audit_run(run, ledger, None, settings))
    return problems + [
        f"the books of run {run['run_id']} do not balance"
        for run in books(ledger)["runs"]
        if not run["balanced"]
    ]


def _problems(audit: RunAudit) -> Iterator[str]:
    run, found, files = audit.scope.run_id, audit.decisions, audit.files
    for damage in (*files.damaged, *files.strange):
        yield f"{damage.file.path} {damage.what}"
    for kind, (missing, repeated) in audit.miscounted.items():
        yield f"run {run} lacks {missing} rows of {kind} and has {repeated} more than once"
    for count, what in (
        (files.drifted, "archived envelopes are not what the ledger says"),
        (found.wrong_identities, "admissions have another identity than their fields give"),
        (found.misjudged, "duplicates or contradictions do not fit their first admission"),
        (found.unexplained, "replays are borne out by nothing before them"),
        (found.unplaced, "admissions have no place on the log"),
        (len(found.altered), "blocks are not as they were decided"),
        (len(audit.foreign), "files in its folder are no evidence"),
    ):
        if count:
            yield f"run {run}: {count} {what}"
