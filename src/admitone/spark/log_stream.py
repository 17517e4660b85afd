"""The log as a Spark stream: one task per partition, in offset order, beginning at the marks.

`log_stream` has the columns of Spark's Kafka source. The boundary and the analytics let it carry many records in a row,
and unpack them on the other side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from admitone.core.errors import IntegrityError
from admitone.settings import Settings
from admitone.spark.folder_source import PACKED_RECORDS, folder_stream
from admitone.spark.kafka_source import PACKED_HEADERS, handed_ends, kafka_stream, with_headers
from admitone.spark.packing import unpack
from admitone.transport.port import Topic, Transport

Begin = dict[Topic, list[int]]
"""The offset to read first, for each partition of a topic."""


def log_stream(
    spark: SparkSession,
    settings: Settings,
    begin: Begin,
    max_per_trigger: int,
    *,
    packed: bool = False,
    counted: bool = False,
) -> DataFrame:
    """Return topics of the log as a stream that begins at the given next offsets.

    Packed, it has the shape that is cheapest to carry, which `unpacked` reads; counted, it has only what counting
    reads, where that is cheaper still.
    """
    if settings.transport.kind == "kafka":
        return kafka_stream(spark, settings, begin, max_per_trigger, packed=packed, counted=counted)
    return folder_stream(spark, settings, begin, max_per_trigger, packed=packed)


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


def ends_of(settings: Settings, batch: DataFrame) -> dict[str, dict[int, int]]:
    """Return the next offset after what the tasks of a micro-batch are given, by topic and partition.

    Only on Kafka: there the last offsets of a partition may hold no record that would say so.
    """
    return handed_ends(batch) if settings.transport.kind == "kafka" else {}


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
