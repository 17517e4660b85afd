"""Trouble with the topics under the boundary itself, block by block: a clear outcome, never silent loss."""

from __future__ import annotations

import os
import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from admitone.boundary.batches import note_read
from admitone.boundary.reconciliation import reconcile
from admitone.core.decisions import BlockState
from admitone.core.errors import ContractDrift, Fenced, IntegrityError, NotFound, ServiceUnreachable
from admitone.ledger.books import books
from admitone.spark.boundary_query import next_offsets
from admitone.transport.ingest import partition_of_line
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_records import new_name, open_transaction
from tests.support.flaky import Flaky
from tests.support.kafka_site import ADMITTED, Site, copy_ledger, events, replace_ledger, site
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

__all__ = ["site"]

AGAIN = ("DUPLICATE", None)


def test_a_recreated_topic_is_read_from_its_beginning_by_a_new_producer(site: Site) -> None:
    old = site.pipeline()
    old.ingest(*events("old", 3))
    site.run(old)
    # As many records as before, the offsets the same: nothing of it may pass for what was read.
    new = site.recreate(old)
    new.ingest(event("new0"), event("old1"), event("new1"))
    site.run(new)

    assert new.verdicts("new0") == new.verdicts("new1") == ADMITTED
    assert new.verdicts("old1") == [*ADMITTED, AGAIN]
    assert len({info.source.producer_id for info in new.ledger.sources()}) == 2
    (run,) = books(new.ledger)["runs"]
    assert (run["deliveries"], run["re_read"], run["replayed"]) == (6, 0, 0)
    site.in_order(new)


@pytest.mark.parametrize("and_created", [True, False], ids=["recreated", "deleted"])
def test_a_topic_that_goes_between_two_blocks_ends_the_task_and_loses_no_decision(
    and_created: bool, site: Site
) -> None:
    old = site.pipeline()
    old.ingest(*events("old", 3))
    generation = old.boundary.start(old.topic)
    owned, records = old.own(0, generation), old.records(0)
    list(owned.admit(records.slice(0, 1)))
    delete_topic(old.transport, old.topic.name)
    if and_created:
        site.pipeline().ingest(*events("new", 3))
    with pytest.raises(IntegrityError if and_created else NotFound, match=old.topic.name):
        list(owned.admit(records.slice(1)))
    # Its records are on the log: whoever comes next settles it before anything else.
    assert [block.state for block in old.ledger.blocks()] == ["SETTLED", "IN_FLIGHT"]

    new = site.pipeline()
    if not and_created:
        new.ingest(*events("new", 3))
    new.ingest(event("old2"))
    site.run(new)
    assert [new.verdicts(f"new{number}") for number in range(3)] == [ADMITTED] * 3
    assert [new.verdicts(f"old{number}") for number in range(2)] == [ADMITTED] * 2
    assert new.verdicts("old2") == [*ADMITTED, AGAIN]
    site.in_order(new)


def test_an_owner_of_the_old_topic_wakes_up_when_the_new_one_is_read(site: Site) -> None:
    old = site.pipeline()
    old.ingest(*events("e", 2))
    generation = old.boundary.start(old.topic)
    owned, records = old.own(0, generation), old.records(0)
    new = site.recreate(old)
    new.ingest(*events("e", 2))
    site.run(new)
    with pytest.raises((Fenced, IntegrityError)):
        list(owned.admit(records))

    site.run(new)
    assert [new.verdicts(f"e{number}")[0] for number in range(2)] == ADMITTED * 2
    site.in_order(new)


def test_partitions_that_were_added_are_read_once_the_configuration_says_so(site: Site) -> None:
    narrow = site.pipeline()
    moved = [f"e{number}" for number in range(8)]
    narrow.ingest(*map(event, moved))
    site.run(narrow)
    administrator = site.broker.administrator()
    (added,) = administrator.create_partitions([NewPartitions(narrow.topic.name, 3)]).values()
    added.result(30)
    with pytest.raises(ContractDrift, match="raw_partitions"):
        site.pipeline()

    wide = site.pipeline(raw_partitions=3)
    wide.ingest(*map(event, moved), *events("f", 8))
    assert {partition_of_line(event(name), 3) for name in moved} == {0, 1, 2}
    site.run(wide)
    # The same events in other partitions are the same events.
    assert all(wide.verdicts(name) == [*ADMITTED, AGAIN] for name in moved)
    assert all(wide.verdicts(f"f{number}") == ADMITTED for number in range(8))
    site.in_order(wide)


