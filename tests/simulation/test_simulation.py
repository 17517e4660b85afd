"""The simulator finds nothing in what is right, does the same every time, and replays what it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from random import Random

import pytest

from admitone.core.errors import ServiceUnreachable
from admitone.ledger import block_transactions, sources
from admitone.simulation import simulator
from admitone.simulation.drawn_history import run_history, steps_of
from admitone.simulation.ledger import SimulatedStore
from admitone.simulation.schedule import Fault, Schedule
from admitone.simulation.simulated_clock import MachineClock, SimulatedTime
from admitone.simulation.steps import Steps
from tests.simulation.mutations import first_broken, look_skipped

_PRINTED = """
from hashlib import sha256
from admitone.simulation.drawn_history import run_history
for seed in range(8):
    print(seed, sha256(repr(run_history(seed)).encode()).hexdigest())
"""


def test_histories_keep_every_promise() -> None:
    done = simulator.simulate(43, 60, lambda _: None, processes=1)

    assert [told.violations for told in done.broken] == []
    assert done.document()["port_calls_median"] >= 30


def test_a_ledger_that_goes_back_while_everything_runs_breaks_no_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(seed: int) -> list[str]:
        return [each.what for each in run_history(seed, careless=True).violations]

    seeds = [s for s in range(400) if Steps.restore_beside in steps_of(s, careless=True)[1]]
    assert [seed for seed in seeds if broken(seed)] == []
    for module in (block_transactions, sources):
        monkeypatch.setattr(module, "must_be_in", lambda *_: None)
    assert any(map(broken, seeds))


def test_a_seed_decides_everything_in_whatever_process() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", _PRINTED],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(printed) == 1


def test_a_history_is_the_same_whatever_ran_before_it() -> None:
    first = run_history(4)
    run_history(5)

    assert run_history(4) == first


def test_every_kind_of_step_is_drawn() -> None:
    drawn = {step for seed in range(10_000) for step in steps_of(seed)[1]}
    drawn |= {step for seed in range(100) for step in steps_of(seed, careless=True)[1]}
    kinds = {
        "deliver", "deliver_to_one", "request", "query", "reconcile", "release", "discard", "give_up",
        "close", "write_evidence", "repair", "recreate", "fault", "overtake", "suspend", "lose", "repeat",
        "kill", "jump", "hide", "truncate", "compact", "back_up", "copy", "restore", "restore_beside",
        "later", "finish", "look",
    }  # fmt: skip

    assert {step.__name__ for step in drawn} == kinds
    assert all(hasattr(Steps, kind) for kind in kinds)


def test_what_breaks_a_promise_is_shrunk_and_replayed_by_its_command() -> None:
    long = [seed for seed in range(300) if len(steps_of(seed)[1]) > 5]
    seed = first_broken(look_skipped, *long)
    assert seed is not None
    with pytest.MonkeyPatch.context() as patch:
        look_skipped(patch)
        found = run_history(seed)
        least = simulator.shrink(found)
        again = simulator.replay(least.seed, least.steps)
    command = simulator.replay_command(least)

    assert found.violations
    assert len(least.steps) < len(found.steps)
    assert again.broken == [least]
    assert command == f"admitone simulate --seed {seed} --steps {','.join(map(str, least.steps))}"
    assert run_history(least.seed, least.steps).violations == ()


def test_a_call_is_made_when_it_is_the_callers_turn_and_faults_strike_at_it() -> None:
    done: list[str] = []
    schedule = Schedule(Random(1), SimulatedTime(0), eagerness=1.0)

    def work(name: str) -> None:
        for number in range(3):
            try:
                schedule.call("log.write", partial(done.append, f"{name}{number}"))
            except ServiceUnreachable:
                done.append(f"{name}: no answer")

    def strike(fault: str) -> list[str]:
        done.clear()
        schedule.start(fault, lambda: work(fault))
        schedule.strike(Fault(fault, 2, 4))
        schedule.run(100)
        schedule.wake_all()
        schedule.run(100)
        return list(done)

    assert strike("crash") == ["crash0"]
    assert strike("lost") == ["lost0", "lost1", "lost: no answer", "lost2"]
    assert strike("unsent") == ["unsent0", "unsent: no answer", "unsent2"]
    assert strike("late") == ["late0", "late: no answer", "late2", "late1"]
    assert strike("suspend") == ["suspend0", "suspend1", "suspend2"]


def test_while_one_is_suspended_others_go_on() -> None:
    done: list[str] = []
    schedule = Schedule(Random(1), SimulatedTime(0), eagerness=1.0)
    for name in "ab":
        schedule.start(
            name, lambda: [schedule.call("log.read", lambda: done.append("")) for _ in range(3)]
        )
        schedule.strike(Fault("suspend", 1, 50))
        schedule.run(1)
    schedule.run(100)

    assert len(done) == 6


def test_who_is_killed_makes_no_call_any_more_whatever_it_tries() -> None:
    done: list[str] = []
    schedule = Schedule(Random(1), SimulatedTime(0))

    def work() -> None:
        try:
            schedule.call("log.write", lambda: done.append("first"))
            schedule.call("log.write", lambda: done.append("second"))
        finally:
            schedule.call("log.write", lambda: done.append("cleaned up"))

    participant = schedule.start("a", work)
    schedule.run(1)
    schedule.kill(participant)
    schedule.run(10)

    assert done == ["first"]
    assert participant.is_over


def test_a_clock_that_is_set_changes_no_other_clock_and_not_the_time() -> None:
    time = SimulatedTime(1_000)
    one, other = MachineClock(time), MachineClock(time)
    one.jump(-500)
    time.pass_by(10)

    assert (one(), other(), time.now) == (510, 1_010, 1_010)


def test_a_ledger_is_put_back_as_it_was() -> None:
    store = SimulatedStore()
    copy = store.backup()
    store.run(lambda rows: rows.change("INSERT INTO generation VALUES ('p', 1)"))
    store.restore(copy)

    assert store.read(lambda rows: rows.all("SELECT * FROM generation")) == []
