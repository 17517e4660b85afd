"""The gate on Kafka, where transactions leave offsets without records, and brokers remove what they keep no longer."""

from __future__ import annotations

from confluent_kafka import TopicPartition

from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.audit.verify import verify_run
from tests.support.closing import differences, stores_of
from tests.support.kafka_site import Site, events, site

__all__ = ["site"]
RUN = "default"


def remove_records(site: Site, topic: str) -> int:
    """Remove everything from a topic, as an administrator can; return how many partitions held something."""
    log = site.pipeline().transport
    ends = log.ends(log.topic(topic))
    places = [TopicPartition(topic, partition, end) for partition, end in enumerate(ends) if end]
    client = site.broker.administrator()
    for removed in client.delete_records(places).values():
        removed.result(30)
    return len(places)


def test_all_that_was_admitted_is_found_between_the_marks_of_transactions(site: Site) -> None:
    pipeline = site.pipeline()
    for name in "efg":
        pipeline.ingest(*events(name, 4), *events(name, 2))
        site.run(pipeline)
    gate = gate_of(RUN, *stores_of(pipeline))

    assert gate.green, gate.blockers
    assert "12 records on the log compared, 0 no longer there" in gate.checks[2].evidence
    assert close_run(RUN, *stores_of(pipeline), author="ann").closed
    assert differences(verify_run(RUN, *stores_of(pipeline))) == []


def test_records_that_are_gone_before_their_time_are_missed(site: Site) -> None:
    """The topic keeps them for days, and its log begins behind them after a second."""
    pipeline = site.pipeline()
    pipeline.ingest(*events("e", 4))
    site.run(pipeline)
    topic = pipeline.decisions()[0]["bus"]["topic"]
    assert gate_of(RUN, *stores_of(pipeline)).green
    assert remove_records(site, topic)
    (blocker,) = gate_of(RUN, *stores_of(pipeline)).blockers

    assert blocker.what.startswith("stretches of the log are gone that their topic keeps")
    assert "is gone before its time" in blocker.what
