"""Which sources are active, as a function of the blocks that were counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from admitone.analytics.active_sources import NO_BLOCK, first_active, newest_spans, spans_in
from admitone.analytics.store_state import Clock, SourceProgress

IDLE_AFTER = 600_000
SPAN = IDLE_AFTER // 10


class Counted(NamedTuple):
    """A block of a source, and when the ledger claimed it."""

    block: int
    claimed_at: int
    source: int


@st.composite
def histories(draw: st.DrawFn) -> list[Counted]:
    """Return blocks in the order they were claimed; the ledger's clock goes on, jumps and goes back."""
    steps = st.sampled_from([0, 1_000, SPAN, SPAN, 2 * SPAN, 10**9, -1_000, -SPAN, -(10**9)])
    now, found = 0, []
    for block, (step, source) in enumerate(
        draw(st.lists(st.tuples(steps, st.integers(0, 3)), min_size=1, max_size=80)), start=1
    ):
        now += step
        found.append(Counted(block, now, source))
    return found


def idle_in(history: Sequence[Counted]) -> set[int]:
    """Return the sources behind whose last block twelve spans ended: counted one by one, over all there is."""
    last = {counted.source: counted.block for counted in history}
    ends = {counted.claimed_at // SPAN: counted.block for counted in history}
    return {
        source for source, block in last.items() if sum(end > block for end in ends.values()) >= 12
    }


def counted_in(history: Sequence[Counted]) -> dict[int, int]:
    blocks = np.array([counted.block for counted in history], np.int64)
    moments = np.array([counted.claimed_at for counted in history], np.int64)
    return spans_in(moments, blocks, IDLE_AFTER)


@given(histories(), st.randoms(use_true_random=False), st.integers(1, 20))
def test_however_blocks_are_batched_and_ordered_the_same_sources_are_idle(history, chance, size):
    shuffled = list(history)
    chance.shuffle(shuffled)
    spans: dict[int, int] = {}
    for start in range(0, len(shuffled), size):
        found = counted_in(shuffled[start : start + size])
        spans = newest_spans([*spans.items(), *found.items()])
    first = first_active(spans.values())
    last = {counted.source: counted.block for counted in history}

    assert spans == counted_in(history)
    assert {source for source, block in last.items() if block < first} == idle_in(history)


@given(histories(), st.integers(-(10**12), 10**12), st.integers(0, 80))
def test_one_jump_takes_a_tenth_of_the_idle_time_at_most(history, by, at):
    steady = [counted._replace(claimed_at=counted.block * 1_000) for counted in history]
    jumped = [
        counted._replace(claimed_at=counted.claimed_at + (by if counted.block > at else 0))
        for counted in steady
    ]

    assert len(counted_in(jumped)) <= len(counted_in(steady)) + 2
    assert idle_in(jumped) == set()


@pytest.mark.parametrize("begins", [0, SPAN // 2, SPAN - 1])
def test_a_source_is_idle_when_the_idle_time_has_passed_and_not_long_after(begins):
    history = [Counted(1, begins, 0)]
    while first_active(counted_in(history).values()) <= 1:
        history.append(Counted(len(history) + 1, begins + len(history) * SPAN // 10, 1))
    passed = history[-1].claimed_at - begins

    assert IDLE_AFTER < passed <= IDLE_AFTER + 2 * SPAN


@pytest.mark.parametrize("number", [NO_BLOCK, 1])
def test_records_without_a_number_are_judged_by_append_times(number):
    behind = SourceProgress(5, 0, number)
    sources = [behind, SourceProgress(9, IDLE_AFTER + 1, 2)]
    clock = Clock.of(sources, {}, IDLE_AFTER)

    assert clock is not None
    assert clock.frontier == (9 if number == NO_BLOCK else 5)
