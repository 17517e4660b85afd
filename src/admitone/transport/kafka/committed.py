"""Reading from Kafka up to an end that was noted before, in nearly all cases committed records only.

Another producer's open transaction hides what was committed behind it: a read that stops at the last stable offset
would take it for absent. So a read goes on until the noted end is reached, and gives up as "unreadable", never as
"empty".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from admitone.core.errors import IntegrityError, Unreadable
from admitone.infra.clock import Patience
from admitone.transport.kafka.clients import connect
from admitone.transport.kafka.complaints import NO_LEADER, Complaints, error_of, explained
from admitone.transport.kafka_options import Options
from admitone.transport.port import LOG_APPEND_TIME, RECORD_SCHEMA

_MESSAGES_AT_ONCE = 10_000
_OUT_OF_RANGE = frozenset({KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET})
_PASSING = NO_LEADER | {
    KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT,
}  # fmt: skip


def read_range(
    options: Options,
    topic: str,
    partition: int,
    start: int,
    end: int,
    patience_s: float,
    check: Callable[[], None],
) -> Iterator[list[Message]]:
    """Yield messages with start <= offset < end, some at a time; return when the end is reached.

    The options say whether they must be committed. Consumers know topics by name only: `check` says, after each look,
    that it is still the same one.
    """
    check()
    if start >= end:
        return
    complaints = Complaints()
    consumer = connect(
        Consumer,
        {
            **options,
            "group.id": "admitone",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 64 << 10,
            # Where there is nothing more to come a broker would think about it for half a second.
            "fetch.wait.max.ms": 20,
        },
        complaints,
    )
    try:
        consumer.assign([TopicPartition(topic, partition, start)])
        reached, patience = start, Patience(patience_s)
        while reached < end:
            first = consumer.poll(0.2)
            more = [] if first is None else [first, *consumer.consume(_MESSAGES_AT_ONCE, 0)]
            check()
            records, position = _sorted_out(more, topic, partition, start)
            wanted = [message for message in records if message.offset() < end]
            if wanted:
                yield wanted
            if position is not None and position > reached:
                reached, patience = position, Patience(patience_s)
            elif complaints.denied:
                raise KafkaException(complaints.behind(KafkaError(KafkaError._TIMED_OUT)))
            elif patience.is_over:
                raise Unreadable(
                    f"Partition {partition} of {topic!r} is readable up to offset {reached}, not up to"
                    f" {end}: a transaction is open there, or the broker does not answer.",
                    "wait until it is committed, aborted or timed out, then try again",
                )
    except KafkaException as failure:
        raise explained(error_of(failure), f"reading {topic!r}") from failure
    finally:
        consumer.close()


def record_batch(topic: str, partition: int, messages: list[Message]) -> pa.RecordBatch:
    """Return messages as the columns of Spark's Kafka source."""
    stamps = [message.timestamp() for message in messages]
    columns: list[Any] = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [topic] * len(messages),
        [partition] * len(messages),
        [message.offset() for message in messages],
        [moment * 1_000 for _, moment in stamps],
        [
            LOG_APPEND_TIME if kind == TIMESTAMP_LOG_APPEND_TIME else 1 - LOG_APPEND_TIME
            for kind, _ in stamps
        ],
        [
            [{"key": name, "value": value} for name, value in message.headers() or ()]
            for message in messages
        ],
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, RECORD_SCHEMA, strict=True)
        ],
        schema=RECORD_SCHEMA,
    )


def _sorted_out(
    found: list[Message], topic: str, partition: int, start: int
) -> tuple[list[Message], int | None]:
    """Return the records among what a consumer handed out, and the position after it."""
    records: list[Message] = []
    position = None
    for message in found:
        error = message.error()
        if error is None:
            records.append(message)
            position = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            # The end that can be read now, markers of transactions included.
            position = message.offset()
        elif error.code() in _OUT_OF_RANGE:
            raise IntegrityError(
                f"Partition {partition} of {topic!r} has no records at offset {start} any more.",
                "restore them; reading on without them would lose deliveries",
            )
        elif error.code() not in _PASSING:
            raise explained(error, f"reading {topic!r}")
    return records, position
