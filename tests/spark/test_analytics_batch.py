"""Counting through Spark: a batch of admitted records, and the streaming query over the log."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from admitone.analytics import open_sketch_store
from admitone.analytics.admitted_records import positions_in, stamps_in
from admitone.core.errors import ContractDrift, IntegrityError
from admitone.core.replay_filter import Reached
from admitone.core.windows import MINUTE_MS, parse_window
from admitone.core.wire import ADMITTED_HEADERS, StreamMetadata
from admitone.settings import load_settings
from admitone.spark.analytics_query import (
    CountedTopics,
    analytics_query,
    count_into,
    next_offsets,
    note_begin,
)
from admitone.spark.folder_source import folder_stream
from admitone.spark.kafka_source import COUNTED
from admitone.transport import open_transport
from admitone.transport.port import OUTGOING_SCHEMA, RECORD_SCHEMA, Topic
from tests.support.counted import sketch_in
from tests.support.running import shared_spark

T0 = parse_window("minute_202611151000").start_ms
TOPIC = "admitted.traffic"


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_spark().newSession()


def test_a_second_session_reads_the_log_beside_one_that_is_active(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = load_settings(tmp_path)
    transport = open_transport(settings)
    begin = {transport.create_topic(TOPIC, 1): [0]}
    for session in (spark, spark.newSession()):
        assert folder_stream(session, settings, begin, 10, packed=False).isStreaming
        # A query that starts makes its session the one that is active.
        session._jvm.SparkSession.setActiveSession(session._jsparkSession)


def admitted(first: int, last: int, partition: int = 0) -> list[dict[str, object]]:
    return [
        {
            "key": StreamMetadata(1, partition, offset).to_bytes(),
            "value": orjson.dumps(
                {
                    "metadata": {"eventType": "page_view"},
                    "payload": {"url": f"/{offset % 3}", "deviceType": "mobile"},
                }
            ),
            "topic": TOPIC,
            "partition": partition,
            "offset": offset,
            "timestamp": T0 * 1000,
            "timestampType": 1,
            "headers": [
                {"key": "stream-time", "value": str(T0 + offset * 1000).encode()},
                {"key": "event-time", "value": str(T0 + offset * 1000).encode()},
            ],
        }
        for offset in range(first, last)
    ]


def test_a_batch_counts_once_and_a_re_read_changes_nothing(spark, tmp_path):
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    topics = CountedTopics(lambda: {TOPIC: Topic(TOPIC, "T", 4)})
    count = count_into(store, settings, topics, lambda _: {})

    def batch(*records: list[dict[str, object]]):
        rows = [record for part in records for record in part]
        return spark.createDataFrame(pa.Table.from_pylist(rows, schema=RECORD_SCHEMA))

    count(batch(admitted(0, 60), admitted(0, 30, partition=1)), 0)
    count(batch(admitted(0, 60), admitted(0, 30, partition=1)), 0)
    count(batch(admitted(30, 90)), 1)

    assert store.marks() == {("T", 0): 89, ("T", 1): 29}
    for name in ("url", "url|deviceType=mobile"):
        minute = sketch_in(store, parse_window("minute_202611151000"), name)
        assert (minute.total, minute.bounds("/0")) == (90, (30, 30))
        assert sketch_in(store, parse_window("global"), name).total == 120
    store.close()


def test_what_was_written_to_a_topic_twice_is_counted_once(spark, tmp_path):
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    topics = CountedTopics(lambda: {TOPIC: Topic(TOPIC, "T", 4)})
    count = count_into(store, settings, topics, lambda _: {})

    def write(first: int, last: int, at: int) -> None:
        rows = [{**row, "offset": at + number} for number, row in enumerate(admitted(first, last))]
        table = pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)
        count(spark.createDataFrame(table).coalesce(1), 0)

    write(0, 40, at=0)
    write(20, 60, at=40)

    assert sketch_in(store, parse_window("global"), "url").total == 60
    assert store.upstream_marks() == {("T", 0): {(1, 0): Reached(59, 59)}}
    (mark,) = store.state().marks
    assert (mark.offset, mark.replayed, mark.order_violations) == (79, 20, 1)
    store.close()


def test_other_partitions_than_its_marks_were_made_for_stop_the_counting(tmp_path):
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    topics = [CountedTopics(lambda n=n: {TOPIC: Topic(TOPIC, "T", n)}) for n in (4, 6)]
    unfiltered = settings.topics[0].model_copy(update={"filter_replays": False})
    without = settings.model_copy(update={"topics": (unfiltered,)})

    def nowhere(_: int) -> dict[str, dict[int, int]]:
        return {}

    count_into(store, settings, topics[0], nowhere)
    with pytest.raises(ContractDrift, match="made for 4"):
        count_into(store, settings, topics[1], nowhere)

    count_into(store, without, topics[1], nowhere)
    count_into(store, settings, topics[1], nowhere)
    store.close()


def test_a_topic_recreated_while_it_is_counted_is_not_counted(spark, tmp_path):
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    ids = iter(["T", "T2"])
    topics = CountedTopics(lambda: {TOPIC: Topic(TOPIC, next(ids), 4)})
    count = count_into(store, settings, topics, lambda _: {})
    frame = spark.createDataFrame(pa.Table.from_pylist(admitted(0, 5), schema=RECORD_SCHEMA))

    with pytest.raises(IntegrityError, match="recreated"):
        count(frame, 0)

    assert store.marks() == {}
    store.close()


def test_the_query_goes_on_from_the_marks_without_its_checkpoint(spark, tmp_path: Path):
    settings = load_settings(tmp_path)
    transport = open_transport(settings)
    transport.create_topic(TOPIC, 4)
    epoch = transport.init_producer("test")
    store = open_sketch_store(settings)

    for first, last in ((0, 60), (60, 200)):
        rows = [
            {name: row[name] for name in OUTGOING_SCHEMA.names}
            for partition in range(4)
            for row in admitted(first, last, partition)
        ]
        transport.append("test", epoch, {TOPIC: pa.Table.from_pylist(rows, schema=OUTGOING_SCHEMA)})
        query = analytics_query(spark, settings, "0 seconds")
        deadline = time.monotonic() + 60
        while sorted(store.marks().values()) != [last - 1] * 4 and time.monotonic() < deadline:
            assert query.exception() is None
            time.sleep(0.1)
        query.stop()

    assert sorted(store.marks().values()) == [199] * 4
    assert sketch_in(store, parse_window("global"), "url").total == 800
    assert sketch_in(store, parse_window("hour_2026111510"), "url").total == 800
    clock = store.state().clock
    assert clock.frontier // MINUTE_MS == (T0 + 199_000) // MINUTE_MS
    folders = list(settings.resolve(settings.spark.checkpoints).glob("analytics-*"))
    assert len(folders) == 1
    store.close()


def test_marks_move_to_the_end_of_a_batch_even_where_its_last_offsets_hold_no_record(
    spark, tmp_path
):
    settings = load_settings(tmp_path)
    store = open_sketch_store(settings)
    topics = CountedTopics(lambda: {TOPIC: Topic(TOPIC, "T", 4)})
    ends = iter([{TOPIC: {0: 12, 1: 7}}, {TOPIC: {0: 12, 1: 9}}])
    count = count_into(store, settings, topics, lambda _: next(ends))
    records = pa.Table.from_pylist(admitted(0, 10), schema=RECORD_SCHEMA)
    nothing = records.slice(0, 0)

    count(spark.createDataFrame(records), 0)
    assert store.marks() == {("T", 0): 11, ("T", 1): 6}
    count(spark.createDataFrame(nothing), 1)
    assert store.marks() == {("T", 0): 11, ("T", 1): 8}
    assert {mark.partition: mark.counted for mark in store.state().marks} == {0: 10, 1: 0}


def test_where_counting_begins_is_noted_before_anything_is_counted(tmp_path):
    store = open_sketch_store(load_settings(tmp_path))
    begin = {Topic(TOPIC, "T", 2): [0, 500]}
    note_begin(store, begin)
    noted = store.marks()
    note_begin(store, {Topic(TOPIC, "T", 2): [40, 600]})

    assert noted == store.marks() == {("T", 0): -1, ("T", 1): 499}
    assert next_offsets(store, {TOPIC: "T"}) == {TOPIC: {0: 0, 1: 500}}


def test_what_is_taken_out_of_kafkas_headers_is_what_they_say(spark):
    position = StreamMetadata(5, 1, 9).to_bytes()
    usual = [(name, b"1") for name in ADMITTED_HEADERS[:8]]
    times = [("event-time", b"170"), ("stream-time", b"190")]
    claimed = [*usual[:7], ("admitted-at", b"180"), *times, ("block", b"7")]
    headers = [
        claimed,
        [*claimed, ("position", position)],
        [*claimed, ("origin", b"x"), ("position", position)],
        [*claimed[:-1], ("block", b"of wood")],
        [*claimed[::-1], ("origin", b"x")],
        [*usual, *times],
        [*usual, *times, ("position", position)],
        [*usual, *times, ("origin", b"x"), ("position", position)],
        [*usual, *times, ("position", b"too short")],
        times,
        [*times[::-1], *usual],
        [*usual, ("event-time", b"soon"), ("stream-time", None)],
        [*usual, ("event-time", b"-5"), ("stream-time", b"9" * 30)],
        usual,
        [],
        None,
    ]
    records = admitted(0, len(headers))
    rows = [{**record, "headers": found} for record, found in zip(records, headers, strict=True)]
    table = pa.Table.from_pylist(rows, schema=RECORD_SCHEMA)
    (whole,) = table.to_batches()
    taken = spark.createDataFrame(table).coalesce(1).selectExpr(*COUNTED).toArrow()
    (columns,) = taken.combine_chunks().to_batches()

    assert "headers" not in columns.schema.names
    for said, found in zip(stamps_in(whole), stamps_in(columns), strict=True):
        assert found.tolist() == said.tolist()
    assert positions_in(columns).to_pylist() == positions_in(whole).to_pylist()
    assert positions_in(columns)[1].as_py() == position