def test_records_that_expired_before_they_were_read_stop_the_reader(site: Site) -> None:
    pipeline = site.pipeline(raw_retention="1s")
    site.run(pipeline)
    pipeline.ingest(*events("lost", 3))
    await_start(pipeline, 3)
    pipeline.ingest(*events("kept", 2))

    with pytest.raises(IntegrityError, match="removed before they were read"):
        site.run(site.pipeline(raw_retention="1s"))
    assert pipeline.decisions() == []


def test_records_that_expired_after_they_were_decided_are_not_missed(site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*events("done", 3))
    site.run(pipeline)
    # Only now, so that nothing expires before it is decided.
    configure(site.broker, pipeline.topic.name, "retention.ms", "1000")
    await_start(pipeline, 3)
    again = site.pipeline(raw_retention="1s")
    again.ingest(*events("more", 2))
    site.run(again)

    assert [again.verdicts(f"more{number}") for number in range(2)] == [ADMITTED] * 2
    site.in_order(again)


def configure(broker: KafkaBroker, topic: str, name: str, value: str) -> None:
    """Set an option of a topic."""
    option = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[option])
    administrator = broker.administrator()  # what it promises is lost with it
    administrator.incremental_alter_configs([resource])[resource].result(30)


def await_start(pipeline: Pipeline, offset: int) -> None:
    deadline = time.monotonic() + 60
    while pipeline.transport.starts(pipeline.topic)[0] < offset:
        assert time.monotonic() < deadline, "nothing expires"
        time.sleep(0.1)


def test_a_log_that_ends_before_the_mark_stops_the_reader(site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*events("e", 3))
    site.run(pipeline)
    (end,) = pipeline.transport.ends(pipeline.topic)
    # As if a broker had come back with an older copy of the partition.
    note_read(pipeline.boundary, pipeline.topic, {0: end + 5})

    with pytest.raises(IntegrityError, match="the log lost records"):
        site.run(site.pipeline())


def test_deletions_under_an_owner_are_errors_of_the_read_not_an_empty_partition(site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*events("e", 3))
    site.run(pipeline)
    pipeline.ingest(*events("lost", 3))
    (start,) = next_offsets(pipeline.boundary, pipeline.topic).values()
    (end,) = pipeline.transport.ends(pipeline.topic)
    administrator = site.broker.administrator()
    place = TopicPartition(pipeline.topic.name, 0, end)
    administrator.delete_records([place])[place].result(30)

    with pytest.raises(IntegrityError, match=f"no records at offset {start}"):
        list(pipeline.transport.read(pipeline.topic, 0, start, end))


def ambiguous(pipeline: Pipeline, *words: str) -> Flaky:
    """Let a publish end without anybody knowing how, and leave its block in flight behind."""
    flaky = Flaky(pipeline.transport, *words)
    pipeline.boundary.transport = flaky
    pipeline.ingest(*events("e", 3))
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    flaky.heal()
    return flaky


def test_a_destination_whose_records_are_gone_cannot_tell_and_nothing_is_published_again(
    site: Site,
) -> None:
    pipeline = site.pipeline()
    ambiguous(pipeline, "down-after")
    entry = next(e for e in pipeline.settings.topics if "page_view" in e.event_types)
    topic = pipeline.transport.topic(entry.topic)
    (end,) = pipeline.transport.ends(topic)
    administrator = site.broker.administrator()
    place = TopicPartition(topic.name, 0, end)
    administrator.delete_records([place])[place].result(30)

    site.run(pipeline)
    assert [block.state for block in pipeline.ledger.blocks()] == [BlockState.AMBIGUOUS]
    assert pipeline.transport.ends(topic) == [end]
    assert [found.how for found in reconcile(pipeline.boundary)] == ["unknown: the log cannot tell"]


