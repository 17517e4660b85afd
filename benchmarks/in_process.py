"""A pipeline in this process, without Spark: for benchmarks of what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from admitone.analytics import item_rules, open_sketch_reader, open_sketch_store
from admitone.analytics.batch_counter import BatchCounter
from admitone.boundary import open_boundary
from admitone.boundary.admission import Boundary
from admitone.evidence import open_evidence_writer
from admitone.infra.clock import wall_clock
from admitone.results import open_outlets
from admitone.results.publisher import publish
from admitone.settings import Settings
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic


def decide(settings: Settings, lines: Iterable[bytes], run: str | None = None) -> Boundary:
    """Append lines to the raw log, decide them and write their evidence; return the boundary that did."""
    boundary = open_boundary(settings)
    transport = boundary.transport
    topic = raw_topic(settings, transport)
    for _ in ingest_lines(transport, topic, lines, run):
        pass
    generation = boundary.start(topic)
    for partition, end in enumerate(transport.ends(topic)):
        start = boundary.ledger.next_offset(boundary.source(topic, partition)) or 0
        batches = list(transport.read(topic, partition, start, end))
        if batches:
            owned = boundary.own(topic, partition, generation)
            list(owned.admit(pa.Table.from_batches(batches)))
    open_evidence_writer(settings, boundary.ledger).write_pending(1)
    return boundary


def count_and_publish(settings: Settings, boundary: Boundary) -> None:
    """Count everything that was admitted, and write the answers to where they are kept."""
    topics = [boundary.transport.topic(entry.topic) for entry in settings.topics]
    store = open_sketch_store(settings)
    counting = BatchCounter(store, settings, {topic.name: topic.topic_id for topic in topics})
    for topic in topics:
        for partition, end in enumerate(boundary.transport.ends(topic)):
            for batch in boundary.transport.read(topic, partition, 0, end):
                plan, now = counting.plan(), wall_clock()
                store.commit(counting.gather(plan, counting.count(plan, [batch], now), now, {}))
    store.close()
    reader = open_sketch_reader(settings)
    for outlet in open_outlets(settings):
        publish(reader, item_rules(settings), outlet)
        outlet.close()
    reader.close()
