"""The gate of a run, from what the stores hold, and the artifact that closing writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from admitone.core.closure import Blocker, Check, Criterion, Gate, merkle_root
from admitone.core.decisions import REASON_CODES, RULES_VERSION, BlockState, Reason
from admitone.core.errors import AdmitoneError, NotFound, RunIsRed
from admitone.core.identity import identity_of
from admitone.evidence.rows import ARCHIVE, QUARANTINE, RECEIPTS
from admitone.evidence.writer import read_file
from admitone.ledger.books import books
from admitone.ledger.columns import logical_digest
from admitone.ledger.port import Block, Filter, Ledger, LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Transport

ARTIFACT_VERSION = 1


def gate_of(run_id: str, ledger: LedgerReader, transport: Transport, settings: Settings) -> Gate:
    """Check the five criteria of a run."""
    with ledger.snapshot():
        if run_id not in ledger.runs():
            raise NotFound(
                f"There is no run {run_id!r}.", "admitone books shows the runs there are"
            )
        blocks = [block for block in ledger.blocks() if run_id in block.runs]
        identity, admitted_types = _identities(run_id, ledger)
        return Gate(
            run_id,
            (
                identity,
                _contradictions(run_id, ledger),
                _drift(run_id, ledger, settings),
                _evidence(run_id, ledger, settings, blocks),
                _contract(transport, settings, admitted_types),
            ),
        )


def close_run(
    run_id: str, ledger: Ledger, transport: Transport, settings: Settings
) -> dict[str, Any]:
    """Close a green run and return its artifact; refuse a red one with every blocker."""
    seen = ledger.newest_block(run_id)
    gate = gate_of(run_id, ledger, transport, settings)
    if not gate.green:
        raise RunIsRed(
            f"Run {run_id!r} has {len(gate.blockers)} kinds of blockers: "
            + "; ".join(f"{blocker.count} {blocker.what}" for blocker in gate.blockers),
            "resolve each, then close again",
        )
    artifact = _artifact(gate, ledger, settings)
    ledger.close_run(run_id, orjson.dumps(artifact, option=orjson.OPT_SORT_KEYS), seen)
    return artifact


def _identities(run_id: str, ledger: LedgerReader) -> tuple[Check, set[str]]:
    """Recompute the identity of every admission from its fields."""
    wrong = total = 0
    classes: set[str] = set()
    for _, facts, _, bus in ledger.decided(Filter(run_id=run_id)):
        if bus is None:
            continue
        admitted = facts.filter(bus["bus_offset"].is_valid())
        for run, kind, event_id, identity in zip(
            *(admitted[name].to_pylist() for name in ("run", "class", "event_id", "identity")),
            strict=True,
        ):
            if run != run_id:
                continue
            total += 1
            classes.add(kind)
            wrong += identity_of(run, kind, event_id) != identity
    blockers = []
    if wrong:
        blockers.append(
            Blocker(
                "identity",
                wrong,
                "admissions have another identity than their fields give",
                f"admitone decisions --run {run_id} --verdict ADMITTED",
            )
        )
    return Check(Criterion.IDENTITY, f"{total} admissions recomputed", tuple(blockers)), classes


def _contradictions(run_id: str, ledger: LedgerReader) -> Check:
    open_ones = len(ledger.anomalies(run_id))
    blockers = []
    if open_ones:
        blockers.append(
            Blocker(
                "contradiction",
                open_ones,
                "open contradictions",
                f"admitone quarantine list --run {run_id} --reason PAYLOAD_MISMATCH",
            )
        )
    return Check(Criterion.CONTRADICTION, "the ledger's anomalies", tuple(blockers))


def _drift(run_id: str, ledger: LedgerReader, settings: Settings) -> Check:
    """Compare every evidence file with the digest the ledger holds of it."""
    folder = settings.resolve(settings.evidence.path)
    files = ledger.evidence_files(run_id)
    damaged = [
        file.path for file in files if not _intact(folder, file.path, file.kind, file.digest)
    ]
    blockers = [
        Blocker(
            "damaged evidence", 1, f"{path} is missing or was changed", f"admitone close {run_id}"
        )
        for path in damaged
    ]
    return Check(Criterion.DRIFT, f"{len(files)} evidence files read and compared", tuple(blockers))


def _intact(folder: Path, path: str, kind: str, digest: bytes) -> bool:
    try:
        return logical_digest(read_file(folder, path, kind)) == digest
    except (OSError, pa.ArrowException):
        return False


def _evidence(run_id: str, ledger: LedgerReader, settings: Settings, blocks: list[Block]) -> Check:
    blockers = []
    for state, what in (
        (BlockState.IN_FLIGHT, "in flight"),
        (BlockState.AMBIGUOUS, "of unknown fate"),
    ):
        count = sum(block.runs[run_id] for block in blocks if block.state is state)
        if count:
            blockers.append(
                Blocker(str(state).lower(), count, f"deliveries {what}", "admitone status")
            )
    pending = set(ledger.pending_evidence()) & {block.block_id for block in blocks}
    if pending:
        blockers.append(
            Blocker(
                "pending evidence",
                len(pending),
                "blocks whose evidence is not written yet",
                "admitone run boundary --until-idle",
            )
        )
    for reason, count in sorted(_quarantined(run_id, ledger).items()):
        blockers.append(
            Blocker(
                "quarantined",
                count,
                f"quarantined, {reason}",
                f"admitone quarantine list --run {run_id} --reason {reason}",
            )
        )
    if not pending:
        blockers += _missing_rows(run_id, ledger, settings)
    return Check(Criterion.EVIDENCE, "block states, evidence files, quarantine", tuple(blockers))


def _quarantined(run_id: str, ledger: LedgerReader) -> Counter[Reason]:
    found: Counter[Reason] = Counter()
    for _, facts, verdicts, _ in ledger.decided(Filter(run_id=run_id)):
        for run, code in zip(facts["run"].to_pylist(), verdicts["reason"].to_pylist(), strict=True):
            reason = REASON_CODES[code]
            # Deliveries after the closing are refused without disturbing what was closed.
            if run == run_id and reason is not None and reason is not Reason.RUN_CLOSED:
                found[reason] += 1
    return found


def _missing_rows(run_id: str, ledger: LedgerReader, settings: Settings) -> list[Blocker]:
    """Compare how many rows of each kind there are with how many decisions need one."""
    found = Counter[str]()
    for file in ledger.evidence_files(run_id):
        found[file.kind] += file.rows
    return [
        Blocker(
            "missing evidence", count - found[kind], f"decisions without {kind}", "admitone status"
        )
        for run in books(ledger, run_id)["runs"]
        for kind, count in expected_rows(run, settings.evidence.archive).items()
        if count != found[kind]
    ]


def expected_rows(run: dict[str, Any], archive: bool) -> dict[str, int]:
    """Return how many rows of each kind of evidence a run's books call for."""
    expected: dict[str, int] = {
        RECEIPTS: run["admitted"] + run["ambiguous"],
        QUARANTINE: run["quarantined"] + run["ambiguous"],
    }
    return {**expected, ARCHIVE: run["admitted"]} if archive else expected


