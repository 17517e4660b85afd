"""Deduplication by Spark's own state, for windows of minutes to hours (DED-8).

Spark's operator drops a row that is older than the watermark without a word. No expression can tell the watermark,
but Spark writes that of each batch into the checkpoint before the batch begins; so where the checkpoint is known, every
task reads it there, and rows that would be dropped come out with a reason instead. They ride through the
operator under a key of their own: two branches of one plan would read the source twice, and not in step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import TimestampType

from admitone.core.canonical import Refused, parse_strict
from admitone.core.decisions import Reason
from admitone.core.durations import parse_duration_ms
from admitone.core.errors import ConfigurationError, IntegrityError
from admitone.core.keys import KeyRule, KeyStrategy
from admitone.core.records import moment_of
from admitone.core.wire import naming_headers, said_outside

KEY: Final = "dedup_key"
REASON: Final = "dedup_reason"
TIME: Final = "dedup_time"
_WATERMARK, _MOMENT, _RIDER = "dedup_watermark", "dedup_moment", "dedup_rider"
_KEYED, _HEADERS = "dedup_keyed", "headers"


def deduplicate(
    df: DataFrame,
    key: str | Sequence[str],
    within: str,
    event_time: str = "timestamp",
    *,
    checkpoint: str | Path | None = None,
    future_tolerance: str = "1h",
) -> DataFrame:
    """Keep one row of each key; a repeat less than `within` (`10m`, `2h`) away from it in event time is dropped.

    This is weaker than the ledger. What it remembers lies in the query's checkpoint: without it, or with an older one,
    keys are forgotten and come out again. Of rows that share a key in one batch an arbitrary one is kept. Payloads are
    not compared. A repeat further away may be dropped too. Every batch walks the whole state to find what has
    expired. State is in RocksDB only if the session says so: `spark.rocksdb.use_rocksdb`.

    Late rows, those at or before the watermark (the newest event time of earlier batches minus `within`), are dropped
    by Spark and only counted, unless `checkpoint` names the folder the query is started with. Then every row comes out
    that is not a repeat, with a column `dedup_reason`: null where it was kept, else why it was not judged. That is
    TOO_OLD, TOO_FAR_IN_FUTURE, TIMESTAMP_INVALID (no event time), IDENTITY_INVALID (no key), or what the column said
    before. An event time a little ahead of the batch's clock counts as now, so that a fast clock makes nobody late.
    """
    keys = [key] if isinstance(key, str) else list(key)
    delay, ahead = _interval("within", within), _interval("future_tolerance", future_tolerance)
    _check_columns(df, keys, event_time)
    if checkpoint is None:
        return df.withWatermark(event_time, delay).dropDuplicatesWithinWatermark(keys)
    if not df.isStreaming:
        raise ConfigurationError("Only a stream has a checkpoint.", "leave checkpoint out")
    return (
        _judged(df, keys, event_time, checkpoint, ahead)
        .withWatermark(_MOMENT, delay)
        .dropDuplicatesWithinWatermark([*keys, _RIDER])
        .drop(_WATERMARK, _MOMENT, _RIDER)
    )


def keyed(
    df: DataFrame, rule: KeyRule, run_id: str, value: str = "value", time_field: str = ""
) -> DataFrame:
    """Add each record's `dedup_key`, or the `dedup_reason` why it has none; with a time field, its `dedup_time` too.

    What its envelope does not say is taken from its headers, where the stream has them, and then from `run_id`.
    """
    named = rule.strategy is KeyStrategy.IDENTITY and _HEADERS in df.columns
    columns = {KEY: pa.string(), REASON: pa.string()}
    if time_field:
        columns[TIME] = pa.timestamp("ms", tz="UTC")

    def read(values: pa.Array, headers: pa.Array) -> pa.Array:
        outside = naming_headers(headers) if named else {}
        found = [
            _read(raw, rule, said_outside(outside.get(row, {}), run_id), time_field)
            for row, raw in enumerate(values.to_pylist())
        ]
        arrays = zip(*found, strict=True) if found else [()] * len(columns)
        return pa.StructArray.from_arrays(
            [pa.array(array, kind) for array, kind in zip(arrays, columns.values(), strict=False)],
            list(columns),
        )

    spelled = f"{KEY} STRING, {REASON} STRING" + (f", {TIME} TIMESTAMP" if time_field else "")
    made = F.arrow_udf(read, spelled)(
        F.col(value).cast("binary"), F.col(_HEADERS) if named else F.lit(None)
    )
    return df.withColumn(_KEYED, made).select(
        *df.columns, *(f"{_KEYED}.{name}" for name in columns)
    )


def _read(
    raw: bytes | None, rule: KeyRule, outside: Mapping[str, str | None], time_field: str
) -> tuple[str | None, str | None, int | None]:
    """Return a record's key, why it has none, and its time."""
    if raw is None:
        return None, Reason.NOT_JSON, None
    try:
        document = parse_strict(raw)
    except Refused as refused:
        return None, refused.reason, None
    key = rule.key_of(document, outside)
    if isinstance(key, Reason):
        return None, key, None
    return key.text, None, moment_of(document, time_field) if time_field else None


