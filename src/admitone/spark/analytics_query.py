"""The counting query: admitted records to sketches, one store transaction per micro-batch.

    admitted log -> count_batches -> shuffle by minute and list -> build_deltas -> commit

Spark's own checkpoint is never trusted: the query starts at the store's marks, in an empty folder,
and a batch that was counted before is recognised by them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from admitone.analytics import open_sketch_store
from admitone.analytics.batch_counter import BatchCounter
from admitone.analytics.counting import build_deltas, count_batches
from admitone.analytics.port import NOTHING_READ, CountedBatch, PartitionRead, SketchStore
from admitone.boundary.destination_topics import Topics
from admitone.boundary.ledger_age import must_know_its_log
from admitone.core.errors import ContractDrift, IntegrityError
from admitone.infra.clock import wall_clock
from admitone.infra.crash_points import crash_point
from admitone.infra.memory import keep_freed_memory
from admitone.ledger import open_ledger
from admitone.results import open_outlets
from admitone.results.publisher import Publisher, begin_life
from admitone.settings import Settings
from admitone.spark.checkpoints import fresh_checkpoint
from admitone.spark.failures import told_in_a_line
from admitone.spark.log_stream import Begin, begin_at, ends_of, log_stream, unpacked
from admitone.spark.query_companion import QueryCompanion, start_query
from admitone.transport import open_transport
from admitone.transport.port import Topic, Transport
from admitone.transport.topic_contract import destination_contracts

QUERY = "analytics"
Present = Callable[[], dict[str, Topic]]
"""Returns the admitted topics as they are now, by name."""

Ends = Callable[[DataFrame], dict[str, dict[int, int]]]
"""Returns the next offset after what a batch hands to its tasks, by topic name and partition."""

_PARTIALS = "kind STRING, name STRING, minute BIGINT, payload BINARY"
_DELTAS = "kind STRING, name STRING, minute BIGINT, sketch BINARY, summary BINARY, meta BINARY"


def analytics_query(
    spark: SparkSession, settings: Settings, trigger: str = "500 milliseconds"
) -> StreamingQuery:
    """Start the query from the store's marks, on the topics that are there."""
    transport = open_transport(settings)
    accept_new_topics(settings, transport)
    names = [entry.topic for entry in settings.topics]

    def present() -> dict[str, Topic]:
        found = transport.describe(names)
        return {name: state.topic for name, state in found.items()}

    store = open_sketch_store(settings)
    begin_life(store, open_outlets(settings), wall_clock())
    topics = CountedTopics(present)
    begin = begin_at(transport, topics.topics, next_offsets(store, topics.ids))
    note_begin(store, begin)
    limit = settings.topk.max_per_trigger
    stream = log_stream(spark, settings, begin, limit, packed=True, counted=True)
    checkpoint = fresh_checkpoint(settings.resolve(settings.spark.checkpoints), QUERY)
    work = count_into(store, settings, topics, partial(ends_of, settings))
    companion = Answering(topics, Publisher(settings))
    return start_query(QUERY, stream, work, checkpoint, trigger, companion)


def accept_new_topics(settings: Settings, transport: Transport) -> None:
    """Create and accept the admitted topics that are new, as the boundary does at its start."""
    with closing(open_ledger(settings)) as ledger:
        must_know_its_log(ledger, transport, settings)
        topics = Topics(destination_contracts(settings), ledger, transport)
        topics.create_and_accept(wall_clock(), create=settings.transport.create_topics)


class Answering(QueryCompanion):
    """The topics must stay as they are, and answers go out."""

    def __init__(self, topics: CountedTopics, publisher: Publisher) -> None:
        self._topics = topics
        self._publisher = publisher

    def error(self) -> IntegrityError | None:
        """Return what is wrong with the topics; an outlet that does not answer is no error."""
        return self._topics.error()

    def close(self) -> None:
        """Write the last answers."""
        self._publisher.close()


class CountedTopics:
    """The incarnations that a query counts, from its start to its end."""

    def __init__(self, present: Present) -> None:
        self._present = present
        self._topics = present()
        self.topics = list(self._topics.values())
        self.ids = {name: topic.topic_id for name, topic in self._topics.items()}
        if not self.ids:
            raise ContractDrift("None of the admitted topics is there.", "admitone topics create")

    def error(self) -> IntegrityError | None:
        """Return what to say when they are no longer the same: offsets of another topic mean nothing."""
        if self._present() == self._topics:
            return None
        return IntegrityError(
            "An admitted topic was created, deleted, recreated or given more partitions while the others were"
            " counted.",
            "run again: a new topic is counted from its beginning",
        )

    def partitions(self, names: Collection[str]) -> dict[str, int]:
        """Return how many partitions some topics have, by their ids."""
        return {
            topic.topic_id: topic.partitions
            for name, topic in self._topics.items()
            if name in names
        }


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


def note_begin(store: SketchStore, begin: Begin) -> None:
    """Note where counting begins in partitions that are new to the store: what is removed there later is missed."""
    known = store.marks()
    reads = [
        PartitionRead(topic.name, topic.topic_id, number, NOTHING_READ, first - 1, 0, 0, 0)
        for topic, firsts in begin.items()
        for number, first in enumerate(firsts)
        if (topic.topic_id, number) not in known
    ]
    if reads:
        store.commit(CountedBatch(reads, {}, [], wall_clock()))


def count_into(
    store: SketchStore, settings: Settings, topics: CountedTopics, ends: Ends
) -> Callable[[DataFrame, int], None]:
    """Return the function that counts one micro-batch, with exactly one Spark action.

    1. Read marks and kept values.
    2. Count and build deltas: the only action.
    3. Look whether the topics are still those the query began with.
    4. Commit counts and marks together.
    """
    counting = BatchCounter(store, settings, topics.ids)
    store.fit_marks(
        topics.partitions([entry.topic for entry in settings.topics if entry.filter_replays])
    )

    def count(batch: DataFrame, _batch_id: int) -> None:
        plan = counting.plan()  # 1
        counted_at = wall_clock()

        def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            keep_freed_memory()
            return count_batches(plan, unpacked(batches))

        built = partial(build_deltas, counting.parameters.sketch, counted_at)
        with told_in_a_line():
            table = (  # 2
                batch.mapInArrow(counted, _PARTIALS)
                .repartition(settings.spark.shuffle_partitions, "minute", "name")
                .mapInArrow(built, _DELTAS)
                .toArrow()
            )
        crash_point("analytics.counted")
        changed = topics.error()  # 3
        if changed is not None:
            raise changed
        counted_batch = counting.gather(plan, table, counted_at, ends(batch))
        crash_point("analytics.committing")
        store.commit(counted_batch)  # 4
        crash_point("analytics.committed")

    return count
