"""The marks by which a ledger finds replays: compared, moved with the block, never back; on each store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from admitone.core.decisions import BlockState, Reason, Verdict
from admitone.core.errors import MarkMoved
from admitone.core.replay_filter import Reached, Upstream
from admitone.core.wire import encode
from admitone.ledger.books import books
from admitone.ledger.columns import UPSTREAM_TYPE
from admitone.ledger.model import (
    Blocked,
    Claim,
    Claimed,
    Destination,
    Source,
)
from admitone.ledger.port import Ledger
from admitone.ledger.upstream_marks import marks_of
from tests.support.closures import closure
from tests.support.ledgers import (
    AGAIN,
    NEW,
    ONE,
    RETENTION,
    TWO,
    OpenLedger,
    facts,
    granted,
    settle,
    verdicts,
)

REPLAYED = (Verdict.REPLAYED, None)


def delivered(*offsets: int, start: int = 0, producer: int = 7, replayed: int = 0) -> pa.Table:
    """Return the facts of deliveries with these upstream offsets; the last ones are replays."""
    table = facts(*((f"e{producer}-{offset}", "x") for offset in offsets), start=start)
    undecoded = np.arange(len(offsets)) >= len(offsets) - replayed
    for name in ("identity", "payload_hash", "event_id", "event_time", "route", "partition"):
        column = table[name].combine_chunks()
        kept = pa.array(
            [
                None if gone else value
                for gone, value in zip(undecoded, column.to_pylist(), strict=True)
            ],
            column.type,
        )
        table = table.set_column(table.column_names.index(name), name, kept)
    keys = encode(producer, 3, np.array(offsets, np.int64)).cast(UPSTREAM_TYPE)
    return table.set_column(table.column_names.index("upstream"), "upstream", keys)


def claim(
    ledger: Ledger, epoch: int, table: pa.Table, source: Source = ONE, **changes: Any
) -> Claimed | Blocked:
    asked = Claim(
        source=source,
        epoch=epoch,
        after=ledger.mark(source),
        facts=table,
        journal=b"journal",
        destinations=(Destination("t", "t-1", "folder", (0,)),),
        retention_ms=RETENTION,
        rules=1,
        upstream=seen(ledger, source),
    )
    return ledger.claim(replace(asked, **changes))


def seen(ledger: Ledger, source: Source = ONE) -> dict[Upstream, Reached]:
    return marks_of(ledger.upstreams(source))


@pytest.mark.parametrize("state", [BlockState.SETTLED, BlockState.AMBIGUOUS])
def test_marks_and_counters_move_when_a_block_is_decided(ledger: Ledger, state: BlockState) -> None:
    epoch = ledger.take_epoch(ONE, None)
    block = granted(claim(ledger, epoch, delivered(4, 5, 9, 5, 6, replayed=2)))
    assert verdicts(block) == [NEW, NEW, NEW, REPLAYED, REPLAYED]
    assert seen(ledger) == {}
    settle(ledger, epoch, block, state)

    (found,) = ledger.upstreams()
    assert (found.source, found.upstream, found.reached) == (ONE, (7, 3), Reached(9, 6))
    assert (found.replayed, found.order_violations) == (2, 1)
    assert ledger.upstreams(TWO) == []


def test_marks_are_not_moved_by_a_block_that_is_given_back(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, epoch, delivered(1, 2))), BlockState.ABORTED)

    assert ledger.upstreams() == []


def test_a_claim_judged_by_other_marks_is_refused_and_leaves_nothing(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    before = seen(ledger)
    settle(ledger, epoch, granted(claim(ledger, epoch, delivered(1, 2))))
    with pytest.raises(MarkMoved, match="expected to have seen"):
        claim(ledger, epoch, delivered(3, 4, start=2), upstream=before)

    assert len(ledger.blocks()) == 1
    assert verdicts(granted(claim(ledger, epoch, delivered(3, 4, start=2)))) == [NEW, NEW]


def test_marks_are_a_sources_own_and_counters_add_up(ledger: Ledger) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    settle(ledger, one, granted(claim(ledger, one, delivered(1, 2, 3))))
    settle(ledger, one, granted(claim(ledger, one, delivered(2, 3, start=3, replayed=2))))
    settle(ledger, one, granted(claim(ledger, one, delivered(3, start=5, replayed=1))))
    settle(ledger, two, granted(claim(ledger, two, delivered(0, producer=-8), TWO)))

    assert seen(ledger) == {(7, 3): Reached(3, 3)}
    assert seen(ledger, TWO) == {(-8, 3): Reached(0, 0)}
    found = ledger.upstreams(ONE)[0]
    assert (found.replayed, found.order_violations) == (3, 2)
    (run,) = books(ledger)["runs"]
    assert (run["replayed"], run["order_violations"], run["balanced"]) == (3, 2, True)
    assert [entry["order_violations"] for entry in run["partitions"]] == [2, 0]


def test_a_block_that_is_cut_moves_the_marks_as_far_as_its_own_deliveries(ledger: Ledger) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    holding = granted(claim(ledger, two, delivered(8), TWO))
    whole = delivered(6, 7, 8, 9)
    blocked = claim(ledger, one, whole)
    assert blocked == Blocked(2, holding.block.block_id)
    settle(ledger, one, granted(claim(ledger, one, whole.slice(0, 2))))
    assert seen(ledger) == {(7, 3): Reached(7, 7)}
    settle(ledger, two, holding)
    rest = granted(claim(ledger, one, whole.slice(2)))
    settle(ledger, one, rest)

    assert verdicts(rest) == [AGAIN, NEW]
    assert seen(ledger) == {(7, 3): Reached(9, 9)}


def test_a_replay_stays_a_replay_in_a_closed_run(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, epoch, delivered(1, 2))))
    ledger.close_run(closure("r", b"artifact"), ledger.newest_block("r"))
    late = granted(claim(ledger, epoch, delivered(3, 2, start=2, replayed=1)))

    assert verdicts(late) == [(Verdict.QUARANTINED, Reason.RUN_CLOSED), REPLAYED]


def test_marks_survive_and_nobody_can_move_them_back(
    ledger: Ledger, open_ledger: OpenLedger
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, epoch, delivered(5))))
    again = open_ledger()
    assert seen(again) == {(7, 3): Reached(5, 5)}
    with pytest.raises(Exception, match="cannot go back"):
        _execute(again, "UPDATE upstream SET highest = 4")

    assert seen(ledger) == {(7, 3): Reached(5, 5)}


def _execute(ledger: Any, statement: str) -> None:
    ledger._store.run(lambda rows: rows.change(statement))
