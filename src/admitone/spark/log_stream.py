"""The log as a Spark stream: one task per partition, in offset order, beginning at the marks.

`log_stream` has the columns of Spark's Kafka source, for anybody's query. Our own queries read `packed_log_stream`,
which may carry many records in a row, and unpack it on the other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from admitone.core.errors import IntegrityError
from admitone.settings import Settings
from admitone.spark.folder_source import PACKED_RECORDS, folder_stream
from admitone.spark.kafka_source import PACKED_HEADERS, kafka_stream, with_headers
from admitone.spark.packing import unpack
from admitone.transport import open_transport
from admitone.transport.port import Topic, Transport

Begin = dict[Topic, list[int]]
"""The offset to read first, for each partition of a topic."""


def log_stream(
    spark: SparkSession,
    settings: Settings,
    topics: Sequence[str],
    starts: dict[str, dict[int, int]],
    max_per_trigger: int,
) -> DataFrame:
    """Return the log's topics as a stream that begins at the given next offsets, by topic name."""
    transport = open_transport(settings)
    begin = begin_at(transport, [transport.topic(name) for name in topics], starts)
    transport.close()
    return _stream(spark, settings, begin, max_per_trigger, packed=False)


def begin_at(
    transport: Transport, topics: Iterable[Topic], starts: dict[str, dict[int, int]]
) -> Begin:
    """Return where to begin: at the given next offsets, by topic name, or at the first that is there.

    The incarnation of each topic is fixed here: offsets of another one mean nothing.
    """
    return {
        topic: [
            _within(topic, number, starts.get(topic.name, {}).get(number, first), first, end)
            for number, (first, end) in enumerate(
                zip(transport.starts(topic), transport.ends(topic), strict=True)
            )
        ]
        for topic in topics
    }


def packed_log_stream(
    spark: SparkSession, settings: Settings, begin: Begin, max_per_trigger: int
) -> DataFrame:
    """Return topics as a stream in the shape that is cheapest to carry; `unpacked` reads any."""
    return _stream(spark, settings, begin, max_per_trigger, packed=True)


def counted_log_stream(
    spark: SparkSession, settings: Settings, begin: Begin, max_per_trigger: int
) -> DataFrame:
    """Return the same with only what counting reads, where that is cheaper to carry."""
    if settings.transport.kind == "kafka":
        return kafka_stream(spark, settings, begin, max_per_trigger, packed=True, counted=True)
    return packed_log_stream(spark, settings, begin, max_per_trigger)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a stream of any shape, in order."""
    for batch in batches:
        if PACKED_HEADERS in batch.schema.names:
            yield with_headers(batch)
        elif PACKED_RECORDS in batch.schema.names:
            for packed in batch.column(PACKED_RECORDS):
                yield from unpack(packed.as_buffer())
        else:
            yield batch


def _stream(
    spark: SparkSession, settings: Settings, begin: Begin, max_per_trigger: int, *, packed: bool
) -> DataFrame:
    if settings.transport.kind == "kafka":
        return kafka_stream(spark, settings, begin, max_per_trigger, packed=packed)
    return folder_stream(spark, settings, begin, max_per_trigger, packed=packed)


def _within(topic: Topic, partition: int, wanted: int, first: int, end: int) -> int:
    if wanted < first:
        raise IntegrityError(
            f"Partition {partition} of {topic.name!r} is needed from offset {wanted}, but begins at {first}:"
            f" up to {first - wanted} records were removed before they were read.",
            "restore them, or start a pipeline under another name to go on without them",
        )
    if wanted > end:
        raise IntegrityError(
            f"Partition {partition} of {topic.name!r} was read up to offset {wanted}, but ends at {end}: the log"
            " lost records, and what comes next would be taken for what was read.",
            "restore the log; or delete and create the topic, so that it is read from its beginning",
        )
    return wanted
