"""The window of deduplication in every ledger: exact to the millisecond, forgotten in whole segments."""

from __future__ import annotations

import numpy as np
import pytest

from admitone.core.decisions import Action, BlockState, Reason, Verdict
from admitone.core.errors import MarkMoved
from admitone.core.identity import identity_of
from admitone.ledger.model import Blocked, Outcome, Resolved, Source
from admitone.ledger.port import Ledger
from tests.support.ledgers import (
    AGAIN,
    CONTRADICTION,
    DAY,
    NEW,
    NOW,
    ONE,
    RETENTION,
    TWO,
    claim,
    facts,
    granted,
    held,
    settle,
    verdicts,
)

UNRESOLVED = {
    BlockState.AMBIGUOUS: (Verdict.AMBIGUOUS, Reason.PUBLISH_UNKNOWN),
    BlockState.RETRACTED: (Verdict.QUARANTINED, Reason.IDENTITY_RETRACTED),
}


@pytest.mark.parametrize(
    ("age", "seen"), [(RETENTION - 1, True), (RETENTION, False), (RETENTION + 1, False)]
)
def test_the_window_ends_to_the_millisecond(ledger: Ledger, age: int, seen: bool) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    later = granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW + age), start=1)))

    assert verdicts(later) == [AGAIN if seen else NEW]


def test_an_identity_that_expires_within_a_block_ends_it_there(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    block = facts(("a", "x", NOW), ("b", "x", NOW + RETENTION), ("a", "x", NOW + RETENTION))

    assert claim(ledger, ONE, epoch, block) == Blocked(2, None)


def test_a_key_is_found_across_segments_in_both_directions(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    far = NOW + 60 * DAY
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("b", "x", far), start=1))))
    again = facts(("a", "x", far), ("b", "x", NOW), ("a", "y", NOW), start=2, stream_time=far)

    assert verdicts(granted(claim(ledger, ONE, epoch, again))) == [AGAIN, AGAIN, CONTRADICTION]


def test_segments_expire_whole_and_only_when_no_source_needs_them(ledger: Ledger) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("a", "x", NOW)))))
    settle(ledger, two, granted(claim(ledger, TWO, two, facts(("s", "x", NOW)))))
    future = NOW + 200 * DAY
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("b", "x", future), start=1))))

    assert ledger.expire_segments(RETENTION) == []
    settle(ledger, two, granted(claim(ledger, TWO, two, facts(("t", "x", future), start=1))))
    assert len(ledger.expire_segments(RETENTION)) == 1
    assert held(ledger, identity_of("r", "c", "a")) == []
    assert len(held(ledger, identity_of("r", "c", "b"))) == 1


def test_what_was_forgotten_is_too_old_for_a_source_that_has_read_nothing(ledger: Ledger) -> None:
    one = ledger.take_epoch(ONE, None)
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("a", "x", NOW)))))
    settle(
        ledger, one, granted(claim(ledger, ONE, one, facts(("b", "x", NOW + 200 * DAY), start=1)))
    )
    assert ledger.mark(TWO).forgotten_before is None
    before = ledger.mark(TWO)
    assert len(ledger.expire_segments(RETENTION)) == 1

    forgotten = ledger.mark(TWO).forgotten_before
    assert forgotten is not None
    assert NOW < forgotten <= NOW + 200 * DAY
    with pytest.raises(MarkMoved):
        claim(ledger, TWO, ledger.take_epoch(TWO, None), facts(("a", "x", NOW)), after=before)


def test_the_longest_retention_ever_used_decides_what_is_forgotten(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    later = NOW + 60 * DAY
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("b", "x", later), start=1))))

    assert ledger.expire_segments(2 * DAY) == []
    assert verdicts(granted(claim(ledger, ONE, epoch, facts(("a", "x", later), start=2)))) == [
        AGAIN
    ]


