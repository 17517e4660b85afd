"""The streaming door: a Spark query that carries deliveries to the boundary, or records to a dedup pipeline.

Each source partition is one task, in offset order, without a shuffle; the work happens in Arrow batches inside
`mapInArrow`, and the ledger decides. Spark's own checkpoint is never trusted: the query starts at the marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from admitone.boundary import open_boundary, open_dedup
from admitone.boundary.admission import Boundary, Writable
from admitone.boundary.batches import Batches, Begun, note_read
from admitone.boundary.partition import OwnedPartition
from admitone.core.errors import AdmitoneError, ContractDrift, IntegrityError
from admitone.evidence import open_evidence_writer
from admitone.infra.memory import keep_freed_memory
from admitone.settings import Settings
from admitone.spark.checkpoints import fresh_checkpoint
from admitone.spark.failures import told_in_a_line
from admitone.spark.log_stream import begin_at, ends_of, log_stream, unpacked
from admitone.spark.query_companion import QueryCompanion, start_query
from admitone.transport.port import Topic, Transport
from admitone.transport.topic_contract import (
    dedup_source,
    raw_topic,
    same_incarnation,
    without_append_time,
)

Open = Callable[[Settings, Writable | None], Boundary]
_SUMMARY = "block_id BIGINT, deliveries BIGINT, admitted BIGINT"
BYTES_AT_ONCE = 64 << 20


@dataclass(frozen=True, slots=True)
class Flow:
    """What a query carries: from which topic, to which boundary."""

    query: str
    open: Open
    source: Callable[[Settings, Transport], Topic]


ADMISSION: Final = Flow("boundary", open_boundary, raw_topic)
DEDUP: Final = Flow("dedup", open_dedup, dedup_source)


def boundary_query(
    spark: SparkSession, settings: Settings, trigger: str = "500 milliseconds"
) -> StreamingQuery:
    """Start the admission of the raw topic."""
    return flow_query(spark, settings, ADMISSION, trigger)


def dedup_query(
    spark: SparkSession, settings: Settings, trigger: str = "500 milliseconds"
) -> StreamingQuery:
    """Start the dedup pipeline on the ledger: each key of its source topic once to its destination (DED-6)."""
    return flow_query(spark, settings, DEDUP, trigger)


def flow_query(spark: SparkSession, settings: Settings, flow: Flow, trigger: str) -> StreamingQuery:
    """Start a query: take a new generation, resolve what the last one left, then read from the marks."""
    boundary = flow.open(settings, None)
    topic = flow.source(settings, boundary.transport)
    database = boundary.ledger.database()
    generation = boundary.start(topic)
    boundary.expire()
    begin = begin_at(boundary.transport, [topic], {topic.name: next_offsets(boundary, topic)})
    note_read(boundary, topic, dict(enumerate(begin[topic])), database)
    stream = log_stream(spark, settings, begin, settings.transport.max_per_trigger, packed=True)
    checkpoint = fresh_checkpoint(settings.resolve(settings.spark.checkpoints), flow.query)
    companion = Deciding(SourceTopic(boundary.transport, topic), boundary)
    work = admit_batch(settings, flow, boundary, companion, generation, database, checkpoint)
    return start_query(flow.query, stream, work, checkpoint, trigger, companion)


def next_offsets(boundary: Boundary, topic: Topic) -> dict[int, int]:
    """Return the offset from which each partition goes on, where it was read before."""
    found = {info.source: info.next_offset for info in boundary.ledger.sources()}
    offsets = {number: found[boundary.source(topic, number)] for number in range(topic.partitions)}
    return {number: offset for number, offset in offsets.items() if offset is not None}


def admit_batch(
    settings: Settings,
    flow: Flow,
    boundary: Boundary,
    companion: Deciding,
    generation: int,
    database: str,
    checkpoint: Path,
) -> Callable[[DataFrame, int], None]:
    """Return the function that decides one micro-batch, with one Spark action unless the ledger moves."""
    evidence = open_evidence_writer(settings, boundary.ledger, boundary.options.pipeline)
    topic = companion.raw.topic
    batches = Batches(boundary, topic, generation, database)

    def admit(batch: DataFrame, _batch_id: int) -> None:
        changed = companion.raw.error()
        if changed is not None:
            raise changed
        batches.decide(
            partial(collected, batch), lambda: ends_of(settings, batch).get(topic.name, {})
        )
        companion.evidence.next(
            partial(boundary.upkeep, evidence, settings.evidence.journal_retention)
        )

    def collected(batch: DataFrame, begun: Begun) -> None:
        # A checkpoint folder is this query's alone, so its name stands for everything since the query began.
        task = partial(
            admit_partition, settings, flow.open, topic, begun, boundary.writable, checkpoint.name
        )
        with told_in_a_line():
            batch.mapInArrow(task, _SUMMARY).collect()

    return admit


class SourceTopic:
    """The incarnation of the raw topic that a query reads, from its start to its end."""

    def __init__(self, transport: Transport, topic: Topic) -> None:
        self._transport = transport
        self.topic = topic

    def error(self) -> AdmitoneError | None:
        """Return what to say when it is no longer the same: offsets of another topic mean nothing."""
        name, partitions = self.topic.name, self.topic.partitions
        found = self._transport.describe([name]).get(name)
        if found is None or not same_incarnation(found.topic, self.topic.topic_id):
            return IntegrityError(
                f"Topic {name!r} was {'deleted' if found is None else 'recreated'} while the pipeline ran: what was"
                " not decided by then is gone.",
                "run again: a new topic is read from its beginning",
            )
        if found.topic.partitions != partitions:
            return ContractDrift(
                f"Topic {name!r} has {found.topic.partitions} partitions, it had {partitions} when the"
                " pipeline began: what arrives in the others is not read.",
                f"run again; where it is the raw topic, set raw_partitions = {found.topic.partitions} in [transport]",
            )
        if not found.append_time:
            return without_append_time(name)
        return None


class Deciding(QueryCompanion):
    """The raw topic must stay as it is, the log this ledger's, and evidence is written."""

    def __init__(self, raw: SourceTopic, boundary: Boundary) -> None:
        self.raw = raw
        self.evidence = Background()
        self._boundary = boundary

    def error(self) -> BaseException | None:
        """Return what is wrong with any of these."""
        return self.raw.error() or self._owner_error() or self.evidence.error()

    def _owner_error(self) -> AdmitoneError | None:
        # Asked beside the batches, too: a log forgets whose it is when nothing comes for a week.
        try:
            _ = self._boundary.writable
        except AdmitoneError as error:
            return error
        return None


