"""The counting query: admitted records to sketches, one store transaction per micro-batch.

    admitted log -> count_batches -> shuffle by minute and list -> build_deltas -> commit

Spark's own checkpoint is never trusted: the query starts at the store's marks, in an empty folder,
and a batch that was counted before is recognised by them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from admitone.analytics.batches import gather_batch
from admitone.analytics.counting import CountingPlan, build_deltas, count_batches
from admitone.analytics.open import counting_parameters, item_rules, open_sketch_store
from admitone.analytics.port import SketchStore
from admitone.boundary.open import create_topics
from admitone.core.errors import IntegrityError
from admitone.faults import crash_point
from admitone.settings import Settings
from admitone.spark.checkpoints import fresh_checkpoint
from admitone.spark.source import packed_log_stream, unpacked
from admitone.transport.open import open_transport

QUERY = "analytics"
TopicIds = Callable[[], dict[str, str]]
"""Returns the id of each admitted topic's present incarnation, by name."""

_PARTIALS = "kind STRING, name STRING, minute BIGINT, payload BINARY"
_DELTAS = "kind STRING, name STRING, minute BIGINT, sketch BINARY, summary BINARY, meta BINARY"


def analytics_query(
    spark: SparkSession, settings: Settings, trigger: str = "500 milliseconds"
) -> StreamingQuery:
    """Start the query from the store's marks."""
    transport = open_transport(settings)
    create_topics(settings, transport)
    names = [entry.topic for entry in settings.topics]

    def topic_ids() -> dict[str, str]:
        return {name: transport.topic(name).topic_id for name in names}

    store = open_sketch_store(settings)
    stream = packed_log_stream(
        spark,
        settings,
        topics=names,
        starts=next_offsets(store, topic_ids()),
        max_per_trigger=settings.topk.max_per_trigger,
    )
    checkpoint = fresh_checkpoint(settings.resolve(settings.spark.checkpoints), QUERY)
    return (
        stream.writeStream.queryName(QUERY)
        .foreachBatch(count_into(store, settings, topic_ids))
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=trigger)
        .start()
    )


def next_offsets(store: SketchStore, topic_ids: dict[str, str]) -> dict[str, dict[int, int]]:
    """Return the offset after each mark, by topic name and partition."""
    marks = store.marks()
    return {
        name: {
            partition: offset + 1
            for (topic_id, partition), offset in marks.items()
            if topic_id == known
        }
        for name, known in topic_ids.items()
    }


def count_into(
    store: SketchStore, settings: Settings, topic_ids: TopicIds
) -> Callable[[DataFrame, int], None]:
    """Return the function that counts one micro-batch, with exactly one Spark action.

    1. Read marks and kept values; fix the topics' incarnations.
    2. Count and build deltas: the only action.
    3. Look again: offsets of a topic that was recreated meanwhile mean nothing.
    4. Commit counts and marks together.
    """
    rules = item_rules(settings)
    parameters = counting_parameters(settings)

    def count(batch: DataFrame, _batch_id: int) -> None:
        ids = topic_ids()  # 1
        names = {topic_id: name for name, topic_id in ids.items()}
        marks = {
            (names[topic_id], partition): offset
            for (topic_id, partition), offset in store.marks().items()
            if topic_id in names
        }
        counted_at = time.time_ns() // 1_000_000
        plan = CountingPlan(
            rules, marks, store.kept_values(), parameters.lateness, parameters.max_values
        )

        def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return count_batches(plan, unpacked(batches))

        built = partial(build_deltas, parameters.sketch, counted_at)
        table = (  # 2
            batch.mapInArrow(counted, _PARTIALS)
            .repartition(settings.spark.shuffle_partitions, "minute", "name")
            .mapInArrow(built, _DELTAS)
            .toArrow()
        )
        crash_point("analytics.counted")
        if topic_ids() != ids:  # 3
            raise IntegrityError(
                "An admitted topic was recreated while it was counted.",
                "run again: the new topic is counted from its beginning",
            )
        counted_batch = gather_batch(table, ids, marks, counted_at)
        crash_point("analytics.committing")
        store.commit(counted_batch)  # 4
        crash_point("analytics.committed")

    return count
