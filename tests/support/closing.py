"""Runs that are closed, or about to be, and what is found out about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from admitone.core.decisions import Action, BlockState
from admitone.evidence import open_evidence_writer
from admitone.evidence.audit.artifact import Artifact
from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.audit.verify import Verification, verify_run
from admitone.ledger.model import Block, Outcome, Resolved
from tests.support.ledger_edits import EditedLedger
from tests.support.pipeline import Pipeline, event


def closed_run(home: Path) -> Pipeline:
    """Return a closed run with every kind of evidence, and deliveries that came after the closing."""
    pipeline = Pipeline(
        home,
        transport={"raw_partitions": 1},
        pipeline={"quarantine_limit": 1.0, "max_block": 7, "run_id": "r"},
    )
    conclude = pipeline.ledger.conclude

    def unknown_instead(block: Block, epoch: int, outcome: Outcome, *_: object) -> None:
        conclude(block, epoch, Outcome(BlockState.AMBIGUOUS, None, None, outcome.decided_at))

    pipeline.ingest(event("u1"), event("u2"), event("u1"))
    pipeline.ledger.conclude = unknown_instead  # type: ignore[method-assign]
    pipeline.run()
    pipeline.ledger.conclude = conclude  # type: ignore[method-assign]
    for block in pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS]):
        epoch = pipeline.ledger.take_epoch(block.source, None)
        found = Resolved(BlockState.SETTLED, Action.FOUND, np.array([0, 1]), 77, 99, "ann", "seen")
        pipeline.ledger.resolve(block, epoch, found)
    lines = [event(f"e{number}", {"loadTimeMs": number}) for number in range(9)]
    pipeline.ingest(*lines, lines[0], event("e1", {"pageId": "x"}), b"no json", b'{"a": 1}')
    pipeline.run()
    chosen: dict[tuple[int, Action], list[int]] = defaultdict(list)
    for row in pipeline.decisions(verdict="QUARANTINED"):
        number, ordinal = map(int, row["id"].split("-"))
        contradicts = row["reason"] == "PAYLOAD_MISMATCH"
        chosen[number, Action.KEPT_FIRST if contradicts else Action.DISCARDED].append(ordinal)
    for (number, action), ordinals in chosen.items():
        pipeline.ledger.dispose(number, ordinals, action, 120, "bob", "looked at it")
    open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(130)
    close_green("r", *stores_of(pipeline))
    pipeline.ingest(event("late"), b"late and malformed")
    pipeline.run()
    return pipeline


def close_green(
    run_id: str, *stores: Any, waived: Collection[str] = (), author: str = "ann"
) -> Artifact:
    """Close a run that must be green; return its artifact."""
    closing = close_run(run_id, *stores, waived=waived, author=author)
    assert closing.artifact is not None, closing.gate.blockers
    return closing.artifact


def stores_of(pipeline: Pipeline) -> Any:
    return pipeline.ledger, pipeline.transport, pipeline.settings


def verified(pipeline: Pipeline) -> Verification:
    return verify_run("r", *stores_of(pipeline))


def differences(found: Verification) -> list[str]:
    return [difference for each in found.comparisons for difference in each.differences]


def open_run(home: Path, **pipeline: Any) -> Pipeline:
    made = Pipeline(home, transport={"raw_partitions": 1}, pipeline={"run_id": "r", **pipeline})
    made.ingest(event("e1"), event("e2"))
    made.run()
    return made


def blockers(pipeline: Pipeline) -> dict[str, list[tuple[str, int]]]:
    return {
        str(check.criterion).split()[0]: [(b.kind, b.count) for b in check.blockers]
        for check in gate_of("r", *stores_of(pipeline)).checks
        if check.blockers
    }


def sql(pipeline: Pipeline, *statements: str) -> None:
    """Change a ledger behind its back; no trigger is left to refuse it."""
    ledger = EditedLedger(str(pipeline.settings.home / "data/ledger.db"))
    for statement in statements:
        ledger.db.execute(statement)
    ledger.close()
