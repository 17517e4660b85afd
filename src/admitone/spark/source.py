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
from admitone.spark.folder_source import folder_stream
from admitone.spark.kafka_source import kafka_stream
from admitone.transport.open import open_transport
from admitone.transport.port import Topic


def log_stream(
    spark: SparkSession,
    settings: Settings,
    topics: Sequence[str],
    starts: dict[str, dict[int, int]],
    max_per_trigger: int,
) -> DataFrame:
    """Return the log's topics as a stream that begins at the given next offsets, by topic name.

    The incarnation of each topic is fixed here: when one is deleted or recreated, the stream fails instead of
    silently reading another topic's offsets.
    """
    return _stream(spark, settings, topics, starts, max_per_trigger, packed=False)


def packed_log_stream(
    spark: SparkSession,
    settings: Settings,
    topics: Sequence[str],
    starts: dict[str, dict[int, int]],
    max_per_trigger: int,
) -> DataFrame:
    """Return the same stream in the shape that is cheapest to carry; `unpacked` reads any."""
    return _stream(spark, settings, topics, starts, max_per_trigger, packed=True)


def unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a stream of either shape, in order."""
    for batch in batches:
        if "records" not in batch.schema.names:
            yield batch
            continue
        for packed in batch.column("records"):
            yield from pa.ipc.open_stream(packed.as_buffer())


def _stream(
    spark: SparkSession,
    settings: Settings,
    topics: Sequence[str],
    starts: dict[str, dict[int, int]],
    max_per_trigger: int,
    *,
    packed: bool,
) -> DataFrame:
    transport = open_transport(settings)
    begin = {}
    for topic in map(transport.topic, topics):
        wanted = starts.get(topic.name, {})
        begin[topic] = [
            _first_wanted(topic, number, wanted.get(number, earliest), earliest)
            for number, earliest in enumerate(transport.starts(topic))
        ]
    transport.close()
    if settings.transport.kind == "kafka":
        return kafka_stream(spark, settings, begin, max_per_trigger)
    return folder_stream(spark, settings, begin, max_per_trigger, packed=packed)


def _first_wanted(topic: Topic, partition: int, wanted: int, earliest: int) -> int:
    if wanted < earliest:
        raise IntegrityError(
            f"Partition {partition} of {topic.name!r} is needed from offset {wanted}, but begins at {earliest}:"
            f" {earliest - wanted} records were removed before they were read.",
            "restore them, or start a pipeline under another name to go on without them",
        )
    return wanted
