"""What every transport guarantees, checked on each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from admitone.core.errors import ConfigurationError, Fenced, NotFound
from admitone.transport.folder import FolderLog
from admitone.transport.port import OUTGOING_SCHEMA, RECORD_SCHEMA, Transport

OpenTransport = Callable[[], Transport]


@pytest.fixture(params=["folder"])
def open_transport(request: pytest.FixtureRequest, tmp_path: Path) -> OpenTransport:
    return {"folder": lambda: FolderLog(tmp_path / "log")}[request.param]


@pytest.fixture
def transport(open_transport: OpenTransport) -> Transport:
    return open_transport()


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


def test_what_was_appended_is_read_back_in_order_with_its_offsets(transport: Transport) -> None:
    transport.create_topic("t", 2)
    epoch = transport.init_producer("p")
    first = transport.append("p", epoch, {"t": records("a", "b")})
    second = transport.append("p", epoch, {"t": records("c")})

    assert first.offsets["t"].to_pylist() == [0, 1]
    assert second.offsets["t"].to_pylist() == [2]
    assert everything(transport, "t") == [(0, "a"), (1, "b"), (2, "c")]
    assert everything(transport, "t", partition=1) == []


def test_offsets_come_back_in_the_order_the_records_were_handed_over(transport: Transport) -> None:
    transport.create_topic("t", 3)
    epoch = transport.init_producer("p")
    table = pa.concat_tables(
        [records(str(number), partition=number % 3) for number in (2, 0, 1, 5, 3, 4, 8)]
    )
    appended = transport.append("p", epoch, {"t": table})

    assert appended.offsets["t"].to_pylist() == [0, 0, 0, 1, 1, 1, 2]
    assert everything(transport, "t", 2) == [(0, "2"), (1, "5"), (2, "8")]


def test_records_have_the_columns_of_the_kafka_source(transport: Transport) -> None:
    topic = transport.create_topic("t", 1)
    appended = transport.append("p", transport.init_producer("p"), {"t": records("a")})
    (batch,) = transport.read(topic, 0, 0, 1)

    assert batch.schema == RECORD_SCHEMA
    (row,) = batch.to_pylist()
    assert row["headers"] == [{"key": "h", "value": b"a"}]
    assert int(row["timestamp"].timestamp() * 1000) == appended.published_at


def test_an_append_to_several_topics_is_one_transaction(transport: Transport) -> None:
    transport.create_topic("t", 1)
    transport.create_topic("u", 1)
    old = transport.init_producer("p")
    transport.init_producer("p")
    with pytest.raises(Fenced):
        transport.append("p", old, {"t": records("a"), "u": records("b")})

    assert everything(transport, "t") == everything(transport, "u") == []


def test_a_fenced_producer_leaves_nothing_behind(open_transport: OpenTransport) -> None:
    zombie, successor = open_transport(), open_transport()
    zombie.create_topic("t", 1)
    old = zombie.init_producer("p")
    new = successor.init_producer("p")
    successor.append("p", new, {"t": records("successor")})
    with pytest.raises(Fenced):
        zombie.append("p", old, {"t": records("zombie")})

    assert everything(successor, "t") == [(0, "successor")]


def test_producers_with_other_names_do_not_fence_each_other(transport: Transport) -> None:
    transport.create_topic("t", 1)
    one, two = transport.init_producer("one"), transport.init_producer("two")
    transport.append("one", one, {"t": records("a")})
    transport.append("two", two, {"t": records("b")})

    assert [value for _, value in everything(transport, "t")] == ["a", "b"]


def test_a_range_is_read_without_its_end(transport: Transport) -> None:
    topic = transport.create_topic("t", 1)
    epoch = transport.init_producer("p")
    for value in "abcdef":
        transport.append("p", epoch, {"t": records(value)})
    found = [row["value"] for batch in transport.read(topic, 0, 2, 4) for row in batch.to_pylist()]

    assert found == [b"c", b"d"]


def test_a_recreated_topic_is_another_topic(transport: Transport) -> None:
    before = transport.create_topic("t", 1)
    transport.append("p", transport.init_producer("p"), {"t": records("old")})
    transport.delete_topic("t")
    after = transport.create_topic("t", 1)

    assert after.topic_id != before.topic_id
    assert everything(transport, "t") == []
    with pytest.raises(NotFound):
        transport.ends(before)


def test_creating_a_topic_again_returns_it_and_another_partition_count_is_refused(
    transport: Transport,
) -> None:
    topic = transport.create_topic("t", 2)
    assert transport.create_topic("t", 2) == topic
    with pytest.raises(ConfigurationError, match="has 2 partitions"):
        transport.create_topic("t", 3)


def test_an_unknown_topic_is_named(transport: Transport) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        transport.topic("nowhere")


def test_appends_at_the_same_time_share_no_offset(open_transport: OpenTransport) -> None:
    open_transport().create_topic("t", 1)
    given: list[int] = []

    def produce(name: str) -> None:
        mine = open_transport()
        epoch = mine.init_producer(name)
        for _ in range(10):
            appended = mine.append(name, epoch, {"t": records("x", "y")})
            given.extend(appended.offsets["t"].to_pylist())
        mine.close()

    threads = [threading.Thread(target=produce, args=(f"p{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(given) == list(range(80))


def test_append_time_never_goes_back(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    transport.create_topic("t", 1)
    epoch = transport.init_producer("p")
    first = transport.append("p", epoch, {"t": records("a")}).published_at
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000)

    assert transport.append("p", epoch, {"t": records("b")}).published_at >= first
