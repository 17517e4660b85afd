"""Windows and the clocks of brokers and of the ledger's database: an active source holds windows open."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from admitone.core.windows import parse_window, window_of
from tests.support.counted import sketch_in
from tests.support.machines import DATABASE, HOUR, IDLE_AFTER, MINUTE, Machines, page_view

BEHIND = 30 * MINUTE
FAST, SLOW = 0, 1


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path, sources=2)


def work(machines: Machines, minutes: int, *sources: int, behind: int = BEHIND) -> None:
    """Let sources deliver an event each minute; the slow one's happened a while ago."""
    for _ in range(minutes):
        machines.pass_time(MINUTE)
        for source in sources:
            at = machines.now - behind * source
            machines.deliver(source, page_view(f"{source}-{machines.now}", at))
        machines.decide()
    machines.count()


def held_open(machines: Machines, behind: int = BEHIND) -> bool:
    """Tell whether no window is complete that the slow source is still inside."""
    inside = window_of("minute", machines.now - behind)
    return not any(
        machines.store.state().is_complete(window)
        for window in machines.store.windows()
        if window.end_ms > inside.start_ms
    )


def assert_the_same_when_counted_again(machines: Machines) -> None:
    before = machines.store.state().clock
    windows = machines.store.windows()
    complete = [machines.store.state().is_complete(window) for window in windows]
    for kind, lost in product(("log", "archive"), (False, True)):
        done = machines.count_again(kind, lost=lost)
        assert (done.switched, done.was_empty, done.comparison.told) == (True, lost, [])
        assert machines.store.state().clock == before
        assert machines.store.windows() == windows
        assert [machines.store.state().is_complete(window) for window in windows] == complete


def test_brokers_whose_clocks_differ_make_no_active_partition_idle(machines: Machines) -> None:
    machines.jump(f"broker {SLOW}", -HOUR)
    work(machines, 5, FAST, SLOW)

    assert held_open(machines)
    total = sketch_in(machines.store, parse_window("global"), "url")
    assert total is not None
    assert (total.total, total.late) == (10, 0)
    assert_the_same_when_counted_again(machines)


@pytest.mark.parametrize("machine", [f"broker {FAST}", DATABASE])
@pytest.mark.parametrize("by", [HOUR, 24 * HOUR, -HOUR])
def test_a_clock_that_jumps_completes_no_window_early(
    machines: Machines, machine: str, by: int
) -> None:
    work(machines, 3, FAST, SLOW)
    machines.jump(machine, by)
    work(machines, 3, FAST)

    assert held_open(machines)
    work(machines, 3, FAST, SLOW)
    assert held_open(machines)
    assert_the_same_when_counted_again(machines)


def test_after_a_clock_that_was_ahead_is_set_back_who_works_is_active_and_who_is_silent_is_not(
    machines: Machines,
) -> None:
    work(machines, 3, FAST, SLOW)
    machines.jump(DATABASE, HOUR)
    work(machines, 15, FAST)
    assert not held_open(machines)

    machines.jump(DATABASE, -HOUR)
    work(machines, 2, FAST, SLOW)
    assert held_open(machines)
    assert_the_same_when_counted_again(machines)

    work(machines, 14, FAST)
    assert not held_open(machines)


def test_a_partition_that_is_silent_while_others_work_is_idle_after_a_while(
    machines: Machines,
) -> None:
    work(machines, 3, FAST, SLOW)
    silent = machines.now - BEHIND
    work(machines, IDLE_AFTER // MINUTE, FAST)
    assert machines.store.state().clock.frontier == silent  # type: ignore[union-attr]

    work(machines, 3, FAST)
    assert machines.store.state().clock.frontier == machines.now  # type: ignore[union-attr]
    assert_the_same_when_counted_again(machines)
    work(machines, 1, FAST, SLOW)
    assert held_open(machines)
