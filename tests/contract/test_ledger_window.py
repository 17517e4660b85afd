"""The window of deduplication in every ledger: exact to the millisecond, forgotten in whole segments."""

from __future__ import annotations

import pytest

from admitone.core.decisions import BlockState, Reason, Verdict
from admitone.core.errors import MarkMoved
from admitone.core.identity import identity_of
from admitone.ledger.port import (
    Blocked,
    Ledger,
)
from tests.ledgers import (
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
    settle,
    verdicts,
)


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
    assert ledger.find(identity_of("r", "c", "a")) == []
    assert len(ledger.find(identity_of("r", "c", "b"))) == 1


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


def test_an_unresolved_identity_is_never_forgotten(ledger: Ledger) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(
        ledger,
        epoch,
        granted(claim(ledger, ONE, epoch, facts(("a", "x", NOW)))),
        BlockState.AMBIGUOUS,
    )
    later = NOW + 300 * DAY
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("b", "x", later), start=1))))

    assert ledger.expire_segments(RETENTION) == []
    follower = granted(claim(ledger, ONE, epoch, facts(("a", "x", later), start=2)))
    assert verdicts(follower) == [(Verdict.AMBIGUOUS, Reason.PUBLISH_UNKNOWN)]


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
