"""What only Kafka does: records refused by the broker, transactions that hide records, records and topics that go."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from admitone.core.errors import (
    IntegrityError,
    NotFound,
    RecordsRefused,
    ServiceUnreachable,
    Unreadable,
)
from admitone.transport.kafka.administrator import Administrator
from admitone.transport.kafka.kafka_log import KafkaLog
from tests.servers.appender import Appender
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_records import (
    THEIRS,
    new_name,
    open_transaction,
    plainly,
    publish,
    short_log,
    table,
    values_of,
)
from tests.support.logs import delete_topic
from tests.support.pipeline import kafka_log


@pytest.fixture
def log(kafka_broker: KafkaBroker) -> Iterator[KafkaLog]:
    log = short_log(kafka_broker)
    yield log
    log.close()


def values(count: int, large: tuple[int, ...] = (), bytes_each: int = 100) -> list[bytes]:
    """Return values that no compression makes smaller; those named are larger than 30,000 bytes."""
    return [os.urandom(30_000 if row in large else bytes_each) for row in range(count)]


def without(records: dict[str, pa.Table], rows: dict[str, list[int]]) -> dict[str, pa.Table]:
    return {
        topic: each.take(
            pa.array(sorted(set(range(each.num_rows)) - set(rows.get(topic, ()))), pa.int64())
        )
        for topic, each in records.items()
    }


def refused_and_the_rest(
    log: KafkaLog, broker: KafkaBroker, records: dict[str, pa.Table]
) -> dict[str, list[int]]:
    """Append, expect a refusal and nothing written, then publish the rest with the same producer."""
    name = new_name()
    with pytest.raises(RecordsRefused) as refusal:
        Appender(log, name).append(records)
    assert all(plainly(broker, topic) == [] for topic in records)

    rest = without(records, refusal.value.rows)
    appended = Appender(log, name).append(rest)
    for topic, each in rest.items():
        wanted = zip(
            each["partition"].to_pylist(),
            appended.offsets[topic].to_pylist(),
            each["value"].to_pylist(),
            strict=True,
        )
        assert plainly(broker, topic) == sorted(wanted)
    return refusal.value.rows


@pytest.mark.parametrize("count", [3, 5_000], ids=["few", "many"])
def test_a_record_that_is_too_large_is_named_and_the_rest_can_go(
    count: int, log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic(max_message_bytes="20000")
    records = {topic: table(values(count, large=(count // 2,)))}

    assert refused_and_the_rest(log, kafka_broker, records) == {topic: [count // 2]}


def test_a_record_larger_than_brokers_take_by_default_is_named(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = kafka_broker.new_topic()
    records = {topic: table([b"a", os.urandom(2_000_000), b"c"])}

    assert refused_and_the_rest(log, kafka_broker, records) == {topic: [1]}


def test_refused_records_are_named_across_partitions_and_topics(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    narrow = kafka_broker.new_topic(3, max_message_bytes="20000")
    keyed = kafka_broker.new_topic(2, cleanup_policy="compact")
    plain = kafka_broker.new_topic(2)
    size, large, keyless = 3_000, (0, 1, 1_500, 2_999), (7, 2_000)
    records = {
        plain: table(values(size), [row % 2 for row in range(size)]),
        narrow: table(values(size, large), [row % 3 for row in range(size)]),
        keyed: table(
            values(size),
            [row % 2 for row in range(size)],
            [None if row in keyless else b"%d" % row for row in range(size)],
        ),
    }

    assert refused_and_the_rest(log, kafka_broker, records) == {
        narrow: list(large),
        keyed: list(keyless),
    }


def test_when_every_record_is_refused_every_record_is_named(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic, name = kafka_broker.new_topic(cleanup_policy="compact"), new_name()
    with pytest.raises(RecordsRefused) as refusal:
        Appender(log, name).append({topic: table(values(40), keys=[None] * 40)})

    assert refusal.value.rows == {topic: list(range(40))}
    assert plainly(kafka_broker, topic) == []


def test_records_that_are_too_large_only_together_travel_in_smaller_batches(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic, name = kafka_broker.new_topic(2, max_message_bytes="5000"), new_name()
    sent = [values(1_000), values(1_000)]
    partitions = [row % 2 for row in range(1_000)]
    given = [
        Appender(log, name).append({topic: table(each, partitions)}).offsets[topic].to_pylist()
        for each in sent
    ]

    wanted = [
        place
        for offsets, each in zip(given, sent, strict=True)
        for place in zip(partitions, offsets, each, strict=True)
    ]
    assert plainly(kafka_broker, topic) == sorted(wanted)


ENDINGS: dict[str, tuple[Callable[[Producer], object], list[bytes]]] = {
    "committed": (lambda other: other.commit_transaction(20), [b"a", THEIRS, b"b"]),
    "aborted": (lambda other: other.abort_transaction(20), [b"a", b"b"]),
    "timed_out": (lambda other: None, [b"a", b"b"]),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_an_open_transaction_hides_is_waited_for(
    ending: str, log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = log.create_topic(new_name(), 1)
    (first,) = publish(log, topic.name, b"a")
    other = open_transaction(
        kafka_broker, topic.name, timeout_ms=1_500 if ending == "timed_out" else 60_000
    )
    (hidden,) = publish(log, topic.name, b"b")
    finish, wanted = ENDINGS[ending]
    (stable,) = log.ends(topic, readable=True)
    (end,) = log.ends(topic)
    assert first < stable <= hidden < end
    assert values_of(log, topic, end=stable) == [b"a"]

    ended = threading.Timer(0.5, finish, [other])
    ended.start()
    assert values_of(log, topic, end) == wanted
    ended.join()


@pytest.mark.parametrize("aborted", [False, True], ids=["open", "aborted"])
def test_what_need_not_be_committed_is_read_at_once(
    aborted: bool, log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = log.create_topic(new_name(), 1)
    publish(log, topic.name, b"a")
    other = open_transaction(kafka_broker, topic.name, timeout_ms=600_000)
    publish(log, topic.name, b"b")
    if aborted:
        other.abort_transaction(20)
    (end,) = log.ends(topic)
    batches = log.read(topic, 0, 0, end, committed=False)
    seen = [value for batch in batches for value in batch.column("value").to_pylist()]

    assert seen == [b"a", THEIRS, b"b"]


def test_what_stays_hidden_is_unreadable_and_never_taken_for_absent(
    kafka_broker: KafkaBroker,
) -> None:
    log = short_log(
        kafka_broker, delivery_timeout=1_000, transaction_timeout=1_000, look_timeout=1_200
    )
    topic = log.create_topic(new_name(), 1)
    other = open_transaction(kafka_broker, topic.name)
    (hidden,) = publish(log, topic.name, b"b")
    (end,) = log.ends(topic)
    for read in (
        lambda: list(log.read(topic, 0, 0, end)),
        lambda: list(log.read(topic, 0, hidden, end)),
        lambda: log.next_record(topic, 0, 0, end),
    ):
        with pytest.raises(Unreadable, match="a transaction is open there"):
            read()

    other.abort_transaction(20)
    assert log.next_record(topic, 0, 0, end) == hidden
    assert values_of(log, topic, end) == [b"b"]


def delete_up_to(broker: KafkaBroker, topic: str, offset: int) -> None:
    administrator = broker.administrator()
    place = TopicPartition(topic, 0, offset)
    administrator.delete_records([place])[place].result(20)


def test_records_that_were_deleted_are_missed_before_they_are_read(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = log.create_topic(new_name(), 1)
    offsets = publish(log, topic.name, b"a", b"b", b"c")
    delete_up_to(kafka_broker, topic.name, offsets[2])

    assert log.starts(topic) == [offsets[2]]
    assert values_of(log, topic) == [b"c"]
    with pytest.raises(IntegrityError, match=f"no records at offset {offsets[0]}"):
        list(log.read(topic, 0, offsets[0], offsets[2]))
    with pytest.raises(IntegrityError, match="any more"):
        log.next_record(topic, 0, offsets[1], offsets[2])


def test_records_that_are_deleted_under_a_read_are_missed(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = log.create_topic(new_name(), 1)
    publish(log, topic.name, b"a")
    other = open_transaction(kafka_broker, topic.name)
    (last,) = publish(log, topic.name, b"b")
    (end,) = log.ends(topic)
    reading = log.read(topic, 0, 0, end)
    assert next(reading).column("value").to_pylist() == [b"a"]
    delete_up_to(kafka_broker, topic.name, last)
    other.abort_transaction(20)

    with pytest.raises(IntegrityError, match="any more"):
        list(reading)


def test_a_topic_that_is_deleted_under_a_read_is_not_found_any_more(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = log.create_topic(new_name(), 1)
    publish(log, topic.name, b"a")
    other = open_transaction(kafka_broker, topic.name)
    publish(log, topic.name, b"b")
    reading = log.read(topic, 0, 0, log.ends(topic)[0])
    assert next(reading).column("value").to_pylist() == [b"a"]
    delete_topic(log, topic.name)

    with pytest.raises(NotFound, match=topic.name):
        list(reading)
    del other


def test_a_topic_that_takes_the_place_of_another_is_not_read_for_it(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = log.create_topic(new_name(), 1)
    publish(log, topic.name, b"a", b"b")
    (end,) = log.ends(topic)
    delete_topic(log, topic.name)
    again = log.create_topic(topic.name, 1)
    publish(log, again.name, b"c", b"d")

    with pytest.raises(NotFound, match="deleted, perhaps recreated"):
        list(log.read(topic, 0, 0, end))
    assert values_of(log, again) == [b"c", b"d"]


def test_a_topic_that_goes_while_it_is_written_to_is_for_a_look_to_tell(
    kafka_broker: KafkaBroker,
) -> None:
    log = short_log(kafka_broker)
    topic, name = log.create_topic(new_name(), 1), new_name()
    epoch = log.init_producer(name)
    delete_topic(log, topic.name)
    with pytest.raises(ServiceUnreachable) as failure:
        log.append(name, epoch, {topic.name: table([b"a"])})

    assert failure.value.code == "UNREACHABLE"
    assert topic.name not in log.describe([topic.name])


def test_two_reads_at_once_do_not_disturb_each_other(
    log: KafkaLog, kafka_broker: KafkaBroker
) -> None:
    topic = log.create_topic(new_name(), 1)
    publish(log, topic.name, *(b"%d" % number for number in range(25_000)))
    (end,) = log.ends(topic)
    one, two = log.read(topic, 0, 0, end), kafka_log(kafka_broker).read(topic, 0, 0, end)
    rows = [0, 0]
    began = time.monotonic()
    while any(more := [next(one, None), next(two, None)]):
        rows = [
            done + (batch.num_rows if batch else 0) for done, batch in zip(rows, more, strict=True)
        ]

    assert rows == [25_000, 25_000]
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("answer", [None, SimpleNamespace(offset=-1001)], ids=["none", "no_offset"])
def test_a_partition_whose_leader_does_not_know_it_yet_or_keeps_silent_is_asked_for_again(
    answer: object, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic(new_name(), 2)
    existing, unknown = Administrator._existing, []

    def forgetful(admin: Administrator, futures: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        for thing, known in existing(admin, futures):
            if not isinstance(thing, TopicPartition) or unknown:
                yield thing, known
            else:
                unknown.append(thing)
                if answer is not None:
                    yield thing, answer

    monkeypatch.setattr(Administrator, "_existing", forgetful)
    assert log.ends(topic) == [0, 0]
    assert len(unknown) == 1
