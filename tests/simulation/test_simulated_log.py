"""What the simulated log has of Kafka beyond the contract: late ends of transactions, refusals."""

from __future__ import annotations

import pyarrow as pa
import pytest

from admitone.core.errors import RecordsRefused, ServiceUnreachable
from admitone.simulation.ledger import SimulatedStore
from admitone.simulation.log import SimulatedLog
from admitone.transport.port import OUTGOING_SCHEMA

REFUSED = b"refused"


@pytest.fixture
def log() -> SimulatedLog:
    log = SimulatedLog(refuses=lambda topic, value: value == REFUSED)
    log.create_topic("t", 2)
    return log


def records(*values: bytes) -> dict[str, pa.Table]:
    rows = [{"partition": 0, "key": None, "value": value, "headers": []} for value in values]
    return {"t": pa.Table.from_pylist(rows, schema=OUTGOING_SCHEMA)}


def readable(log: SimulatedLog) -> list[bytes]:
    topic = log.topic("t")
    end = log.ends(topic, readable=True)[0]
    batches = log.read(topic, 0, 0, end)
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def test_a_late_end_ends_what_had_arrived_of_the_next_transaction(log: SimulatedLog) -> None:
    epoch = log.init_producer("p")
    first = log.write("p", epoch, records(b"1"))
    log.commit(first)
    second = log.write("p", epoch, records(b"2", b"3"))
    log.commit(first)

    assert readable(log) == [b"1", b"2"]
    log.abort(second)
    assert readable(log) == [b"1", b"2"]


def test_an_end_that_is_asked_for_twice_changes_nothing_and_the_other_end_is_an_error(
    log: SimulatedLog,
) -> None:
    transaction = log.write("p", log.init_producer("p"), records(b"1"))
    log.commit(transaction)
    log.commit(transaction)

    with pytest.raises(ServiceUnreachable):
        log.abort(transaction)
    assert readable(log) == [b"1"]


def test_what_is_refused_is_named_and_nothing_of_its_append_stays(log: SimulatedLog) -> None:
    epoch = log.init_producer("p")
    with pytest.raises(RecordsRefused) as refusal:
        log.append("p", epoch, records(b"1", REFUSED, b"2"))

    assert refusal.value.rows == {"t": [1]}
    assert readable(log) == []
    log.append("p", epoch, records(b"1", b"2"))
    assert readable(log) == [b"1", b"2"]


def test_a_snapshot_stays_what_it_was_and_the_next_store_finds_nothing_of_the_last_one() -> None:
    store = SimulatedStore()
    with store.snapshot() as before:
        store.run(lambda rows: rows.change("INSERT INTO generation VALUES ('p', 1)"))
        assert before.all("SELECT * FROM generation") == []
        assert store._asked(lambda rows: rows.all("SELECT * FROM generation")) == [("p", 1)]
    store.run(
        lambda rows: rows.change(
            "INSERT INTO accepted_topic (cluster, topic, topic_id, at, author, reason)"
            " VALUES ('c', 't', 'i', 1, 'a', 'r')"
        )
    )
    store.discard()
    following = SimulatedStore()

    for table in ("generation", "accepted_topic", "sqlite_sequence"):
        assert following.read(lambda rows: rows.all(f"SELECT * FROM {table}")) == []  # noqa: B023, S608