class Background:
    """One task at a time beside the batches; its error ends the batch that asks for the next."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1)
        self._running: Future[None] | None = None

    def next(self, task: Callable[[], None]) -> None:
        """Wait for the task before, then start this one."""
        if self._running is not None:
            self._running.result()
        self._running = self._worker.submit(task)

    def error(self) -> BaseException | None:
        """Return what ended the last task."""
        if self._running is None or not self._running.done():
            return None
        return self._running.exception()


def admit_partition(
    settings: Settings,
    open_it: Open,
    topic: Topic,
    begun: Begun,
    writable: Writable,
    session: str,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Do one task: gather the Arrow batches of its partition into blocks and admit them."""
    keep_freed_memory()
    boundary = open_it(settings, writable)
    owned: OwnedPartition | None = None
    for records in gathered(unpacked(batches), settings.pipeline.max_block):
        if owned is None:
            number = records["partition"][0].as_py()
            begin = begun.begins.get(number)
            owned = boundary.own(topic, number, begun.generation, session, begin, begun.database)
        for block in owned.admit(records):
            yield pa.RecordBatch.from_pydict(
                {
                    "block_id": [block.block_id],
                    "deliveries": [block.deliveries],
                    "admitted": [block.admitted],
                }
            )


def gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Join small batches until they make a block, by rows or by bytes; a large one stays by itself."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if waiting and _bytes_of(waiting) + batch.nbytes > BYTES_AT_ONCE:
            yield pa.Table.from_batches(waiting)
            waiting = []
        waiting.append(batch)
        if sum(piece.num_rows for piece in waiting) >= rows:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if any(piece.num_rows for piece in waiting):
        yield pa.Table.from_batches(waiting)


def _bytes_of(batches: list[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in batches)
