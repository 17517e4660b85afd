"""`topics` on the command line: what differs, what to do, and the whole way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import Cli, cli
from tests.support.drift import (
    MAP,
    ORDERS,
    VIEWS,
    add_partitions,
    delete,
    on_topic,
    pairs,
    recreate,
    two_topics,
)
from tests.support.pipeline import Pipeline

__all__ = ["cli"]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A pipeline with two destinations and an event on each."""
    text = "[transport]\nraw_partitions = 1\n" + MAP
    made = two_topics(tmp_path, text)
    made.ingest(*pairs(1))
    made.run()
    return made


def home(pipeline: Pipeline) -> str:
    return str(pipeline.settings.home)


def test_topics_as_agreed_are_shown_with_what_is_wanted_and_what_is_there(
    cli: Cli, pipeline: Pipeline
) -> None:
    shown = cli("topics", "check", "--home", home(pipeline))
    assert shown.code == 0
    for name in ("raw", VIEWS, ORDERS):
        assert name in shown.out
    document = cli("topics", "check", "--home", home(pipeline), "--json").document
    assert [topic["topic"] for topic in document["topics"]] == ["raw", VIEWS, ORDERS]
    orders = document["topics"][2]
    assert orders["wanted"]["partitions"] == orders["found"]["partitions"] == 3
    assert orders["accepted"] == orders["found"]["topic_id"]
    assert [each["topic"] for each in document["accepted"]] == [VIEWS, ORDERS]


def test_a_deleted_topic_is_found_made_again_and_what_was_kept_is_released(
    cli: Cli, pipeline: Pipeline
) -> None:
    delete(pipeline)
    pipeline.ingest(*pairs(2, 3))
    pipeline.run()

    found = cli("topics", "check", "--home", home(pipeline))
    assert found.code == 7
    assert f"topic '{ORDERS}' is missing" in found.out
    assert "admitone topics create" in found.out
    status = cli("status", "--home", home(pipeline))
    assert (status.code, f"drift:   topic '{ORDERS}' is missing" in status.out) == (0, True)
    (drifted,) = cli("status", "--home", home(pipeline), "--json").document["drift"]
    assert [each["kind"] for each in drifted["differences"]] == ["missing"]
    red = cli("close", "default", "--home", home(pipeline))
    assert red.code == 5
    assert "admitone topics check" in red.out

    made = cli("topics", "create", "--author", "ann", "--home", home(pipeline))
    assert (made.code, made.err.strip()) == (0, f"created {ORDERS}")
    assert "nothing is missing" in cli("topics", "create", "--home", home(pipeline)).err
    why = ("--code", "CONTRACT_DRIFT", "--reason", "made again")
    released = cli("quarantine", "release", "--home", home(pipeline), *why, "--json")
    assert released.document == {"released": {"ADMITTED": 2}, "kept_first": 0, "still_refused": {}}
    assert on_topic(pipeline, ORDERS) == ["o2", "o3"]
    assert on_topic(pipeline, VIEWS) == ["v1", "v2", "v3"]
    pipeline.run()
    assert cli("close", "default", "--home", home(pipeline)).code == 0


def test_a_recreated_topic_waits_to_be_accepted_by_somebody_with_a_reason(
    cli: Cli, pipeline: Pipeline
) -> None:
    recreate(pipeline)
    document = cli("topics", "check", "--home", home(pipeline), "--json")
    assert document.code == 7
    (difference,) = document.document["topics"][2]["differences"]
    assert difference["kind"] == "recreated"
    assert f"admitone topics accept {ORDERS}" in difference["remedy"]

    assert cli("topics", "accept", ORDERS, "--home", home(pipeline)).code == 2
    why = ("--reason", "the disk was lost", "--author", "ann")
    accepted = cli("topics", "accept", ORDERS, *why, "--home", home(pipeline), "--json")
    assert accepted.code == 0
    last = accepted.document["accepted"][-1]
    assert (last["author"], last["reason"]) == ("ann", "the disk was lost")
    assert last["topic_id"] == pipeline.transport.topic(ORDERS).topic_id
    again = cli("topics", "accept", ORDERS, *why, "--home", home(pipeline))
    assert (again.code, "was accepted before" in again.err) == (0, True)


def test_accepting_a_topic_leaves_what_else_differs_as_it_is(cli: Cli, pipeline: Pipeline) -> None:
    recreate(pipeline)
    add_partitions(pipeline)
    done = cli("topics", "accept", ORDERS, "--reason", "why not", "--home", home(pipeline))
    assert done.code == 7
    assert "expected 3, found 5" in done.out
    assert "was recreated" not in done.out


@pytest.mark.parametrize(
    ("name", "said"), [("nothing", "is not in the map"), ("raw", "is not in the map")]
)
def test_a_topic_outside_the_map_cannot_be_accepted(
    name: str, said: str, cli: Cli, pipeline: Pipeline
) -> None:
    done = cli("topics", "accept", name, "--reason", "x", "--home", home(pipeline))
    assert done.code == 1
    assert said in done.err


def test_an_empty_home_lacks_its_topics_until_they_are_created(cli: Cli, tmp_path: Path) -> None:
    assert cli("topics", "check", "--home", str(tmp_path)).code == 7
    assert cli("status", "--home", str(tmp_path), "--json").document["drift"] == []
    made = cli("topics", "create", "--home", str(tmp_path))
    assert (made.code, made.err.strip()) == (0, "created admitted.traffic, raw")
    assert cli("topics", "check", "--home", str(tmp_path)).code == 0


def test_a_raw_topic_with_other_partitions_is_refused_before_anything_is_read(
    cli: Cli, pipeline: Pipeline, tmp_path: Path
) -> None:
    add_partitions(pipeline, "raw", to=2)
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join(pairs(9)))
    done = cli("ingest", str(file), "--home", home(pipeline))
    assert done.code == 7
    assert "set raw_partitions = 2 in [transport]" in done.err


def test_a_broker_that_is_not_there_exits_with_four(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text(
        '[transport]\nkind = "kafka"\n'
        '[transport.kafka]\nbootstrap = "127.0.0.1:9"\ndelivery_timeout = "1s"\n'
    )
    done = cli("topics", "check", "--home", str(tmp_path))
    assert done.code == 4
    assert "bootstrap" in done.err


def test_init_writes_the_production_profile(cli: Cli, tmp_path: Path) -> None:
    assert cli("init", "--profile", "production", "--home", str(tmp_path)).code == 0
    assert 'kind = "kafka"' in (tmp_path / "admitone.toml").read_text()
