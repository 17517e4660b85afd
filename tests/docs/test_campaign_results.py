"""What the page of reliability says of campaigns: what their last runs found, and which were not run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scripts.reference import campaigns

from tests import endurance
from tests.simulation import campaign as simulation
from tests.support.kept_results import Result, kept

RESULT = Result(
    campaign="boundary",
    count=2,
    counted="cases",
    struck={"crash points": 1_234},
    findings=1,
    seed=5,
    minutes=0.1,
    command="python -m tests.faults --only boundary --boundary 2 --seed 5",
    date="2026-01-31",
)


def test_every_result_that_is_kept_is_of_a_campaign_that_exists() -> None:
    assert kept().keys() <= campaigns.STRIKES.keys()


def test_a_campaign_is_shown_with_its_result_or_as_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RESULT.keep(tmp_path)
    monkeypatch.setattr(campaigns, "kept", lambda: kept(tmp_path))

    _, _, *shown = campaigns.results().splitlines()
    assert [[cell.strip() for cell in row.split("|")[3:-1]] for row in shown] == [
        ["2 cases", "1,234 crash points", "1", "0.1", "2026-01-31", f"`{RESULT.command}`"]
    ]
    _, _, *missing = campaigns.not_run().splitlines()
    assert {row.split("|")[1].strip() for row in missing} == campaigns.STRIKES.keys() - {"boundary"}
    assert all(row.endswith("| not run yet |") for row in missing)
    for name in campaigns.STRIKES:
        replace(RESULT, campaign=name).keep(tmp_path)
    assert campaigns.not_run() == "None."


def test_the_simulator_keeps_what_came_of_its_histories(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        simulation.main(["--seed", "1", "--histories", "3", "--results", str(tmp_path)])

    found = kept(tmp_path)["simulator"]
    assert ended.value.code == 0
    assert (found.count, found.findings, found.seed) == (3, 0, 1)
    assert sum(found.struck.values()) > 0
    assert found.command == "admitone simulate --seed 1 --histories 3 --json"


def test_endurance_keeps_how_many_runs_it_made_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        endurance.Run("complete runs", "complete run 1", 9, [], 1.0),
        endurance.Run("complete runs beside other work", "complete run 2", 8, ["it failed"], 1.0),
    ]
    monkeypatch.setattr(endurance, "runs", lambda *_, **__: iter(runs))
    options = ["--suite", "2", "--busy", "1", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["endurance", *options])
    with pytest.raises(SystemExit) as ended:
        endurance.main()

    found = kept(tmp_path)["endurance"]
    assert ended.value.code == 1
    assert (found.count, found.findings) == (2, 1)
    assert found.struck == {"complete runs": 1, "complete runs beside other work": 1}
    assert found.command == "python -m tests.endurance --suite 2 --busy 1"
