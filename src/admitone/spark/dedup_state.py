"""The dedup pipeline on engine state: Spark's operator remembers, and its checkpoint is all there is (DED-8).

It carries records from the same source to the same destination as the pipeline on the ledger, under a weaker promise,
and puts what it cannot judge into a topic of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from admitone.core.keys import KeyRule
from admitone.core.wire import Header
from admitone.settings import Settings
from admitone.spark.boundary_query import SourceTopic
from admitone.spark.checkpoints import read_figures, state_checkpoint, write_figures
from admitone.spark.deduplicate import KEY, REASON, TIME, deduplicate, keyed
from admitone.spark.failures import told_in_a_line
from admitone.spark.log_stream import begin_at, log_stream
from admitone.spark.query_companion import QueryCompanion, start_query
from admitone.spark.rocksdb import state_metrics, use_rocksdb
from admitone.transport import open_transport
from admitone.transport.headers import after_headers
from admitone.transport.port import HEADERS_TYPE, OUTGOING_SCHEMA, Transport
from admitone.transport.topic_contract import (
    dedup_contracts,
    dedup_source,
    late_contract,
    must_be_as_agreed,
)

GUARANTEE: Final = (
    "engine state is weaker than the ledger: without its checkpoint every key is forgotten and comes out again; after a"
    " crash the last batch may be written twice; of records that share a key in one batch any one may be kept, and the"
    " order of records is not"
)
_COUNTS: Final = "kept BIGINT, late BIGINT"
_SUMMED: Final = (
    "dropped_duplicates", "dropped_late", "evicted", "eviction_ms", "commit_ms", "bytes_copied",
)  # fmt: skip
_LATEST: Final = ("rows", "bytes_in_memory", "bytes_on_disk")


def state_dedup_query(
    spark: SparkSession, settings: Settings, trigger: str = "500 milliseconds"
) -> StreamingQuery:
    """Start the dedup pipeline on engine state, or go on from its checkpoint."""
    transport = open_transport(settings)
    topic = dedup_source(settings, transport)
    _must_have_topics(settings, transport)
    use_rocksdb(spark, settings.dedup.state)
    checkpoint = state_checkpoint(settings, topic)
    checkpoint.mkdir(parents=True, exist_ok=True)
    begin = begin_at(transport, [topic], {})
    stream = log_stream(spark, settings, begin, settings.transport.max_per_trigger)
    records = judged(stream, settings, checkpoint)
    companion = Remembering(SourceTopic(transport, topic), checkpoint)
    work = partial(write_batch, settings, companion)
    return start_query("deduplicate", records, work, checkpoint, trigger, companion)


class Remembering(QueryCompanion):
    """The source must stay as it is; what the query says about itself is kept over all its starts (DED-9)."""

    def __init__(self, raw: SourceTopic, checkpoint: Path) -> None:
        self._raw = raw
        self._checkpoint = checkpoint
        self._batch = -1
        names = ("kept", "late", *_LATEST, *_SUMMED)
        known = cast(dict[str, int], read_figures(checkpoint))
        self._numbers = {name: known.get(name, 0) for name in names}

    def error(self) -> BaseException | None:
        """Return what is wrong with the source."""
        return self._raw.error()

    def count(self, kept: int, late: int) -> None:
        """Add what a batch wrote."""
        self._numbers["kept"] += kept
        self._numbers["late"] += late

    def look(self, query: StreamingQuery) -> None:
        """Add what the batches since the last look did to the state, and leave the figures where others find them."""
        for progress in query.recentProgress:
            # A notice that there was no batch repeats the numbers of the one before.
            if progress["batchId"] > self._batch and "addBatch" in progress["durationMs"]:
                self._batch = progress["batchId"]
                found = asdict(state_metrics(progress))
                self._numbers |= {name: found[name] for name in _LATEST}
                for name in _SUMMED:
                    self._numbers[name] += found[name]
        write_figures(self._checkpoint, self._numbers)

    def await_last(self, query: StreamingQuery) -> None:
        """Wait until the last batch is in the query's progress too."""
        query.processAllAvailable()


def judged(stream: DataFrame, settings: Settings, checkpoint: Path) -> DataFrame:
    """Return the records of a stream that are no duplicates, those that cannot be judged with their reason."""
    dedup = settings.dedup
    rule = KeyRule.of(dedup.key, dedup.key_fields)
    records = keyed(stream, rule, settings.pipeline.run_id, time_field=dedup.time_field)
    return deduplicate(
        records,
        KEY,
        f"{dedup.retention}ms",
        TIME if dedup.time_field else "timestamp",
        checkpoint=checkpoint,
        future_tolerance=f"{settings.pipeline.future_tolerance}ms",
    )


def write_batch(
    settings: Settings, companion: Remembering, batch: DataFrame, _batch_id: int
) -> None:
    """Write one micro-batch, with exactly one Spark action."""
    with told_in_a_line():
        written = batch.mapInArrow(partial(write_partition, settings), _COUNTS).collect()
    companion.count(sum(row.kept for row in written), sum(row.late for row in written))


def write_partition(
    settings: Settings, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Append the rows of one task, in one transaction, to where they belong."""
    waiting = [batch for batch in batches if batch.num_rows]
    if not waiting:
        return
    records = pa.Table.from_batches(waiting)
    late = records[REASON].is_valid()
    parts = {
        settings.dedup.destination: _outgoing(records.filter(pc.invert(late)), settings),
        settings.dedup.late: _with_reason(records.filter(late), settings),
    }
    transport = open_transport(settings)
    name = f"deduplicate:{settings.dedup_pipeline}:{TaskContext.get().partitionId()}"
    epoch = transport.init_producer(name)
    transport.append(name, epoch, {t: part for t, part in parts.items() if part.num_rows})
    kept, late_ones = (part.num_rows for part in parts.values())
    yield pa.RecordBatch.from_pydict({"kept": [kept], "late": [late_ones]})


def _outgoing(records: pa.Table, settings: Settings) -> pa.Table:
    """Return records as they came, each for the partition of the same number."""
    partitions = records["partition"].to_numpy() % settings.dedup.partitions
    columns = [pa.array(partitions, pa.int32()), *(records[n] for n in ("key", "value", "headers"))]
    return pa.table(columns, names=OUTGOING_SCHEMA.names).cast(OUTGOING_SCHEMA)


def _with_reason(records: pa.Table, settings: Settings) -> pa.Table:
    """Return records that could not be judged, with the reason as their last header."""
    leaving = _outgoing(records, settings)
    reasons = records[REASON].cast(pa.binary()).combine_chunks()
    named = pa.StructArray.from_arrays([reasons], [Header.REASON])
    index = leaving.schema.get_field_index("headers")
    return after_headers(
        records["headers"].cast(HEADERS_TYPE), leaving.set_column(index, "headers", named)
    )


def _must_have_topics(settings: Settings, transport: Transport) -> None:
    """Create what is written to where it is missing; refuse what is not as agreed."""
    for contract in (*dedup_contracts(settings), late_contract(settings)):
        must_be_as_agreed(contract, settings, transport, "written")
