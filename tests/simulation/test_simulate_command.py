"""`admitone simulate`: what it prints, what it is asked, how it ends."""

from __future__ import annotations

import pytest

from admitone.simulation.simulator import SimulationDocument
from tests.simulation.mutations import first_broken, look_skipped
from tests.support.command_line import Cli, cli
from tests.support.described import differing

__all__ = ["cli"]


def test_one_history_is_printed_call_by_call(cli: Cli) -> None:
    done = cli("simulate", "--seed", "43")

    assert done.code == 0
    assert "step 0: deliver" in done.out
    assert "log.commit" in done.out
    assert "the faults stop" in done.out


def test_several_are_counted_in_one_document_and_nothing_shows_off_a_terminal(cli: Cli) -> None:
    done = cli("simulate", "--seed", "43", "--histories", "5", "--json")
    document = done.document

    assert (done.code, done.err) == (0, "")
    assert (document["histories"], document["seeds"]) == (5, [43, 47])
    assert document["violations"] == []
    assert document["port_calls_median"] >= 30
    assert document["histories_per_second"] > 0


def test_a_broken_promise_ends_with_7_and_the_command_that_replays_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = first_broken(look_skipped)
    look_skipped(monkeypatch)
    done = cli("simulate", "--seed", str(seed), "--histories", "1", "--json")
    (broken,) = done.document["violations"]
    again = cli(*broken["replay"].split()[1:])

    assert differing(SimulationDocument, done.document) == []
    assert done.code == again.code == 7
    assert broken["seed"] == seed
    assert broken["what"] in again.out
    assert broken["replay"] in again.err


@pytest.mark.parametrize(
    "wrong", [["--steps", "0,1"], ["--seed", "1", "--steps", "a"], ["--histories", "0"]]
)
def test_what_makes_no_sense_is_refused(cli: Cli, wrong: list[str]) -> None:
    assert cli("simulate", *wrong).code == 2
