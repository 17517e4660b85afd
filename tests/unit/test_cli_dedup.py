"""The dedup pipeline on the command line: its topics, how far it is, what it decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from admitone.core.errors import ConfigurationError
from admitone.settings import load_settings
from tests.support.command_line import Cli, cli
from tests.support.deduplicated import DedupPipeline
from tests.support.flaky import Flaky
from tests.support.pipeline import event

__all__ = ["cli"]


def test_its_topics_are_made_and_checked_apart_from_those_of_the_map(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "admitone.toml").write_text("transport.create_topics = false\n")
    missing = cli("topics", "check", "--dedup", "--home", str(tmp_path))
    assert missing.code == 7
    made = cli("topics", "create", "--dedup", "--home", str(tmp_path), "--json")

    assert made.code == 0
    names = [topic["topic"] for topic in made.document["topics"]]
    assert names == ["raw", "deduplicated.late", "deduplicated"]
    assert cli("topics", "check", "--home", str(tmp_path)).code == 7, "those of the map are missing"


def test_status_and_books_show_it_beside_the_boundary(cli: Cli, tmp_path: Path) -> None:
    pipeline = DedupPipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.append(event("a"), event("a"))
    assert cli("status", "--home", str(tmp_path), "--json").document["dedup"]["ledger"] is None
    pipeline.run()
    pipeline.append(event("b"))

    status = cli("status", "--home", str(tmp_path), "--json").document
    assert status["undecided"] == 3
    assert status["dedup"]["ledger"]["waiting"] == 1
    assert {row["query"] for row in status["partitions"]} == {"boundary", "dedup"}
    shown = cli("status", "--home", str(tmp_path))
    assert "dedup on the ledger: 1 waiting" in shown.out
    (run,) = cli("books", "--home", str(tmp_path), "--json").document["runs"]
    assert (run["run_id"], run["admitted"], run["duplicates"], run["cached"]) == ("dedup", 1, 1, 0)


def test_what_became_of_a_lost_publish_is_found_out_and_written_as_it_came(
    cli: Cli, tmp_path: Path
) -> None:
    pipeline = DedupPipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.append(event("a"), keys=[b"k"], headers=[[{"key": "trace", "value": b"1"}]])
    generation = pipeline.boundary.start(pipeline.topic)
    flaky = Flaky(pipeline.transport, "down-before")
    pipeline.boundary.transport = flaky
    with pytest.raises(Exception, match="AMBIGUOUS"):
        list(pipeline.own(0, generation).admit(pipeline.records(0)))
    looked = cli("reconcile", "--dry-run", "--home", str(tmp_path), "--json")
    assert (looked.code, looked.document["remaining"]) == (6, 1)

    assert cli("reconcile", "--home", str(tmp_path)).code == 0
    (record,) = pipeline.written()
    names = [entry["key"] for entry in record["headers"]]
    assert (record["key"], record["value"], names[0]) == (b"k", event("a"), "trace")
    assert "origin" in names
    pipeline.boundary.transport = pipeline.transport
    pipeline.run()
    assert pipeline.problems() == []


def test_help_says_what_engine_state_does_not_promise(cli: Cli) -> None:
    said = " ".join(cli("run", "--help").out.split())
    assert "without its checkpoint all keys are forgotten" in said.replace("│", "").replace(
        "  ", " "
    )


@pytest.mark.parametrize(
    ("dedup", "said"),
    [
        ({"destination": "raw"}, "topic names of their own"),
        ({"destination": "admitted.traffic"}, "topic names of their own"),
        ({"source": "orders", "destination": "orders"}, "topic names of their own"),
        ({"destination": "deduplicated.late"}, "late is the destination"),
        ({"destination": "a b"}, "dedup.destination"),
        ({"time_field": "a..b"}, "expected a path"),
        ({"cache": -1}, "dedup.cache"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(
    dedup: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_settings(tmp_path, dedup=dedup)