def _contract(transport: Transport, settings: Settings, admitted_types: set[str]) -> Check:
    blockers = []
    for entry in settings.topics:
        try:
            found = transport.topic(entry.topic)
        except AdmitoneError:
            blockers.append(
                Blocker(
                    "contract", 1, f"topic {entry.topic!r} does not exist", "admitone topics check"
                )
            )
            continue
        if found.partitions != entry.partitions:
            blockers.append(
                Blocker(
                    "contract",
                    1,
                    f"topic {entry.topic!r} has {found.partitions} partitions, not {entry.partitions}",
                    "admitone topics check",
                )
            )
        if entry.required and not admitted_types & set(entry.event_types):
            blockers.append(
                Blocker(
                    "empty family",
                    1,
                    f"family {entry.family!r} has no admissions",
                    "admitone books",
                )
            )
    return Check(Criterion.CONTRACT, f"{len(settings.topics)} topics compared", tuple(blockers))


def _artifact(gate: Gate, ledger: LedgerReader, settings: Settings) -> dict[str, Any]:
    folder = settings.resolve(settings.evidence.path)
    with ledger.snapshot():
        (run,) = books(ledger, gate.run_id)["runs"]
        files = ledger.evidence_files(gate.run_id)
        marks = [
            {
                "producer_id": info.source.producer_id,
                "partition": info.source.partition,
                "topic": info.topic,
                "offset": info.mark.offset,
                "stream_time": info.mark.stream_time,
            }
            for info in ledger.sources()
        ]
    leaves = sorted(
        leaf
        for file in files
        if file.kind == RECEIPTS
        for leaf in receipt_leaves(read_file(folder, file.path, file.kind))
    )
    return {
        "version": ARTIFACT_VERSION,
        "run_id": gate.run_id,
        "books": run,
        "marks": marks,
        "merkle_root": merkle_root(leaves).hex(),
        "evidence": [
            {"path": file.path, "kind": file.kind, "rows": file.rows, "digest": file.digest.hex()}
            for file in files
        ],
        "parameters": {
            "rules": RULES_VERSION,
            "retention_ms": settings.dedup.retention,
            "archive": settings.evidence.archive,
        },
        "gate": gate.document(),
    }


_LEAF_FIELDS = (
    "identity", "payload_hash", "published_hash", "source_producer", "source_partition", "source_offset",
    "bus_partition", "bus_offset", "bus_topic",
)  # fmt: skip


def receipt_leaves(receipts: pa.Table) -> Iterator[bytes]:
    """Yield what each receipt vouches for: which event, which payload, from where to where."""
    for identity, payload, published, *positions, topic in zip(
        *(receipts[name].to_pylist() for name in _LEAF_FIELDS), strict=True
    ):
        numbers = ",".join(map(str, positions))
        yield b"".join(
            (identity, payload, published, numbers.encode(), b",", (topic or "").encode())
        )