def _check_columns(df: DataFrame, keys: list[str], event_time: str) -> None:
    types = dict(zip(df.columns, (field.dataType for field in df.schema), strict=True))
    missing = [name for name in (*keys, event_time) if name not in types]
    if missing or not keys:
        raise ConfigurationError(
            f"Expected columns {', '.join((*keys, event_time))}, got {', '.join(df.columns)}.",
            "name columns of this stream: deduplicate(df, key, within, event_time)",
        )
    if not isinstance(types[event_time], TimestampType):
        raise ConfigurationError(
            f"Expected {event_time} to be a timestamp, got {types[event_time].simpleString()}.",
            f"cast it first: to_timestamp({event_time})",
        )


def _interval(name: str, duration: str) -> str:
    try:
        return f"{parse_duration_ms(duration)} milliseconds"
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}.", f'{name}="10m"') from error


def _judged(
    df: DataFrame, keys: list[str], event_time: str, checkpoint: str | Path, ahead: str
) -> DataFrame:
    """Add why a row cannot be deduplicated, and what the operator shall take for its time and identity."""
    time, watermark, reason = F.col(event_time), F.col(_WATERMARK), F.col(REASON)
    # The batch's time, not the moment's: it is written to the checkpoint and stays the same when the batch runs again.
    now = F.current_timestamp()
    found = (
        F.when(
            F.greatest(*(F.col(name).isNull() for name in keys), F.lit(False)),
            Reason.IDENTITY_INVALID.value,
        )
        .when(time.isNull(), Reason.TIMESTAMP_INVALID.value)
        .when(time > now + F.expr(f"INTERVAL {ahead}"), Reason.TOO_FAR_IN_FUTURE.value)
        .when(time <= watermark, Reason.TOO_OLD.value)
    )
    after_watermark = watermark + F.expr("INTERVAL 1 MILLISECOND")
    return (
        df.withColumn(_WATERMARK, _watermark_column(checkpoint, time))
        .withColumn(REASON, F.coalesce(reason, found) if REASON in df.columns else found)
        .withColumn(_RIDER, F.when(reason.isNotNull(), F.uuid()))
        .withColumn(_MOMENT, F.when(reason.isNull(), F.least(time, now)).otherwise(after_watermark))
    )


def _watermark_column(checkpoint: str | Path, times: Column) -> Column:
    """Return a column with the watermark of the row's batch; the operator judges by this one or one before it."""
    folder = str(checkpoint) if "://" in str(checkpoint) else str(Path(checkpoint).resolve())

    def watermark(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        moment = pa.scalar(batch_watermark(folder) * 1000, pa.timestamp("us", tz="UTC"))
        for batch in batches:
            yield pa.repeat(moment, len(batch))

    return F.arrow_udf(watermark, "timestamp").asNondeterministic()(times)


def batch_watermark(folder: str) -> int:
    """Return the watermark of the batch this task belongs to, in milliseconds, from the query's checkpoint."""
    import fsspec

    task = TaskContext.get()
    batch = task.getLocalProperty("streaming.sql.batchId") if task else None
    query = task.getLocalProperty("sql.streaming.queryId") if task else None
    store, path = fsspec.core.url_to_fs(folder)
    try:
        known = json.loads(store.cat_file(f"{path}/metadata"))["id"]
        noted = store.cat_file(f"{path}/offsets/{batch}").splitlines()
        moment = json.loads(noted[1])["batchWatermarkMs"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise IntegrityError(
            f"Expected the watermark of batch {batch} in {folder}, got {type(error).__name__}.",
            "start the query with the checkpointLocation that deduplicate was given",
        ) from error
    if known != query:
        raise IntegrityError(
            f"{folder} is the checkpoint of another query, {known}.",
            "start the query with the checkpointLocation that deduplicate was given",
        )
    return int(moment)
