"""A small piece of every campaign of `make faults`, and its command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.faults.campaign import CAMPAIGNS, Campaign, main
from tests.faults.pieces import Found, run_pieces, shares, strike_until
from tests.support.kept_results import kept

SMALL = {"boundary": 4, "crowd": 2_000, "clocks": 5}
"""One strike is enough of any other."""
ELSEWHERE = {
    "kafka": "test_kafka_faults.py",
    "late requests": "test_kafka_faults.py",
    "one of three brokers": "test_kafka_cluster.py",
}
"""Where a piece of a campaign is struck already, by the same strikes on a broker that is there for it."""
HERE = [campaign for campaign in CAMPAIGNS if campaign.name not in ELSEWHERE]


def test_what_is_struck_elsewhere_is() -> None:
    assert {campaign.name for campaign in CAMPAIGNS} > ELSEWHERE.keys()
    for file in ELSEWHERE.values():
        assert (Path(__file__).parent / file).exists()


@pytest.mark.parametrize("campaign", HERE, ids=lambda campaign: campaign.option)
def test_a_small_piece_of_a_campaign_strikes_and_finds_nothing(
    campaign: Campaign, tmp_path: Path
) -> None:
    struck, findings = campaign.run(SMALL.get(campaign.name, 1), 7, tmp_path, Console())

    assert findings == []
    assert sum(struck.values()) > 0


def test_the_command_line_runs_what_is_named_and_keeps_what_came_of_it(tmp_path: Path) -> None:
    options = ["--only", "boundary,crowd", "--boundary", "2", "--crowd", "0", "--seed", "5"]
    command = [sys.executable, "-m", "tests.faults", *options, "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 5" in done.stdout
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert (found["campaign"], found["count"], found["findings"]) == ("boundary", 2, 0)
    assert found["struck"]["crash points"] > 0
    assert found["command"].endswith("--only boundary --boundary 2 --seed 5")


def test_what_a_campaign_raises_is_a_finding_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> Found:
        raise TypeError("missing an argument")

    def strikes(count: int, *_: object) -> tuple[int, list[str]]:
        return count, []

    campaigns = (
        Campaign("one that breaks", "nothing", 1, "cases", breaks),
        Campaign("one that strikes", "nothing", 3, "kills", strikes),
    )
    with pytest.raises(SystemExit) as ended:
        main(["--results", str(tmp_path)], campaigns)

    assert ended.value.code == 1
    assert "TypeError: missing an argument" in capsys.readouterr().out
    results = kept(tmp_path)
    assert results["one that breaks"].findings == 1
    assert (results["one that strikes"].findings, results["one that strikes"].struck) == (
        0,
        {"kills": 3},
    )


def test_a_piece_that_raises_does_not_end_the_others() -> None:
    struck, findings = run_pieces("pieces", [(_piece, 0), (_piece, 2), (_piece, 3)], Console())

    assert struck == {"kills": 5}
    (finding,) = findings
    assert "ZeroDivisionError" in finding


def _piece(kills: int) -> Found:
    return {"kills": kills * kills // kills}, []


def test_what_never_strikes_ends_and_is_a_finding() -> None:
    struck, findings = strike_until(3, "cuts", lambda _: (0, []))

    assert struck == {"cuts": 0}
    assert findings == ["cuts: only 0 of 3 faults struck"]


def test_a_count_is_shared_evenly() -> None:
    assert (shares(0, 4), shares(4, 4), shares(9, 4)) == ([], [4], [3, 3, 3])
