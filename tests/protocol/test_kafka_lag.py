"""The lag figures on a real broker, where offsets are not records: open and aborted transactions, empty topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from admitone.ops.lag import Lag, LagMeter
from tests.servers.kafka import KafkaBroker
from tests.support.pipeline import Pipeline, event
from tests.support.running import kafka_pipeline


@pytest.fixture
def pipeline(kafka_broker: KafkaBroker, tmp_path: Path) -> Pipeline:
    return kafka_pipeline(tmp_path, kafka_broker)


@contextmanager
def transaction(broker: KafkaBroker, pipeline: Pipeline, records: int) -> Iterator[Producer]:
    """Leave a transaction open on every partition of the raw topic."""
    name = pipeline.topic.name
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": f"other-{name}"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(name, event(f"other{number}"), partition=number % 4)
    producer.flush(30)
    yield producer


def lag_of(pipeline: Pipeline) -> Lag:
    return LagMeter(pipeline.settings).measure()


def test_nothing_waits_in_empty_topics(pipeline: Pipeline) -> None:
    before = lag_of(pipeline)
    pipeline.run()
    after = lag_of(pipeline)

    for lag in (before, after):
        assert (lag.boundary.waiting, lag.analytics.waiting) == (0, 0)
        assert (lag.boundary.done, lag.analytics.done) == (0, 0)
        assert [(part.done, part.end, part.behind) for part in lag.boundary.partitions] == [
            (0, 0, 0)
        ] * 4
        assert lag.idle(boundary=True, analytics=True)


def test_deliveries_are_counted_not_offsets(pipeline: Pipeline) -> None:
    for number in range(3):
        pipeline.ingest(*(event(f"e{number}-{place}") for place in range(20)))
    waiting = lag_of(pipeline)
    pipeline.run()
    done = lag_of(pipeline)

    # Each transaction leaves a mark of its own in each partition that it wrote to.
    assert waiting.boundary.waiting == 60 + 3 * 4
    assert (done.boundary.done, done.boundary.waiting) == (60, 0)
    assert sum(part.end for part in done.boundary.partitions) == 60 + 3 * 4


def test_what_an_open_transaction_hides_does_not_wait_yet(
    pipeline: Pipeline, kafka_broker: KafkaBroker
) -> None:
    pipeline.ingest(*(event(f"e{number}") for number in range(20)))
    pipeline.run()
    with transaction(kafka_broker, pipeline, records=8) as producer:
        hidden = lag_of(pipeline)
        producer.commit_transaction(30)
    shown = lag_of(pipeline)
    pipeline.run()

    assert (hidden.boundary.done, hidden.boundary.waiting) == (20, 0)
    assert hidden.idle(boundary=True, analytics=False)
    assert [part.behind for part in shown.boundary.partitions] == [3] * 4
    more = lag_of(pipeline).boundary
    assert (more.done, more.waiting) == (28, 0)


def test_an_aborted_transaction_at_the_end_leaves_nothing_to_wait_for(
    pipeline: Pipeline, kafka_broker: KafkaBroker
) -> None:
    pipeline.ingest(*(event(f"e{number}") for number in range(20)))
    pipeline.run()
    with transaction(kafka_broker, pipeline, records=8) as producer:
        producer.abort_transaction(30)
    lag = lag_of(pipeline)
    pipeline.ingest(event("last"))
    after = lag_of(pipeline)

    assert (lag.boundary.done, lag.boundary.waiting) == (20, 0)
    assert lag.idle(boundary=True, analytics=False)
    assert sorted(part.behind for part in after.boundary.partitions) == [0, 0, 0, 2]
