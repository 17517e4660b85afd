"""The end of a log that an open transaction hides: no older ledger is taken, and no other is held up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.reconciliation import reconcile, retract
from admitone.boundary.restore.read_back import read_back
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError, ServiceUnreachable, Unreadable
from admitone.core.wire import StreamMetadata
from admitone.evidence import open_evidence_store
from admitone.simulation.log import SimulatedLog
from admitone.transport.port import OUTGOING_SCHEMA, Topic, Transport
from admitone.transport.topic_contract import raw_topic
from tests.faults.kafka_harness import make_home
from tests.servers.copies import copy_of
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_records import THEIRS, open_transaction
from tests.support.flaky import Flaky
from tests.support.pipeline import Pipeline, event

_TOML = """\
[[topics]]
family = "rest"
topic = "rest"
event_types = ["page_view"]
partitions = {partitions}
"""
Keys = Sequence[bytes | None]


class Home(Protocol):
    """A home folder on a log that other applications write to; each pipeline is a process that starts anew."""

    def pipeline(self) -> Pipeline: ...

    def hide(self, keys: Keys = (None,), partition: int = 0) -> Callable[[bool], object]:
        """Let another application open a transaction; return what commits or aborts it."""


class SimulatedHome:
    def __init__(self, path: Path, partitions: int = 1) -> None:
        self._path = path
        self._log = SimulatedLog()
        (path / "admitone.toml").write_text(_TOML.format(partitions=partitions))

    def pipeline(self) -> Pipeline:
        pipeline = Pipeline(self._path, transport={"raw_partitions": 1})
        pipeline.transport = pipeline.boundary.transport = self._log
        pipeline.topic = raw_topic(pipeline.settings, self._log)
        return pipeline

    def hide(self, keys: Keys = (None,), partition: int = 0) -> Callable[[bool], object]:
        table = pa.Table.from_pylist(
            [{"partition": partition, "key": k, "value": THEIRS, "headers": []} for k in keys],
            schema=OUTGOING_SCHEMA,
        )
        transaction = self._log.write("other", self._log.init_producer("other"), {"rest": table})
        return lambda committed: (
            self._log.commit(transaction) if committed else self._log.init_producer("other")
        )


class KafkaHome:
    def __init__(self, path: Path, broker: KafkaBroker) -> None:
        self._path, self._broker = path, broker
        make_home(path, broker.bootstrap)

    def pipeline(self) -> Pipeline:
        return Pipeline(self._path, transport={"raw_partitions": 1})

    def hide(self, keys: Keys = (None,), partition: int = 0) -> Callable[[bool], object]:
        topic = topic_of(self.pipeline()).name
        other = open_transaction(self._broker, topic, timeout_ms=600_000, keys=keys)
        return lambda committed: (
            other.commit_transaction(30) if committed else other.abort_transaction(30)
        )


@pytest.fixture(params=["simulated", "kafka"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    if request.param == "simulated":
        return SimulatedHome(tmp_path)
    return KafkaHome(tmp_path, request.getfixturevalue("kafka_broker"))


def topic_of(pipeline: Pipeline) -> Topic:
    """Return the topic that page views go to."""
    name = next(
        route.topic for route in pipeline.settings.topics if "page_view" in route.event_types
    )
    return pipeline.transport.topic(name)


def published(pipeline: Pipeline) -> list[str]:
    """Return the event ids that readers get."""
    topic = topic_of(pipeline)
    headers = [
        {entry["key"]: entry["value"] for entry in entries}
        for partition, end in enumerate(pipeline.transport.ends(topic))
        for batch in pipeline.transport.read(topic, partition, 0, end)
        for entries in batch.column("headers").to_pylist()
    ]
    return sorted(found["event-id"].decode() for found in headers if found)


def deliver(pipeline: Pipeline, *names: str) -> None:
    pipeline.ingest(*map(event, names))
    pipeline.run()


def restored(home: Home, path: Path) -> tuple[Pipeline, Callable[[bool], object]]:
    """Return a pipeline whose ledger does not know its last event, which an open transaction hides."""
    pipeline = home.pipeline()
    deliver(pipeline, "a")
    restore = copy_of(pipeline.ledger, pipeline.settings, path / "copy")
    end = home.hide()
    deliver(pipeline, "b")
    pipeline.ledger.close()
    restore()
    return home.pipeline(), end


def test_a_ledger_older_than_what_is_hidden_is_not_taken(home: Home, tmp_path: Path) -> None:
    behind, end = restored(home, tmp_path)
    for take in (behind.run, lambda: DoorSlot(behind.boundary, 0)):
        with pytest.raises(Unreadable, match="hides the end of") as refusal:
            take()
        assert "admitone reconcile --restored" in refusal.value.remedy
    end(True)
    with pytest.raises(IntegrityError, match="older than the log"):
        behind.run()

    read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings))
    deliver(behind, "b", "c")
    assert published(behind) == ["a", "b", "c"]
    assert behind.problems() == []


def test_what_is_hidden_and_known_holds_up_neither_a_start_nor_a_door(home: Home) -> None:
    pipeline = home.pipeline()
    deliver(pipeline, "a")
    end = home.hide()
    deliver(pipeline, "b")

    again = home.pipeline()
    again.boundary.transport = _NeverWaits(again.transport)  # type: ignore[assignment]
    deliver(again, "c")
    ((decision,),) = DoorSlot(again.boundary, 0).admit([Delivery(event("d"))])
    assert decision["verdict"] == "ADMITTED"
    end(False)
    assert published(again) == ["a", "b", "c", "d"]


class _NeverWaits:
    """A log of which only what need not be committed is read."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def read(self, *where: Any, committed: bool = True) -> Any:
        assert not committed, "it waits for what an open transaction hides"
        return self._transport.read(*where, committed=False)


