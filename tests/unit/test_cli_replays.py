"""Replays on the command line: in the books, the decisions and the status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Cli, cli
from tests.support.pipeline import Pipeline
from tests.support.replayed import FILTERED, UPSTREAM, copied, write

__all__ = ["cli"]


@pytest.fixture
def home(tmp_path: Path) -> str:
    """A home folder whose upstream job wrote three events, then two of them again."""
    (tmp_path / "admitone.toml").write_text(
        f"[transport]\nraw_partitions = 1\nfilter_replays = true\nproducers = {FILTERED['producers']}\n"
    )
    pipeline = Pipeline(tmp_path, transport={})
    write(pipeline, [*copied(0, 1, 2), *copied(1, 2)])
    pipeline.run()
    return str(tmp_path)


def test_the_books_count_replays_and_say_how_often_a_producer_went_back(
    cli: Cli, home: str
) -> None:
    (run,) = cli("books", "--home", home, "--json").document["runs"]
    assert (run["deliveries"], run["admitted"], run["replayed"]) == (5, 3, 2)
    assert (run["order_violations"], run["balanced"]) == (1, True)
    assert "order_violations" in cli("books", "--home", home).out


def test_the_status_tells_replays_of_both_readers(cli: Cli, home: str) -> None:
    status = cli("status", "--home", home, "--json").document
    assert status["replays"] == {
        "boundary": {"replayed": 2, "order_violations": 1},
        "analytics": {"replayed": 0, "order_violations": 0},
    }
    assert "2 among deliveries" in cli("status", "--home", home).out


def test_a_replay_is_listed_with_the_upstream_position_it_repeats(cli: Cli, home: str) -> None:
    rows = cli("decisions", "--home", home, "--verdict", "REPLAYED", "--jsonl").rows
    assert [row["upstream"] for row in rows] == [
        {"producer_id": UPSTREAM, "partition": 0, "offset": offset} for offset in (1, 2)
    ]
    assert {(row["reason"], row["event_id"], row["bus"]) for row in rows} == {(None, None, None)}


def test_a_filter_without_producers_is_a_mistake_in_the_configuration(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "admitone.toml").write_text("[transport]\nfilter_replays = true\n")
    refused = cli("books", "--home", str(tmp_path))
    assert refused.code == 3
    assert "filter_replays needs producers" in refused.err
