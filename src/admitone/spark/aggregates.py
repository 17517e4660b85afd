"""Partition-local aggregates that carry stream metadata, so that their replays can be found too (RPL-7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from admitone.core.errors import ConfigurationError
from admitone.core.wire import Header
from admitone.spark.metadata_columns import metadata_key, offset_bytes
from admitone.spark.replay_columns import FIRST_OFFSET

LAST_OFFSET: Final = "last_offset"
GROUPS: Final = "groups"
_TOPICS: Final = "aggregated_topics"
_SPAN: Final = ("partition", FIRST_OFFSET, LAST_OFFSET, _TOPICS)


def aggregate_partitions(
    df: DataFrame, *aggregates: Column, producer: int, by: Sequence[str] = ()
) -> DataFrame:
    """Aggregate one micro-batch, each source partition for itself; use it inside `foreachBatch`.

    The rows are those of one topic, with their columns topic, partition and offset, and `producer` is the id for what
    is made of it. The result has one row for each partition: the aggregates, the source partition, the lowest and the
    highest offset that went into it (`first_offset`, `last_offset`), a `key` with the highest as stream metadata, and
    `headers` with the lowest. With `by`, the aggregates of each group are in the array `groups`: what is written
    in one piece is replayed in one piece, and only so can a single key stand for it.

    Write key, headers and a value made of the rest; `mark_replays(..., spans=True)` reads it. A producer that is
    restarted and cuts its batches elsewhere then makes spans that overlap what was counted: these are found, and never
    counted twice.
    """
    if df.isStreaming:
        raise ConfigurationError(
            "A stream's groups go on from batch to batch; aggregates of one micro-batch are wanted.",
            "call it inside foreachBatch",
        )
    if not aggregates:
        raise ConfigurationError("There is nothing to aggregate.", "F.count('*').alias('count')")
    span = (
        F.min("offset").alias(FIRST_OFFSET),
        F.max("offset").alias(LAST_OFFSET),
        F.collect_set("topic").alias(_TOPICS),
    )
    made = df.groupBy("partition", *by).agg(*span, *aggregates)
    if by:
        rest = [name for name in made.columns if name not in _SPAN]
        made = made.groupBy("partition").agg(
            F.min(FIRST_OFFSET).alias(FIRST_OFFSET),
            F.max(LAST_OFFSET).alias(LAST_OFFSET),
            F.array_distinct(F.flatten(F.collect_list(_TOPICS))).alias(_TOPICS),
            F.sort_array(F.collect_list(F.struct(*rest))).alias(GROUPS),
        )
    return (
        made.withColumn("key", _of_one_topic(metadata_key(producer, offset=LAST_OFFSET)))
        .withColumn("headers", _headers())
        .drop(_TOPICS)
    )


def _of_one_topic(key: Column) -> Column:
    several = ConfigurationError(
        "Rows of several topics came together: offsets of different topics cannot share a producer id.",
        "aggregate each topic for itself",
    )
    refused = F.raise_error(F.lit(str(several))).cast("binary")
    return F.when(F.size(_TOPICS) > 1, refused).otherwise(key)


def _headers() -> Column:
    first = offset_bytes(FIRST_OFFSET).alias("value")
    return F.array(F.struct(F.lit(Header.FIRST_OFFSET).alias("key"), first))
