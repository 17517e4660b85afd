"""Claims of topics on Kafka: what a consumer group keeps of them, and what fences a claim that was left open."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)

from admitone.infra.clock import wall_clock
from admitone.transport.kafka import topic_owners
from admitone.transport.kafka.kafka_log import KafkaLog
from admitone.transport.kafka.topic_owners import group_of
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_records import new_name
from tests.support.pipeline import kafka_log

HOUR = 3_600_000


@pytest.fixture
def log(kafka_broker: KafkaBroker) -> Iterator[KafkaLog]:
    log = kafka_log(kafka_broker)
    yield log
    log.close()


@pytest.fixture
def topic(log: KafkaLog) -> str:
    return log.create_topic(new_name(), 2).name


def noted(broker: KafkaBroker, topic: str) -> TopicPartition:
    """Return what the brokers keep of a pipeline that is named like its topic."""
    group, place = group_of(topic), TopicPartition(topic, 0)
    administrator = broker.administrator()
    asked = [ConsumerGroupTopicPartitions(group, [place])]
    (answer,) = administrator.list_consumer_group_offsets(asked, require_stable=True).values()
    (found,) = answer.result(30).topic_partitions
    assert isinstance(found, TopicPartition)
    return found


def left_open(broker: KafkaBroker, topic: str, ledger: str) -> Callable[[], None]:
    """Begin a claim as a process does that is suspended before its commit; return what lets it go on."""
    group = group_of(topic)
    settings = {"bootstrap.servers": broker.bootstrap}
    producer = Producer({**settings, "transactional.id": group, "transaction.timeout.ms": 60_000})
    consumer = Consumer({**settings, "group.id": group})
    producer.init_transactions(30)
    producer.begin_transaction()
    member, offsets = consumer.consumer_group_metadata(), [TopicPartition(topic, 0, 1, ledger)]
    producer.send_offsets_to_transaction(offsets, member, 30)
    consumer.close()
    return lambda: producer.commit_transaction(30)


def test_a_claim_that_was_left_open_holds_nobody_up_and_is_lost(
    log: KafkaLog, topic: str, kafka_broker: KafkaBroker
) -> None:
    go_on = left_open(kafka_broker, topic, "ledger-1")

    assert log.claim(topic, [topic], "ledger-2") == {topic: "ledger-2"}
    with pytest.raises(KafkaException):
        go_on()
    assert log.claim(topic, [topic], "ledger-1") == {topic: "ledger-2"}


def test_a_claim_is_written_again_before_brokers_forget_it(
    log: KafkaLog, topic: str, kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [wall_clock()]
    monkeypatch.setattr(topic_owners, "wall_clock", lambda: now[0])
    written = []
    # The clock was ahead by a day when the last but one was written.
    for passed in (0, HOUR, 1, 24 * HOUR, -24 * HOUR):
        now[0] += passed
        assert log.claim(topic, [topic], "ledger-1") == {topic: "ledger-1"}
        assert log.claim(topic, [topic], "ledger-2") == {topic: "ledger-1"}
        found = noted(kafka_broker, topic)
        assert found.metadata == "ledger-1"
        written.append(found.offset)

    began = written[0]
    assert [moment - began for moment in written] == [0, 0, HOUR + 1, 25 * HOUR + 1, HOUR + 1]