def test_an_unresolved_identity_outlives_its_segment(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    first = granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW))))
    settle(ledger, epoch, first, BlockState.AMBIGUOUS)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("n", "x", NOW), start=1))))
    moment = NOW
    for number, state in enumerate((BlockState.AMBIGUOUS, BlockState.RETRACTED), 2):
        if state is BlockState.RETRACTED:
            gone = Resolved(state, Action.RETRACTED, None, None, NOW, "me", "lost")
            ledger.resolve(first.block, epoch, gone)
        moment += 300 * DAY
        later = facts((f"b{number}", "x", moment), start=2 * number)
        settle(ledger, epoch, granted(claim(ledger, ONE, epoch, later)))

        assert len(ledger.expire_segments(RETENTION)) == 1
        assert held(ledger, identity_of("r", "c", "n")) == []
        assert held(ledger, identity_of("r", "c", "a")) == [(first.block.block_id, 0)]
        again = granted(claim(ledger, ONE, epoch, facts(("a", "x", moment), start=2 * number + 1)))
        settle(ledger, epoch, again)
        assert verdicts(again) == [UNRESOLVED[state]]


@pytest.mark.parametrize("days", [1, 25, 50, 200, 400])
def test_a_changed_retention_finds_what_was_kept_under_the_old_one(
    ledger: Ledger, days: int
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))))
    for step in range(1, 4):
        moment = NOW + step * DAY // 4
        found = claim(
            ledger, ONE, epoch, facts(("a", "x", moment), (f"n{step}", "x", moment), start=2 * step - 1),
            retention=days * DAY,
        )  # fmt: skip
        settle(ledger, epoch, granted(found))
        assert verdicts(granted(found)) == [AGAIN, NEW]


def test_each_store_has_segments_and_a_memory_of_its_own(ledger: Ledger) -> None:
    apart = Source(7, 0)
    ledger.register_source(apart, "dedup", "raw", "topic-1", store="dedup-other")
    one, other = ledger.take_epoch(ONE, None), ledger.take_epoch(apart, None)
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("a", "x", NOW)))))
    mine = granted(claim(ledger, apart, other, facts(("a", "x", NOW))))
    settle(ledger, other, mine)
    later = facts(("b", "x", NOW + 200 * DAY), start=1)
    settle(ledger, other, granted(claim(ledger, apart, other, later)))

    assert verdicts(mine) == [NEW]
    assert ledger.expire_segments(RETENTION) == []
    names = ledger.expire_segments(RETENTION, store="dedup-other")
    assert [name.rpartition(".")[0] for name in names] == ["dedup-other"]
    assert ledger.mark(ONE).forgotten_before is None
    assert ledger.mark(apart).forgotten_before is not None
    assert len(held(ledger, identity_of("r", "c", "a"))) == 1
    assert held(ledger, identity_of("r", "c", "a"), "dedup-other") == []


@pytest.mark.parametrize("how", ["aborted", "refused", "settled"])
def test_a_key_taken_over_and_given_back_is_its_first_holders_again(
    ledger: Ledger, how: str
) -> None:
    """For a source that is ahead a key may have expired that is live for the one that brought it."""
    ahead, behind = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    start = NOW // (RETENTION // 2) * (RETENTION // 2)
    far, old = start + 49 * DAY, start - 52 * DAY
    settle(ledger, ahead, granted(claim(ledger, ONE, ahead, facts(("b", "x", far)))))
    first = granted(claim(ledger, TWO, behind, facts(("a", "x", old))))
    settle(ledger, behind, first)
    taken = granted(claim(ledger, ONE, ahead, facts(("a", "x", far), start=1)))
    assert verdicts(taken) == [NEW]
    if how == "aborted":
        settle(ledger, ahead, taken, BlockState.ABORTED)
    elif how == "refused":
        block = ledger.refuse(taken.block, ahead, [0])
        ledger.conclude(
            block, ahead, Outcome(BlockState.SETTLED, np.array([], np.int64), NOW, NOW, (0,))
        )
    else:
        settle(ledger, ahead, taken)

    again = granted(claim(ledger, TWO, behind, facts(("a", "x", old), start=1)))
    assert verdicts(again) == [AGAIN]
    holder = (taken if how == "settled" else first).block.block_id
    assert again.verdicts["first_block"].to_pylist() == [holder]
