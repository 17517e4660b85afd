"""Every writing call of the ledger, with what must hold before it and after it, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from admitone.core.decisions import Action, BlockState
from admitone.core.identity import identity_of
from admitone.ledger.model import (
    Claimed,
    Destination,
    EvidenceFile,
    Resolved,
    Source,
)
from admitone.ledger.port import Ledger
from tests.support.closures import closure
from tests.support.ledgers import DAY, NOW, ONE, RETENTION, TWO, claim, facts, granted, held, settle

Act = Callable[[Ledger], Any]
Check = Callable[[Ledger, Any], None]
FILE = EvidenceFile("r/receipts-1.parquet", "receipts", "r", 1, b"d" * 32, b"c" * 32)
PLACE = Destination("t", "t-1", "folder", (0,))


@dataclass(frozen=True)
class Operation:
    """A call; `prepare` leaves the ledger where it can be made and returns the call and its check."""

    name: str
    prepare: Callable[[Ledger], tuple[Act, Check]]
    commits: int = 1


def ready(ledger: Ledger) -> Ledger:
    """Register the two sources."""
    for source in (ONE, TWO):
        ledger.register_source(source, "pipeline", "raw", "topic-1")
    ledger.take_generation("pipeline")
    return ledger


def _registering(ledger: Ledger) -> tuple[Act, Check]:
    def check(after: Ledger, _: None) -> None:
        assert [info.topic for info in after.sources()].count("other") == 1

    return lambda chosen: chosen.register_source(Source(5, 0), "pipeline", "other", "o-1"), check


def _taking_a_generation(ledger: Ledger) -> tuple[Act, Check]:
    before = ledger.take_generation("pipeline")

    def check(after: Ledger, generation: int) -> None:
        assert generation == before + 1
        assert after.take_epoch(ONE, generation) == 1

    return lambda chosen: chosen.take_generation("pipeline"), check


def _taking_an_epoch(ledger: Ledger) -> tuple[Act, Check]:
    before = ledger.take_epoch(ONE, None)

    def check(after: Ledger, epoch: int) -> None:
        assert epoch == before + 1
        after.check_epoch(ONE, epoch)

    return lambda chosen: chosen.take_epoch(ONE, None), check


def _claimed(ledger: Ledger, *events: tuple[str, str]) -> tuple[int, Claimed]:
    epoch = ledger.take_epoch(ONE, None)
    return epoch, granted(claim(ledger, ONE, epoch, facts(*(events or (("a", "x"),)))))


def _claiming(ledger: Ledger) -> tuple[Act, Check]:
    epoch = ledger.take_epoch(ONE, None)

    def check(after: Ledger, found: Claimed) -> None:
        (block,) = after.blocks()
        assert block == found.block
        assert held(after, identity_of("r", "c", "a")) == [(block.block_id, 0)]
        assert after.journal(block.block_id) == b"journal"

    # The first claim opens a segment before it is made, in a transaction of its own.
    return lambda chosen: claim(chosen, ONE, epoch, facts(("a", "x"), ("b", "x"))), check


def _concluding(state: BlockState) -> Callable[[Ledger], tuple[Act, Check]]:
    def prepare(ledger: Ledger) -> tuple[Act, Check]:
        epoch, claimed = _claimed(ledger)

        def check(after: Ledger, _: None) -> None:
            assert [block.state for block in after.blocks()] == [state]
            assert after.mark(ONE).offset == (-1 if state is BlockState.ABORTED else 0)

        return lambda chosen: settle(chosen, epoch, claimed, state), check

    return prepare


def _refusing(ledger: Ledger) -> tuple[Act, Check]:
    epoch, claimed = _claimed(ledger)

    def check(after: Ledger, block: Any) -> None:
        assert after.blocks() == [block]
        assert block.refused == (0,)

    return lambda chosen: chosen.refuse(claimed.block, epoch, [0]), check


def _ambiguous(ledger: Ledger) -> tuple[int, Claimed]:
    epoch, claimed = _claimed(ledger)
    settle(ledger, epoch, claimed, BlockState.AMBIGUOUS)
    return epoch, claimed


def _planning(ledger: Ledger) -> tuple[Act, Check]:
    epoch, claimed = _ambiguous(ledger)

    def check(after: Ledger, plan: Any) -> None:
        assert after.late(claimed.block.block_id) == plan
        assert (plan.first, plan.records) == (0, 1)

    return lambda chosen: chosen.plan_late(claimed.block, epoch, 99, [PLACE]), check


def _resolving(ledger: Ledger) -> tuple[Act, Check]:
    epoch, claimed = _ambiguous(ledger)
    found = Resolved(
        BlockState.SETTLED, Action.FOUND, np.array([7]), NOW, NOW + 1, "somebody", "looked"
    )

    def check(after: Ledger, _: None) -> None:
        assert [block.state for block in after.blocks()] == [BlockState.SETTLED]
        assert len(after.resolutions()) == 1

    return lambda chosen: chosen.resolve(claimed.block, epoch, found), check


def _disposing(ledger: Ledger) -> tuple[Act, Check]:
    epoch, claimed = _claimed(ledger, ("a", "x"), ("a", "y"))
    settle(ledger, epoch, claimed)
    block_id = claimed.block.block_id

    def check(after: Ledger, done: int) -> None:
        assert done == 1
        assert len(after.resolutions([block_id])) == 1
        assert after.anomalies() == []

    return (
        lambda chosen: chosen.dispose(block_id, [1], Action.DISCARDED, NOW, "somebody", "wrong"),
        check,
    )


def _counting(ledger: Ledger) -> tuple[Act, Check]:
    def check(after: Ledger, _: None) -> None:
        assert {info.source: info.re_read for info in after.sources()}[ONE] == 3

    return lambda chosen: chosen.count_re_reads(ONE, 3), check


def _reading(ledger: Ledger) -> tuple[Act, Check]:
    def check(after: Ledger, _: None) -> None:
        assert {info.source: info.read_to for info in after.sources()}[ONE] == 7

    return lambda chosen: chosen.read_up_to({ONE: 7}), check


def _settled(ledger: Ledger) -> int:
    epoch, claimed = _claimed(ledger)
    settle(ledger, epoch, claimed)
    return claimed.block.block_id


def _recording(ledger: Ledger) -> tuple[Act, Check]:
    block_id = _settled(ledger)

    def check(after: Ledger, said: bool) -> None:
        assert said
        assert after.evidence_files() == [FILE]
        assert after.evidence_of(FILE.path) == ([block_id], [])
        assert after.pending_evidence() == []

    return lambda chosen: chosen.record_evidence([block_id], [FILE], NOW), check


def _replacing(ledger: Ledger) -> tuple[Act, Check]:
    ledger.record_evidence([_settled(ledger)], [FILE], NOW)
    again = EvidenceFile(*(FILE.path, FILE.kind, FILE.run_id, FILE.rows, FILE.digest, b"e" * 32))

    def check(after: Ledger, _: None) -> None:
        assert after.evidence_files() == [again]

    return lambda chosen: chosen.replace_evidence(again), check


def _expiring_segments(ledger: Ledger) -> tuple[Act, Check]:
    epoch, claimed = _claimed(ledger)
    settle(ledger, epoch, claimed)
    later = facts(("b", "x", NOW + 200 * DAY), start=1)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, later)))

    def check(after: Ledger, names: list[str]) -> None:
        assert len(names) == 1
        assert held(after, identity_of("r", "c", "a")) == []
        assert after.mark(ONE).forgotten_before is not None

    return lambda chosen: chosen.expire_segments(RETENTION), check


def _expiring_the_journal(ledger: Ledger) -> tuple[Act, Check]:
    block_id = _settled(ledger)
    ledger.record_evidence([block_id], [FILE], NOW)

    def check(after: Ledger, dropped: int) -> None:
        assert dropped == 1
        assert after.journal(block_id) is None

    return lambda chosen: chosen.expire_journal(NOW + 1), check


def _closing(ledger: Ledger) -> tuple[Act, Check]:
    newest = _settled(ledger)

    def check(after: Ledger, _: None) -> None:
        assert after.runs() == {"r": "CLOSED"}
        assert after.closure("r") == b"artifact"

    return lambda chosen: chosen.close_run(closure("r", b"artifact"), newest), check


OPERATIONS = (
    Operation("register_source", _registering),
    Operation("take_generation", _taking_a_generation),
    Operation("take_epoch", _taking_an_epoch),
    Operation("claim", _claiming, commits=2),
    Operation("settle", _concluding(BlockState.SETTLED)),
    Operation("abort", _concluding(BlockState.ABORTED)),
    Operation("give_up", _concluding(BlockState.AMBIGUOUS)),
    Operation("refuse", _refusing),
    Operation("plan_late", _planning),
    Operation("resolve", _resolving),
    Operation("dispose", _disposing),
    Operation("count_re_reads", _counting),
    Operation("read_up_to", _reading),
    Operation("record_evidence", _recording),
    Operation("replace_evidence", _replacing),
    Operation("expire_segments", _expiring_segments, commits=2),
    Operation("expire_journal", _expiring_the_journal),
    Operation("close_run", _closing),
)
