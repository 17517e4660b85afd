"""Two ledgers under one pipeline name on one log: only one of them publishes, and the other says so."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.ledger_age import refuse_older_ledger
from admitone.boundary.release import Signature
from admitone.boundary.restore.read_back import read_back
from admitone.core.errors import IntegrityError
from admitone.evidence import open_evidence_store
from admitone.ledger.model import Filter
from admitone.ops.quarantine import release
from admitone.ops.stores import Stores
from admitone.settings import FILE_NAME
from admitone.spark.boundary_query import Deciding, SourceTopic
from tests.servers.kafka_records import new_name
from tests.support.command_line import Cli, cli
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

__all__ = ["cli"]

Open = Callable[[str], Pipeline]
ANOTHER = "belongs to ledger"
_TOML = """\
[ledger]
url = "{ledger}"
[pipeline]
quarantine_limit = 1.0
[transport]
kind = "{kind}"
path = "{shared}"
raw_topic = "{name}-raw"
raw_partitions = 1
[transport.kafka]
bootstrap = "{bootstrap}"
[[topics]]
family = "shop"
topic = "{name}-shop"
event_types = ["page_view"]
partitions = 1
"""


@pytest.fixture(params=["folder", "kafka"])
def log(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
def opened(log: str, request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Open home folders, each with a ledger of its own, that share a log and their pipeline's name."""
    name, broker = new_name(), request.getfixturevalue("kafka_broker") if log == "kafka" else None

    def open_home(number: str) -> Pipeline:
        home = tmp_path / number
        if not home.exists():
            home.mkdir()
            url = "sqlite:data/ledger.db"
            if request.param == "postgres":
                url = request.getfixturevalue("postgres_server").new_schema()
            text = _TOML.format(
                ledger=url, kind=log, shared=tmp_path / "log", name=name,
                bootstrap=broker.bootstrap if broker else "",
            )  # fmt: skip
            (home / FILE_NAME).write_text(text)
        return Pipeline(home, transport={})

    return open_home


def published(pipeline: Pipeline) -> Counter[str]:
    """Return how often each event is on the admitted topic."""
    (contract,) = pipeline.boundary.options.contracts
    topic = pipeline.transport.topic(contract.topic)
    (end,) = pipeline.transport.ends(topic)
    return Counter(
        json.loads(value)["metadata"]["eventId"]
        for batch in pipeline.transport.read(topic, 0, 0, end)
        for value in batch.column("value").to_pylist()
    )