def test_an_ambiguous_block_behind_an_open_transaction_stays_until_the_log_can_tell(
    site: Site,
) -> None:
    pipeline = site.pipeline()
    pipeline.run()
    entry = next(e for e in pipeline.settings.topics if "page_view" in e.event_types)
    other = open_transaction(site.broker, entry.topic)
    ambiguous(pipeline, "down-after")
    assert [found.how for found in reconcile(pipeline.boundary)] == ["unknown: the log cannot tell"]
    other.abort_transaction(20)
    assert [found.how for found in reconcile(pipeline.boundary)] == ["found on the log"]

    site.run(pipeline)
    assert all(pipeline.verdicts(f"e{number}") == ADMITTED for number in range(3))
    site.in_order(pipeline)


def test_two_pipelines_of_the_same_name_on_two_raw_topics_do_not_fence_each_other(
    site: Site,
) -> None:
    one, two = site.pipeline(), site.pipeline(raw_topic=new_name())
    one.ingest(*events("a", 2))
    two.ingest(*events("a", 2), *events("b", 2))
    generation = one.boundary.start(one.topic)
    owned = one.own(0, generation)
    site.run(two)
    list(owned.admit(one.records(0)))

    site.run(one)
    assert sorted(one.verdicts("a0")) == [*ADMITTED, AGAIN]
    assert one.verdicts("b0") == ADMITTED
    site.in_order(one)


def test_an_event_the_broker_finds_too_large_is_quarantined_and_the_rest_of_its_block_admitted(
    site: Site,
) -> None:
    pipeline = site.pipeline()
    pipeline.run()
    limit_records(site, pipeline)
    large = event("large", {"url": f"/{os.urandom(5_000).hex()}"})
    pipeline.ingest(*events("e", 50), large, *events("f", 50), large)
    site.run(pipeline)

    assert pipeline.verdicts("large") == [("QUARANTINED", "PUBLISH_FAILED")] * 2
    assert all(pipeline.verdicts(f"{name}{n}") == ADMITTED for name in "ef" for n in range(50))
    site.in_order(pipeline)


def test_an_event_the_broker_finds_too_large_when_its_block_is_published_late_is_quarantined(
    site: Site,
) -> None:
    pipeline = site.pipeline()
    pipeline.run()
    limit_records(site, pipeline)
    large = event("large", {"url": f"/{os.urandom(5_000).hex()}"})
    pipeline.ingest(*events("e", 20), large, *events("f", 20), large)
    transport = Flaky(pipeline.transport, "down-before")
    pipeline.boundary.transport = transport
    with pytest.raises(ServiceUnreachable, match="kept as AMBIGUOUS"):
        pipeline.run()
    transport.heal()
    site.run(pipeline)

    assert pipeline.verdicts("large") == [("QUARANTINED", "PUBLISH_FAILED")] * 2
    assert all(pipeline.verdicts(f"{name}{n}") == ADMITTED for name in "ef" for n in range(20))
    site.in_order(pipeline)


def limit_records(site: Site, pipeline: Pipeline) -> None:
    """Let the broker refuse large page views."""
    entry = next(e for e in pipeline.settings.topics if "page_view" in e.event_types)
    configure(site.broker, entry.topic, "max.message.bytes", "3000")


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "restored"])
def test_a_ledger_that_is_older_than_the_log_admits_nothing(lost: bool, site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*events("e", 3))
    site.run(pipeline)
    older = copy_ledger(site, "older")
    pipeline.ingest(*events("f", 3))
    site.run(pipeline)
    newest = copy_ledger(site, "newest")

    replace_ledger(site, None if lost else older)
    with pytest.raises(IntegrityError, match="belongs to" if lost else "older than the log"):
        site.run(site.pipeline())
    replace_ledger(site, newest)
    restored = site.pipeline()
    restored.ingest(*events("g", 3))
    site.run(restored)
    assert all(restored.verdicts(f"{name}0") == ADMITTED for name in "efg")
    site.in_order(restored)
