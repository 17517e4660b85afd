"""The streaming door: a Spark query that carries deliveries to the boundary.

Each source partition is one task, in offset order, without a shuffle; the work happens in Arrow batches inside
`mapInArrow`, and the ledger decides. Spark's own checkpoint is never trusted: the query starts at the marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from admitone.boundary.admission import Boundary, wall_clock
from admitone.boundary.open import create_topics, open_boundary
from admitone.boundary.partition import OwnedPartition
from admitone.core.errors import IntegrityError
from admitone.evidence.open import open_evidence
from admitone.settings import Settings
from admitone.spark.checkpoints import fresh_checkpoint
from admitone.spark.source import packed_log_stream, unpacked
from admitone.transport.port import Topic

QUERY = "boundary"
_SUMMARY = "block_id BIGINT, deliveries BIGINT, admitted BIGINT"
_BYTES_AT_ONCE = 64 << 20


def boundary_query(
    spark: SparkSession, settings: Settings, trigger: str = "500 milliseconds"
) -> StreamingQuery:
    """Start the query: take a new generation, resolve what the last one left, then read from the marks."""
    boundary = open_boundary(settings)
    topic = create_topics(settings, boundary.transport)
    generation = boundary.start(topic)
    boundary.ledger.expire_segments(settings.dedup.retention)
    stream = packed_log_stream(
        spark,
        settings,
        topics=[topic.name],
        starts={topic.name: next_offsets(boundary, topic)},
        max_per_trigger=settings.transport.max_per_trigger,
    )
    checkpoint = fresh_checkpoint(settings.resolve(settings.spark.checkpoints), QUERY)
    beside = Background()
    query = (
        stream.writeStream.queryName(QUERY)
        .foreachBatch(admit_batch(settings, topic, generation, beside))
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=trigger)
        .start()
    )
    query.beside = beside
    return query


def next_offsets(boundary: Boundary, topic: Topic) -> dict[int, int]:
    """Return the offset after each partition's mark, where there is one."""
    marks = {
        partition: boundary.ledger.mark(boundary.source(topic, partition)).offset
        for partition in range(topic.partitions)
    }
    return {partition: offset + 1 for partition, offset in marks.items() if offset >= 0}


def admit_batch(
    settings: Settings, topic: Topic, generation: int, beside: Background
) -> Callable[[DataFrame, int], None]:
    """Return the function that decides one micro-batch, with exactly one Spark action."""
    boundary = open_boundary(settings)
    evidence = open_evidence(settings, boundary.ledger)

    def admit(batch: DataFrame, _batch_id: int) -> None:
        present = boundary.transport.topic(topic.name)
        if present.topic_id != topic.topic_id:
            raise IntegrityError(
                f"Topic {topic.name!r} was recreated while the pipeline ran.",
                "run again: the new topic is read from its beginning",
            )
        boundary.recover(generation)
        batch.mapInArrow(admit_partition(settings, topic, generation), _SUMMARY).collect()
        beside.next(write_evidence_and_expire)

    def write_evidence_and_expire() -> None:
        evidence.write_pending(wall_clock())
        boundary.ledger.expire_journal(wall_clock() - settings.evidence.journal_retention)
        boundary.ledger.expire_segments(settings.dedup.retention)

    return admit


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
        """Return what ended the last task, so that nobody has to wait for a next batch to hear of it."""
        if self._running is None or not self._running.done():
            return None
        return self._running.exception()


def admit_partition(
    settings: Settings, topic: Topic, generation: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what one task does with its partition: gather Arrow batches into blocks and admit them."""

    def admit(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        boundary = open_boundary(settings)
        owned: OwnedPartition | None = None
        for records in _gathered(unpacked(batches), settings.pipeline.max_block):
            if owned is None:
                owned = boundary.own(topic, records["partition"][0].as_py(), generation)
            for block in owned.admit(records):
                yield pa.RecordBatch.from_pydict(
                    {
                        "block_id": [block.block_id],
                        "deliveries": [block.deliveries],
                        "admitted": [block.admitted],
                    }
                )

    return admit


def _gathered(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Join small batches until they make a block, by rows or by bytes."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if (
            sum(piece.num_rows for piece in waiting) >= rows
            or sum(piece.nbytes for piece in waiting) >= _BYTES_AT_ONCE
        ):
            yield pa.Table.from_batches(waiting)
            waiting = []
    if any(piece.num_rows for piece in waiting):
        yield pa.Table.from_batches(waiting)