def test_what_was_aborted_is_not_taken_for_an_admission(home: Home) -> None:
    pipeline = home.pipeline()
    deliver(pipeline, "a")
    source = pipeline.boundary.source(pipeline.topic, 0)
    after = StreamMetadata(*source, pipeline.ledger.mark(source).offset + 1)
    end = home.hide(keys=[after.to_bytes()])
    pipeline.ingest(event("b"))
    with pytest.raises(Unreadable, match="unless that was aborted"):
        home.pipeline().run()

    end(False)
    again = home.pipeline()
    again.run()
    assert published(again) == ["a", "b"]


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_the_last_records_are_those_before_an_open_transaction_and_those_behind_it(
    before: bool, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("admitone.boundary.ledger_age._RECORDS_AT_THE_END", 3)
    pipeline = home.pipeline()
    pipeline.run()
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    for ours in (before, not before):
        if not ours:
            home.hide(keys=[None] * 3)
            continue
        deliver(pipeline, "a")
        if before:
            # A broker answers a commit before readers see it.
            assert published(pipeline) == ["a"]
    pipeline.ledger.close()
    restore()

    with pytest.raises(
        IntegrityError if before else Unreadable, match="up to offset 0, the ledger"
    ):
        home.pipeline().run()


def test_what_can_be_read_is_found_though_another_partition_is_hidden(tmp_path: Path) -> None:
    home = SimulatedHome(tmp_path, partitions=2)
    pipeline = home.pipeline()
    keys = [f"k{number}" for number in range(20)]
    pipeline.ingest(*(event(key, partitionKey=key) for key in keys))
    pipeline.run()
    places = {row["event_id"]: row["bus"]["partition"] for row in pipeline.decisions()}
    second = next(key for key in keys if places[key] == 1)
    unknown = of_unknown_fate(pipeline, "down-after", event("u", partitionKey=second))
    home.hide(partition=0)

    (found,) = reconcile(pipeline.boundary)
    assert (found.block.block_id, found.how) == (unknown, "found on the log")


def test_what_was_published_late_is_found_though_what_follows_is_hidden(tmp_path: Path) -> None:
    home = SimulatedHome(tmp_path)
    pipeline = home.pipeline()
    pipeline.run()
    unknown = of_unknown_fate(pipeline, "down-before", event("u"))
    pipeline.boundary.transport = Flaky(pipeline.transport, "lost-after")  # type: ignore[assignment]
    (failed,) = reconcile(pipeline.boundary)
    assert failed.state is BlockState.AMBIGUOUS
    home.hide()

    found = retract(pipeline.boundary, unknown, "ann", "cannot wait")
    assert (found.state, found.how) == (BlockState.SETTLED, "published late, found on the log")


def of_unknown_fate(pipeline: Pipeline, word: str, line: bytes) -> int:
    """Publish an event so that nobody knows what became of it; return its block."""
    pipeline.ingest(line)
    pipeline.boundary.transport = Flaky(pipeline.transport, word)  # type: ignore[assignment]
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    pipeline.boundary.transport = pipeline.transport
    (block,) = pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS])
    return block.block_id
