"""The topic contract on a real broker: whatever an administrator changes is noticed, named and mended (RTE-4)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from admitone.boundary.release import Signature, release
from admitone.core.contract import Kind
from admitone.core.decisions import BlockState, Reason, Verdict
from admitone.core.errors import ContractDrift, ServiceUnreachable
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.originals import open_deliveries
from admitone.ledger.decision_rows import in_quarantine
from admitone.ledger.model import Filter
from admitone.spark.boundary_query import SourceTopic
from admitone.transport.topic_contract import create_topic, raw_topic
from tests.servers.kafka import KafkaBroker, read_committed
from tests.servers.kafka_records import THEIRS
from tests.support.closing import stores_of
from tests.support.drift import MAP, Meanwhile, pairs, two_topics
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline

DRIFT = [("QUARANTINED", "CONTRACT_DRIFT")]
ADMITTED = [("ADMITTED", None)]


@dataclass
class Site:
    """A home folder with topics of its own on a broker that others use, too."""

    home: Path
    broker: KafkaBroker
    name: str

    @property
    def orders(self) -> str:
        return f"{self.name}.orders"

    def pipeline(self, change: tuple[str, str] = ("", ""), **transport: Any) -> Pipeline:
        """Return a pipeline, its map changed as told."""
        text = MAP.replace("admitted.", f"{self.name}.").replace(*change)
        kafka = {"bootstrap": self.broker.bootstrap, "delivery_timeout": "3s"}
        settings = {"kind": "kafka", "kafka": kafka, "raw_topic": f"{self.name}.raw"}
        return two_topics(self.home, text, transport={**settings, "raw_partitions": 1, **transport})

    def published(self, family: str) -> list[str]:
        """Return the event ids that a plain consumer sees, in any order."""
        records = read_committed(self.broker.bootstrap, f"{self.name}.{family}")
        return sorted(dict(record.headers() or [])["event-id"].decode() for record in records)

    def set(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        administrator = self.broker.administrator()
        administrator.incremental_alter_configs([resource])[resource].result(30)

    def add_partitions(self, topic: str, to: int) -> None:
        administrator = self.broker.administrator()
        administrator.create_partitions([NewPartitions(topic, to)])[topic].result(30)

    def recreate(self, pipeline: Pipeline) -> None:
        delete_topic(pipeline.transport, self.orders)
        create_topic(pipeline.boundary.options.contracts[1], pipeline.transport)


@pytest.fixture
def site(tmp_path: Path, kafka_broker: KafkaBroker) -> Site:
    return Site(tmp_path, kafka_broker, f"c{uuid.uuid4().hex[:8]}")


def kinds(pipeline: Pipeline) -> list[Kind]:
    _, orders = pipeline.boundary.topics.check()
    return [difference.kind for difference in orders.differences]


def released(pipeline: Pipeline) -> dict[Verdict, int]:
    chosen = in_quarantine(pipeline.ledger, Filter(reason=Reason.CONTRACT_DRIFT))
    fetch = open_deliveries(pipeline.settings, pipeline.ledger)
    return release(pipeline.boundary, fetch, chosen, Signature("ann", "mended")).released


def test_topics_are_created_as_the_map_says_and_are_as_agreed_afterwards(site: Site) -> None:
    pipeline = site.pipeline(("partitions = 3", 'partitions = 3\nretention = "2d"'))
    pipeline.ingest(*pairs(1))
    pipeline.run()
    state = pipeline.transport.describe([site.orders])[site.orders]

    assert state.keeping is not None
    assert (state.topic.partitions, state.keeping.retention_ms) == (3, 172_800_000)
    assert kinds(pipeline) == []
    assert pipeline.verdicts("o1") == ADMITTED
    assert gate_of("default", *stores_of(pipeline)).green


Change = Callable[[Site, Pipeline], None]
CHANGES: dict[Kind, Change] = {
    Kind.RETENTION: lambda site, _: site.set(site.orders, "retention.ms", "86400000"),
    Kind.CLEANUP_POLICY: lambda site, _: site.set(site.orders, "cleanup.policy", "compact"),
    Kind.PARTITIONS: lambda site, _: site.add_partitions(site.orders, 5),
    Kind.RECREATED: lambda site, pipeline: site.recreate(pipeline),
    Kind.MISSING: lambda site, pipeline: delete_topic(pipeline.transport, site.orders),
}
MENDED: dict[Kind, Change] = {
    Kind.RETENTION: lambda site, _: site.set(site.orders, "retention.ms", "604800000"),
    Kind.CLEANUP_POLICY: lambda site, _: site.set(site.orders, "cleanup.policy", "delete"),
    Kind.PARTITIONS: lambda *_: None,
    Kind.RECREATED: lambda site, pipeline: pipeline.boundary.topics.accept(site.orders, 7, "ann", "known"),
    Kind.MISSING: lambda _, pipeline: pipeline.boundary.topics.create(7, "ann", "made again"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
def test_what_an_administrator_changes_is_drift_until_it_is_mended(kind: Kind, site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*pairs(1))
    pipeline.run()
    CHANGES[kind](site, pipeline)
    pipeline.ingest(*pairs(2))
    pipeline.run()

    assert kinds(pipeline) == [kind]
    assert pipeline.verdicts("o2") == DRIFT
    assert pipeline.verdicts("v2") == ADMITTED
    blockers = gate_of("default", *stores_of(pipeline)).blockers
    assert [blocker.kind for blocker in blockers] == ["quarantined", "contract"]

    MENDED[kind](site, pipeline)
    wider = ("partitions = 3", "partitions = 5") if kind is Kind.PARTITIONS else ("", "")
    mended = site.pipeline(wider)
    mended.run()
    assert released(mended) == {Verdict.ADMITTED: 1}
    mended.run()
    assert kinds(mended) == []
    assert site.published("views") == ["v1", "v2"]
    lost = kind in (Kind.RECREATED, Kind.MISSING)
    assert site.published("orders") == (["o2"] if lost else ["o1", "o2"])
    assert gate_of("default", *stores_of(mended)).green


def test_too_few_replicas_are_drift(site: Site) -> None:
    site.pipeline().run()
    wanting = site.pipeline(("partitions = 3", "partitions = 3\nreplication = 3"))
    wanting.ingest(*pairs(1))
    wanting.run()
    assert kinds(wanting) == [Kind.REPLICATION, Kind.IN_SYNC]
    assert (wanting.verdicts("o1"), wanting.verdicts("v1")) == (DRIFT, ADMITTED)


def test_a_raw_topic_with_its_producers_time_is_refused(site: Site) -> None:
    pipeline = site.pipeline()
    raw = pipeline.settings.transport.raw_topic
    site.set(raw, "message.timestamp.type", "CreateTime")
    with pytest.raises(ContractDrift, match=r"LogAppendTime.*message\.timestamp\.type"):
        raw_topic(pipeline.settings, pipeline.transport)
    site.set(raw, "message.timestamp.type", "LogAppendTime")
    assert raw_topic(pipeline.settings, pipeline.transport) == pipeline.topic


def test_a_raw_topic_that_changes_while_it_is_read_stops_the_reader(site: Site) -> None:
    pipeline = site.pipeline()
    name = pipeline.topic.name
    reading = SourceTopic(pipeline.transport, pipeline.topic)

    def said() -> str:
        return str(reading.error())

    assert reading.error() is None
    site.set(name, "message.timestamp.type", "CreateTime")
    assert "LogAppendTime" in said()
    site.set(name, "message.timestamp.type", "LogAppendTime")
    site.add_partitions(name, 2)
    assert "set raw_partitions = 2" in said()
    delete_topic(pipeline.transport, name)
    assert "was deleted" in said()
    pipeline.transport.create_topic(name, 1)
    assert "was recreated" in said()


def test_a_topic_recreated_between_claim_and_publish_is_never_called_published(site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*pairs(1))
    change = Meanwhile(pipeline, lambda: site.recreate(pipeline))
    pipeline.boundary.transport = change  # type: ignore[assignment]
    pipeline.run()
    pipeline.ingest(*pairs(2))
    pipeline.run()

    first, second = pipeline.ledger.blocks()
    assert (first.state, second.state) == (BlockState.AMBIGUOUS, BlockState.SETTLED)
    assert pipeline.verdicts("o1") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")]
    assert (pipeline.verdicts("o2"), pipeline.verdicts("v2")) == (DRIFT, ADMITTED)


def test_a_topic_deleted_between_claim_and_publish_gives_the_block_back(site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*pairs(1))
    change = Meanwhile(pipeline, lambda: delete_topic(pipeline.transport, site.orders))
    pipeline.boundary.transport = change  # type: ignore[assignment]
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    pipeline.run()

    assert (pipeline.verdicts("o1"), pipeline.verdicts("v1")) == (DRIFT, ADMITTED)
    assert site.published("views") == ["v1"]


def test_records_that_the_broker_compacted_away_are_ambiguous_and_not_published_again(
    site: Site,
) -> None:
    key = ("partitions = 3", 'partitions = 3\nrecord_key = "business_key"')
    pipeline = site.pipeline(key)
    pipeline.ingest(*pairs(1, 2))
    settle = pipeline.ledger.conclude
    pipeline.ledger.conclude = _vanish  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        pipeline.run()
    pipeline.ledger.conclude = settle  # type: ignore[method-assign]
    for name, value in (
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("cleanup.policy", "compact"),
    ):
        site.set(site.orders, name, value)
    published = read_committed(site.broker.bootstrap, site.orders)
    keys = {(record.partition(), record.key()) for record in published}
    assert published
    deadline = time.monotonic() + 60
    while ours := [
        record
        for record in read_committed(site.broker.bootstrap, site.orders)
        if record.value() != THEIRS
    ]:
        assert time.monotonic() < deadline, f"{len(ours)} records are not compacted away"
        producer = Producer({"bootstrap.servers": site.broker.bootstrap})
        for partition, same in keys:
            producer.produce(site.orders, THEIRS, same, partition)
        producer.flush(20)
        time.sleep(0.5)
    pipeline.run()

    assert pipeline.verdicts("o1") == pipeline.verdicts("o2") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")]
    assert {record.value() for record in read_committed(site.broker.bootstrap, site.orders)} == {
        THEIRS
    }


def _vanish(*_: object) -> None:
    raise ConnectionError("the machine is gone")