def test_a_second_ledger_is_refused_at_its_start(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    one.ingest(event("a"))
    one.run()
    with pytest.raises(IntegrityError, match=ANOTHER) as refusal:
        other.run()

    assert "reconcile --restored" in refusal.value.remedy
    assert published(one) == {"a": 1}
    one.ingest(event("b"))
    one.run()
    assert published(one) == {"a": 1, "b": 1}


def test_a_second_ledger_is_refused_before_either_has_published(opened: Open) -> None:
    """What is at the end of the log says nothing about it: nothing is there."""
    one, other = opened("one"), opened("other")
    generation = one.boundary.start(one.topic)
    one.ingest(event("a"))
    with pytest.raises(IntegrityError, match=ANOTHER):
        other.run()

    list(one.own(0, generation).admit(one.records(0)))
    assert published(one) == {"a": 1}


def test_of_two_that_start_at_the_same_instant_only_one_publishes(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looked before the first one claimed the log, and claims it afterwards."""
    one, other = opened("one"), opened("other")
    one.ingest(event("a"))

    def overtaken(*asked: Any) -> None:
        refuse_older_ledger(*asked)
        monkeypatch.undo()
        one.run()

    monkeypatch.setattr("admitone.boundary.admission.refuse_older_ledger", overtaken)
    with pytest.raises(IntegrityError, match=ANOTHER):
        other.run()
    assert published(one) == {"a": 1}


def test_a_running_pipeline_whose_log_was_adopted_stops_after_the_interval(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    clock = [1_000]
    one.boundary.stopwatch = lambda: clock[0]
    one.ingest(event("a"))
    generation = one.boundary.start(one.topic)
    list(one.own(0, generation).admit(one.records(0)))
    read_back(other.boundary, other.topic, open_evidence_store(other.settings))
    other.ingest(event("b"))
    other.run()
    clock[0] += one.boundary.options.check_interval_ms

    for _ in range(2):
        with pytest.raises(IntegrityError, match=ANOTHER):
            _ = one.boundary.writable
    assert published(other) == {"a": 1, "b": 1}
    assert other.problems() == []


def test_a_pipeline_to_which_nothing_is_delivered_stops_too(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    clock = [1_000]
    one.boundary.stopwatch = lambda: clock[0]
    one.boundary.start(one.topic)
    beside = Deciding(SourceTopic(one.transport, one.topic), one.boundary)
    read_back(other.boundary, other.topic, open_evidence_store(other.settings))
    assert beside.error() is None
    clock[0] += one.boundary.options.check_interval_ms

    assert ANOTHER in str(beside.error())
    beside.close()


def test_a_door_is_refused_at_its_start_and_stops_while_it_is_open(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    clock = [1_000]
    one.boundary.stopwatch = lambda: clock[0]
    slot = DoorSlot(one.boundary, 0)
    assert [row["verdict"] for rows in slot.admit([Delivery(event("a"))]) for row in rows] == [
        "ADMITTED"
    ]
    with pytest.raises(IntegrityError, match=ANOTHER):
        DoorSlot(other.boundary, 1)

    read_back(other.boundary, other.topic, open_evidence_store(other.settings))
    clock[0] += one.boundary.options.check_interval_ms
    with pytest.raises(IntegrityError, match=ANOTHER):
        list(slot.admit([Delivery(event("b"))]))
    with pytest.raises(IntegrityError, match=ANOTHER):
        DoorSlot(one.boundary, 0)
    assert published(one) == {"a": 1}


def test_a_topic_that_is_made_while_a_pipeline_runs_is_claimed_then(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    one.run()
    (contract,) = one.boundary.options.contracts
    delete_topic(one.transport, contract.topic)
    one.boundary.topics.create(7, "ann", "made again")
    one.boundary.take_topics()

    with pytest.raises(IntegrityError, match=ANOTHER):
        other.boundary.start(other.topic)


def test_a_copy_of_a_ledger_is_the_same_ledger(opened: Open) -> None:
    one = opened("one")
    one.ingest(event("a"))
    one.run()
    again = opened("one")

    assert again.ledger.ledger_id() == one.ledger.ledger_id()
    again.run()


@pytest.mark.parametrize("log", ["folder"], indirect=True)
def test_every_command_that_changes_another_ledger_is_refused(opened: Open, cli: Cli) -> None:
    one, other = opened("one"), opened("other")
    one.ingest(event("a"))
    one.run()
    other.ledger.runs()
    home = ("--home", str(other.settings.home))
    for words in (
        ("close", "default"),
        ("verify", "default", "--repair"),
        ("quarantine", "discard", "--block", "1", "--reason", "why"),
        ("reconcile",),
    ):
        done = cli(*words, *home)
        assert done.code == 7, (words, done)
        assert "admitone reconcile --restored" in done.err, (words, done)
    with pytest.raises(IntegrityError, match=ANOTHER):
        release(Stores(other.settings), Filter(), Signature("ann", "why"), None)
    for words in (("books",), ("decisions",), ("reconcile", "--dry-run")):
        assert ANOTHER not in cli(*words, *home).err

    assert cli("reconcile", "--restored", *home).code == 0
    other.run()
    with pytest.raises(IntegrityError, match=ANOTHER):
        one.run()
    assert published(one) == {"a": 1}
