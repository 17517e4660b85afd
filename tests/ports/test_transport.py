"""What every transport guarantees, checked on each of them."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from admitone.core.contract import Keeping
from admitone.core.errors import ConfigurationError, Fenced, NotFound
from admitone.simulation.log import SimulatedLog
from admitone.transport.folder_log import FolderLog
from admitone.transport.port import (
    OUTGOING_SCHEMA,
    RECORD_SCHEMA,
    Topic,
    Transport,
)
from tests.servers.appender import Appender
from tests.servers.service import wait_until
from tests.support.logs import delete_topic
from tests.support.pipeline import kafka_log

OpenTransport = Callable[[], Transport]


@pytest.fixture(params=["folder", "kafka", "simulated"])
def open_transport(request: pytest.FixtureRequest, tmp_path: Path) -> OpenTransport:
    if request.param == "simulated":
        log = SimulatedLog()
        return lambda: log
    if request.param == "folder":
        return lambda: FolderLog(tmp_path / "log")
    broker = request.getfixturevalue("kafka_broker")
    return lambda: kafka_log(broker)


@pytest.fixture
def transport(open_transport: OpenTransport) -> Transport:
    return open_transport()


@pytest.fixture
def name() -> str:
    """Return the name of a topic, and of a producer, that nobody else uses."""
    return f"t-{uuid.uuid4().hex[:12]}"


def records(*values: str, partition: int = 0) -> pa.Table:
    return pa.table(
        {
            "partition": [partition] * len(values),
            "key": [b"k"] * len(values),
            "value": [value.encode() for value in values],
            "headers": [[{"key": "h", "value": value.encode()}] for value in values],
        },
        schema=OUTGOING_SCHEMA,
    )


def everything(transport: Transport, name: str, partition: int = 0) -> list[tuple[int, str]]:
    topic = transport.topic(name)
    end = transport.ends(topic)[partition]
    return [
        (row["offset"], row["value"].decode())
        for batch in transport.read(topic, partition, 0, end)
        for row in batch.to_pylist()
    ]


def values_of(transport: Transport, name: str, partition: int = 0) -> list[str]:
    return [value for _, value in everything(transport, name, partition)]


def test_what_was_appended_is_read_back_in_order_at_its_offsets(
    transport: Transport, name: str
) -> None:
    transport.create_topic(name, 2)
    producer = Appender(transport, name)
    first = producer.append({name: records("a", "b")}).offsets[name]
    second = producer.append({name: records("c")}).offsets[name]

    given = [*first.to_pylist(), *second.to_pylist()]
    assert given == sorted(set(given))
    assert everything(transport, name) == list(zip(given, "abc", strict=True))
    assert everything(transport, name, partition=1) == []


def test_offsets_come_back_in_the_order_the_records_were_handed_over(
    transport: Transport, name: str
) -> None:
    transport.create_topic(name, 3)
    epoch = transport.init_producer(name)
    numbers = (2, 0, 1, 5, 3, 4, 8)
    table = pa.concat_tables([records(str(each), partition=each % 3) for each in numbers])
    appended = transport.append(name, epoch, {name: table})

    for number, offset in zip(numbers, appended.offsets[name].to_pylist(), strict=True):
        assert (offset, str(number)) in everything(transport, name, number % 3)
    assert values_of(transport, name, 2) == ["2", "5", "8"]


def test_records_have_the_columns_of_the_kafka_source(transport: Transport, name: str) -> None:
    topic = transport.create_topic(name, 1)
    appended = transport.append(name, transport.init_producer(name), {name: records("a")})
    (batch,) = transport.read(topic, 0, 0, transport.ends(topic)[0])

    assert batch.schema == RECORD_SCHEMA
    (row,) = batch.to_pylist()
    assert row["headers"] == [{"key": "h", "value": b"a"}]
    assert (row["topic"], row["partition"], row["timestampType"]) == (name, 0, 1)
    assert int(row["timestamp"].timestamp() * 1000) == appended.published_at


def test_absent_keys_values_and_headers_stay_absent(transport: Transport, name: str) -> None:
    topic = transport.create_topic(name, 1)
    nothing = pa.Table.from_pylist(
        [{"partition": 0, "key": None, "value": None, "headers": []}], schema=OUTGOING_SCHEMA
    )
    transport.append(name, transport.init_producer(name), {name: nothing})
    (batch,) = transport.read(topic, 0, 0, transport.ends(topic)[0])

    (row,) = batch.to_pylist()
    assert (row["key"], row["value"], row["headers"]) == (None, None, [])


def test_an_append_to_several_topics_is_one_transaction(transport: Transport, name: str) -> None:
    other = f"{name}-u"
    transport.create_topic(name, 1)
    transport.create_topic(other, 1)
    old = transport.init_producer(name)
    new = transport.init_producer(name)
    with pytest.raises(Fenced):
        transport.append(name, old, {name: records("a"), other: records("b")})
    assert values_of(transport, name) == values_of(transport, other) == []

    transport.append(name, new, {name: records("a"), other: records("b")})
    assert values_of(transport, name) + values_of(transport, other) == ["a", "b"]


def test_a_fenced_producer_leaves_nothing_behind(open_transport: OpenTransport, name: str) -> None:
    zombie, successor = open_transport(), open_transport()
    zombie.create_topic(name, 1)
    old = zombie.init_producer(name)
    new = Appender(successor, name)
    new.append({name: records("successor")})
    with pytest.raises(Fenced):
        zombie.append(name, old, {name: records("zombie")})

    new.append({name: records("again")})
    assert values_of(successor, name) == ["successor", "again"]


def test_the_last_epoch_of_a_name_is_told(transport: Transport, name: str) -> None:
    assert transport.last_epoch(name) == 0
    transport.init_producer(f"{name}-other")
    epochs = [transport.init_producer(name) for _ in range(2)]
    assert transport.last_epoch(name) == epochs[-1] == 2


def test_a_range_is_read_committed_or_not(transport: Transport, name: str) -> None:
    topic = transport.create_topic(name, 1)
    producer = Appender(transport, name)
    offsets = [producer.append({name: records(value)}).offsets[name][0].as_py() for value in "abc"]
    batches = transport.read(topic, 0, offsets[1], offsets[2], committed=False)
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == [b"b"]


def test_the_simulated_log_keeps_what_was_aborted_as_kafka_does(name: str) -> None:
    log = SimulatedLog()
    topic = log.create_topic(name, 1)
    log.write(name, log.init_producer(name), {name: records("a")})
    log.init_producer(name)
    end = log.ends(topic)[0]
    (batch,) = log.read(topic, 0, 0, end, committed=False)

    assert batch.column("value").to_pylist() == [b"a"]
    assert list(log.read(topic, 0, 0, end)) == []


def test_producers_with_other_names_do_not_fence_each_other(
    transport: Transport, name: str
) -> None:
    transport.create_topic(name, 1)
    one, two = transport.init_producer(f"{name}-one"), transport.init_producer(f"{name}-two")
    transport.append(f"{name}-one", one, {name: records("a")})
    transport.append(f"{name}-two", two, {name: records("b")})

    assert values_of(transport, name) == ["a", "b"]


def test_a_range_is_read_without_its_end(transport: Transport, name: str) -> None:
    topic = transport.create_topic(name, 1)
    producer = Appender(transport, name)
    offsets = [
        producer.append({name: records(value)}).offsets[name][0].as_py() for value in "abcdef"
    ]
    found = [
        row["value"]
        for batch in transport.read(topic, 0, offsets[2], offsets[4])
        for row in batch.to_pylist()
    ]

    assert found == [b"c", b"d"]


def test_the_next_record_is_found_across_whatever_else_takes_offsets(
    transport: Transport, name: str
) -> None:
    topic = transport.create_topic(name, 1)
    producer = Appender(transport, name)
    first, second = (
        producer.append({name: records(value)}).offsets[name][0].as_py() for value in "ab"
    )
    # What was read is readable: a broker may answer a commit before it has marked it.
    assert values_of(transport, name) == ["a", "b"]
    (end,) = transport.ends(topic)

    assert transport.ends(topic, readable=True) == [end]
    assert transport.next_record(topic, 0, 0, end) == first
    assert transport.next_record(topic, 0, first + 1, end) == second
    assert transport.next_record(topic, 0, second + 1, end) == end


def test_a_recreated_topic_is_another_topic(transport: Transport, name: str) -> None:
    before = transport.create_topic(name, 1)
    transport.append(name, transport.init_producer(name), {name: records("old")})
    delete_topic(transport, name)
    after = transport.create_topic(name, 1)

    assert after.topic_id != before.topic_id
    assert everything(transport, name) == []
    with pytest.raises(NotFound):
        transport.ends(before)
    with pytest.raises(NotFound):
        list(transport.read(before, 0, 0, 1))


def test_creating_a_topic_again_returns_it_and_another_partition_count_is_refused(
    transport: Transport, name: str
) -> None:
    topic = transport.create_topic(name, 2)
    assert transport.create_topic(name, 2) == topic
    with pytest.raises(ConfigurationError, match="has 2 partitions"):
        transport.create_topic(name, 3)


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
def test_topics_are_described_as_they_are(transport: Transport, name: str, policy: str) -> None:
    keeping = Keeping(replication=1, retention_ms=86_400_000, cleanup_policy=policy)
    topic = transport.create_topic(name, 2, keeping)
    found = transport.describe([name, f"{name}-missing"])

    assert list(found) == [name]
    assert found[name].topic == topic == transport.topic(name)
    assert found[name].append_time
    assert found[name].keeping in (None, keeping)


def test_an_unknown_topic_is_named(transport: Transport) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        transport.topic("nowhere")
    with pytest.raises(NotFound, match="nowhere"):
        transport.ends(Topic("nowhere", "no-such-id", 1))


def test_appends_at_the_same_time_share_no_offset(open_transport: OpenTransport, name: str) -> None:
    open_transport().create_topic(name, 1)
    given: list[int] = []

    def produce(producer: str) -> None:
        mine = open_transport()
        mine_alone = Appender(mine, producer)
        for _ in range(10):
            appended = mine_alone.append({name: records("x", "y")})
            given.extend(appended.offsets[name].to_pylist())
        mine.close()

    threads = [threading.Thread(target=produce, args=(f"{name}-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(given) == len(set(given)) == 80
    assert sorted(given) == [offset for offset, _ in everything(open_transport(), name)]


def test_append_time_never_goes_back(
    transport: Transport, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.create_topic(name, 1)
    producer = Appender(transport, name)
    first = producer.append({name: records("a")}).published_at
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000)

    assert producer.append({name: records("b")}).published_at >= first


def test_a_topic_belongs_to_the_ledger_that_claimed_it_first(
    open_transport: OpenTransport, name: str
) -> None:
    one, other = open_transport(), open_transport()
    one.create_topic(name, 2)
    missing = f"{name}-missing"
    assert one.owners(name, [name, missing]) == {}

    assert one.claim(name, [name, missing], "ledger-1") == {name: "ledger-1"}
    assert other.claim(name, [name], "ledger-2") == {name: "ledger-1"}
    assert other.owners(name, [name, missing]) == {name: "ledger-1"}
    assert one.claim(name, [name], "ledger-1") == {name: "ledger-1"}
    one.create_topic(missing, 1)
    assert other.claim(name, [name, missing], "ledger-2") == {
        name: "ledger-1", missing: "ledger-2",
    }  # fmt: skip


def test_pipelines_with_other_names_claim_topics_for_themselves(
    transport: Transport, name: str
) -> None:
    transport.create_topic(name, 1)
    transport.claim(f"{name}-one", [name], "ledger-1")

    assert transport.owners(f"{name}-two", [name]) == {}
    assert transport.claim(f"{name}-two", [name], "ledger-2") == {name: "ledger-2"}
    assert transport.claim(f"{name}-one", [name], "ledger-2") == {name: "ledger-1"}


def test_a_topic_is_adopted_only_when_that_is_asked_for(
    open_transport: OpenTransport, name: str
) -> None:
    one, other = open_transport(), open_transport()
    one.create_topic(name, 1)
    one.claim(name, [name], "ledger-1")

    assert other.claim(name, [name], "ledger-2", adopt=True) == {name: "ledger-2"}
    assert one.claim(name, [name], "ledger-1") == {name: "ledger-2"}


def test_a_recreated_topic_was_claimed_by_none(transport: Transport, name: str) -> None:
    transport.create_topic(name, 1)
    transport.claim(name, [name], "ledger-1")
    delete_topic(transport, name)
    transport.create_topic(name, 1)
    wait_until(
        lambda: transport.owners(name, [name]) == {}, "the claim of the topic before is gone"
    )

    assert transport.claim(name, [name], "ledger-2") == {name: "ledger-2"}


def test_of_ledgers_that_claim_a_topic_at_once_all_are_told_the_same(
    open_transport: OpenTransport, name: str
) -> None:
    open_transport().create_topic(name, 1)
    told: list[str] = []

    def claim(ledger: str) -> None:
        mine = open_transport()
        told.append(mine.claim(name, [name], ledger)[name])
        mine.close()

    threads = [threading.Thread(target=claim, args=(f"ledger-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(told) == 4
    assert set(told) == set(open_transport().owners(name, [name]).values())
