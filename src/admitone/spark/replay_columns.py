"""Replay filtering on any DataFrame that looks like Kafka's: what was written again is marked, or left out (RPL-2).

A batch DataFrame is judged by Spark itself, in one window function. A stream is judged by one state call for each
destination partition and micro-batch, never one for each record; its rows travel there as Arrow bytes, so that they
keep their types and their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import Any, Final

import orjson
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StringType, StructField, StructType

from admitone.analytics.admitted_records import stretches
from admitone.core.errors import ConfigurationError, ContractDrift, IntegrityError
from admitone.core.replay_filter import Kind, Reached, Upstream
from admitone.core.replay_filter import filter_replays as judge
from admitone.core.wire import OFFSET_BYTES, Header
from admitone.spark.metadata_columns import (
    header_of,
    is_metadata,
    long_of,
    offset_bytes_of,
    position_of,
    producer_bytes,
    source_partition_of,
    upstream_of,
)
from admitone.spark.packing import pack, unpack

REPLAY: Final = "replay"
FIRST_OFFSET = "first_offset"
_POSITION, _FIRST, _RECORDS = "replay_position", "replay_first", "replay_records"
_NEEDED: Final = ("key", "topic", "partition", "offset")
_NAMES: Final = pa.array([kind.name.lower() for kind in Kind])
_PACKED: Final = f"topic STRING, partition INT, {_RECORDS} BINARY"
_JUDGED: Final = f"{_RECORDS} BINARY"
_STATE: Final = "marks STRING"


def mark_replays(
    df: DataFrame,
    producers: Collection[int] | None = None,
    *,
    partitions: int | None = None,
    spans: bool = False,
) -> DataFrame:
    """Add a column `replay`: `new`, `replayed`, `unkeyed` (no key) or `foreign` (a key that is no stream metadata).

    The DataFrame has the columns key, topic, partition and offset; all others are passed along. Producers are the ids
    that are filtered by; without them every well-formed key is. Where a record has a header `position`, that
    counts instead of its key.

    Guarantee: of all records of one producer and source partition in one destination partition, only those above
    everything before them are new. For a stream this is remembered in Spark's checkpoint: delete it, and the first
    records of the next start are new again. (The pipeline itself keeps its marks with its decisions.) A stream's
    records leave grouped by destination partition, in offset order, and one micro-batch of a destination partition is
    held in memory.

    Marks are per destination partition, so a topic that is given more partitions sends what is replayed to
    places that never saw it. `partitions` makes that an error: it says how many partitions the topics have, when they
    are written by the source-partition partitioner, and a record that lies elsewhere ends the query. For topics
    partitioned in another way nothing in the records tells: compare their partitions with the broker's at every start.

    With `spans`, records are aggregates made by `aggregate_partitions`, and those that were counted in part
    before are `shifted`.
    """
    _check_columns(df, spans)
    announced = None if producers is None else sorted(set(producers), key=producer_bytes)
    position = position_of(df)
    if partitions is not None:
        position = _in_its_place(position, announced, partitions)
    marked = df.withColumn(_POSITION, position)
    if spans:
        header = long_of(header_of(Header.FIRST_OFFSET, OFFSET_BYTES))
        first = F.col(FIRST_OFFSET) if FIRST_OFFSET in df.columns else header
        marked = marked.withColumn(_FIRST, first.cast("bigint"))
    schema = StructType([*df.schema.fields, StructField(REPLAY, StringType())])
    if spans or df.isStreaming:
        return _marked_by_partition(marked, schema, announced)
    return _marked_batch(marked, announced).drop(_POSITION)


def filter_replays(
    df: DataFrame,
    producers: Collection[int] | None = None,
    *,
    strict: bool = False,
    partitions: int | None = None,
    spans: bool = False,
) -> DataFrame:
    """Leave out what was written before; `mark_replays` says how that is found out.

    Records without stream metadata of these producers pass, unless it is strict. A shifted span can be neither
    passed nor left out: it ends the query, and `mark_replays` shows it.
    """
    marked = mark_replays(df, producers, partitions=partitions, spans=spans)
    kept = F.col(REPLAY).isin(_kept(strict))
    if spans:
        shifted = IntegrityError(
            "An aggregate covers source offsets that were counted before, and others that were not.",
            "mark_replays(..., spans=True) shows it; have its producer aggregate from the mark on",
        )
        kept = F.when(F.col(REPLAY) == "shifted", _raised(shifted, "boolean")).otherwise(kept)
    return marked.where(kept).drop(REPLAY)


def _kept(strict: bool) -> list[str]:
    kinds = [Kind.NEW] if strict else [Kind.NEW, Kind.UNKEYED, Kind.FOREIGN]
    return [kind.name.lower() for kind in kinds]


def _check_columns(df: DataFrame, spans: bool) -> None:
    missing = [name for name in _NEEDED if name not in df.columns]
    if missing:
        raise ConfigurationError(
            f"Expected the columns {', '.join(_NEEDED)}, {', '.join(missing)} of them are not there.",
            "read with spark.read.format('kafka'), or name your columns like that source does",
        )
    if REPLAY in df.columns:
        raise ConfigurationError(f"There is a column {REPLAY!r} already.", "rename it before")
    if spans and FIRST_OFFSET not in df.columns and "headers" not in df.columns:
        raise ConfigurationError(
            f"A span begins where the column {FIRST_OFFSET} or the header {Header.FIRST_OFFSET} says: none is there.",
            "read with option includeHeaders",
        )


def _in_its_place(position: Column, announced: list[int] | None, partitions: int) -> Column:
    """Return the position of records that lie where their source partition belongs; end the query at any other."""
    expected = source_partition_of(position) % partitions
    misplaced = is_metadata(position, announced) & (expected != F.col("partition"))
    drift = ContractDrift(
        f"A record does not lie where its source partition belongs among {partitions} partitions: the number of"
        " partitions changed, or a producer writes with another partitioner.",
        "start again with a new checkpoint once everything written before the change is read",
    )
    return F.when(misplaced, _raised(drift, "binary")).otherwise(position)


def _raised(error: Exception, kind: str) -> Column:
    return F.raise_error(F.lit(str(error))).cast(kind)


def _marked_batch(df: DataFrame, announced: list[int] | None) -> DataFrame:
    position, offset = F.col(_POSITION), offset_bytes_of(F.col(_POSITION))
    known = is_metadata(position, announced)
    before = (
        Window.partitionBy("topic", "partition", F.when(known, upstream_of(position)))
        .orderBy("offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    highest = F.max(F.when(known, offset)).over(before)
    kind = (
        F.when(position.isNull(), "unkeyed")
        .when(~known, "foreign")
        .when(offset <= highest, "replayed")
        .otherwise("new")
    )
    return df.withColumn(REPLAY, kind)


def _marked_by_partition(
    df: DataFrame, schema: StructType, announced: list[int] | None
) -> DataFrame:
    """Let Python judge all records of a destination partition in one call."""
    places = df.mapInArrow(_packed_by_partition, _PACKED).groupBy("topic", "partition")
    if df.isStreaming:
        judged = places.applyInPandasWithState(
            partial(_next_batch, announced), _JUDGED, _STATE, "append", GroupStateTimeout.NoTimeout
        )
    else:
        judged = places.applyInArrow(lambda packed: _whole(announced, packed), _JUDGED)
    return judged.mapInArrow(_unpacked, schema)


def _next_batch(
    announced: list[int] | None,
    _place: tuple[Any, ...],
    frames: Iterator[pd.DataFrame],
    state: GroupState,
) -> Iterator[pd.DataFrame]:
    """Judge a micro-batch by what the state remembers."""
    rows = orjson.loads(state.get[0]) if state.exists else []
    marks = {(producer, of): Reached(*reached) for producer, of, *reached in rows}
    packed = [value for frame in frames for value in frame[_RECORDS]]
    judged, marks = _judged(packed, announced, marks)
    rows = [[*upstream, *reached] for upstream, reached in marks.items()]
    state.update((orjson.dumps(rows).decode(),))
    yield pd.DataFrame({_RECORDS: judged})


def _whole(announced: list[int] | None, packed: pa.Table) -> pa.Table:
    """Judge everything there is."""
    judged, _ = _judged(packed[_RECORDS].to_pylist(), announced, {})
    return pa.table({_RECORDS: judged})


def _judged(
    packed: Iterable[bytes], announced: list[int] | None, marks: dict[Upstream, Reached]
) -> tuple[list[bytes], dict[Upstream, Reached]]:
    records = pa.Table.from_batches([batch for value in packed for batch in unpack(value)])
    records = records.sort_by("offset")
    added = [name for name in (_POSITION, _FIRST) if name in records.column_names]
    firsts = records[_FIRST].combine_chunks() if _FIRST in added else None
    found = judge(records[_POSITION], announced, marks, firsts)
    kinds = _NAMES.take(pa.array(found.kinds))
    records = records.drop_columns(added).append_column(REPLAY, kinds).combine_chunks()
    return [value for batch in records.to_batches() for value in pack(batch)], found.marks(marks)


def _packed_by_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a few rows for each destination partition that a batch holds."""
    for batch in batches:
        for topic, partition, rows in stretches(batch):
            packed = pack(batch.filter(pa.array(rows)))
            yield pa.RecordBatch.from_pydict(
                {
                    "topic": [topic] * len(packed),
                    "partition": pa.array([partition] * len(packed), pa.int32()),
                    _RECORDS: packed,
                }
            )


def _unpacked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for packed in batch.column(_RECORDS):
            yield from unpack(packed.as_buffer())
