"""What tests of the log on Kafka write: records of ours, and transactions of somebody else."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from admitone.transport.kafka.kafka_log import KafkaLog
from admitone.transport.port import OUTGOING_SCHEMA, Topic
from tests.servers.kafka import KafkaBroker, read_committed
from tests.support.pipeline import kafka_log

THEIRS = b"theirs"
SHORT = {"delivery_timeout": 3_000, "transaction_timeout": 5_000, "look_timeout": 8_000}
"""Timeouts that a test can wait for."""


def new_name() -> str:
    """Return the name of a topic, and of a producer, that nobody else uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


def table(
    values: Sequence[bytes],
    partitions: Sequence[int] | None = None,
    keys: Sequence[bytes | None] | None = None,
) -> pa.Table:
    """Return records for one topic."""
    size = len(values)
    return pa.table(
        {
            "partition": partitions or [0] * size,
            "key": keys or [b"k"] * size,
            "value": values,
            "headers": [[{"key": "h", "value": b"v"}]] * size,
        },
        schema=OUTGOING_SCHEMA,
    )


def publish(log: KafkaLog, topic: str, *values: bytes) -> list[int]:
    """Publish under a new name; return the offsets."""
    name = new_name()
    appended = log.append(name, log.init_producer(name), {topic: table(values)})
    offsets: list[int] = appended.offsets[topic].to_pylist()
    return offsets


def values_of(log: KafkaLog, topic: Topic, end: int | None = None) -> list[bytes]:
    """Return the values of partition 0, up to the end."""
    (until,) = log.ends(topic)
    batches = log.read(topic, 0, log.starts(topic)[0], until if end is None else end)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def plainly(broker: KafkaBroker, topic: str) -> list[tuple[int, int, bytes]]:
    """Return what a plain consumer sees: partition, offset and value."""
    return [
        (record.partition(), record.offset(), record.value())
        for record in read_committed(broker.bootstrap, topic)
    ]


def open_transaction(
    broker: KafkaBroker,
    topic: str,
    timeout_ms: int = 60_000,
    keys: Sequence[bytes | None] = (None,),
) -> Producer:
    """Let somebody else write records and not commit them."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": new_name(),
            "transaction.timeout.ms": timeout_ms,
            "delivery.timeout.ms": min(timeout_ms, 30_000),
            "log_level": 0,
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    for key in keys:
        producer.produce(topic, THEIRS, key)
    assert producer.flush(20) == 0
    return producer


def short_log(broker: KafkaBroker, **options: Any) -> KafkaLog:
    """Return the log with timeouts that a test can wait for."""
    return kafka_log(broker, **{**SHORT, **options})
