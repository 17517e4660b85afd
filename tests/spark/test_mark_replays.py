"""Replays found on anybody's DataFrame: in a batch, in a stream, and among aggregates."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from admitone import (
    ConfigurationError,
    StreamMetadata,
    aggregate_partitions,
    filter_replays,
    mark_replays,
    metadata_key,
)
from tests.support.running import shared_spark

SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, price DECIMAL(20, 4), tags MAP<STRING, INT>,"
    " nested STRUCT<moment: TIMESTAMP, words: ARRAY<STRING>>"
)
NEW, REPLAYED, UNKEYED, FOREIGN = "new", "replayed", "unkeyed", "foreign"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    """A session as a user might make it: default state store, another time zone, an hour that comes twice."""
    session = shared_spark().newSession()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    return session


def record(
    offset: int, key: bytes | None, partition: int = 0, topic: str = "b", **changes: Any
) -> Row:
    # Half past two happened twice in Berlin on this day.
    moment = datetime(2025, 10, 26, offset % 2, 30, 0, 123456, tzinfo=UTC)
    return {
        "key": key,
        "value": f"{topic}/{partition}/{offset}".encode(),
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": moment,
        "headers": [("h", b"\x00\xff"), ("n", None)] if offset % 3 else None,
        "price": Decimal("123456789012.3456"),
        "tags": {"a": offset},
        "nested": (moment, ["x", None]),
        **changes,
    }


def position(offset: int, producer: int = 1, partition: int = 0) -> bytes:
    return StreamMetadata(producer, partition, offset).to_bytes()


def traffic(seed: int, size: int = 300) -> list[Row]:
    """Return what several jobs wrote to two topics, replays and strangers among it."""
    rng = random.Random(seed)
    rows, reached = [], {}
    ends: dict[tuple[str, int], int] = {}
    while len(rows) < size:
        upstream = rng.choice([1, -2, 9]), rng.randrange(3)
        first = max(0, reached.get(upstream, 0) - rng.choice([0, 0, 4]))
        for offset in range(first, first + rng.randint(1, 9)):
            key = rng.choices([position(offset, *upstream), None, b"stranger"], [8, 1, 1])[0]
            place = rng.choice("bc"), rng.randrange(2)
            place = (place[0], upstream[1] % 2)
            ends[place] = ends.get(place, 0) + rng.randint(1, 2)
            rows.append(record(ends[place], key, place[1], place[0]))
            reached[upstream] = max(reached.get(upstream, 0), offset + 1)
    return rows


def expected(rows: list[Row], producers: set[int] | None = None) -> list[tuple[str, int, int, str]]:
    marks: dict[Any, int] = {}
    found = []
    for row in sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"])):
        metadata = StreamMetadata.from_bytes(row["key"])
        if row["key"] is None:
            kind = UNKEYED
        elif metadata is None or (producers is not None and metadata.producer_id not in producers):
            kind = FOREIGN
        else:
            place = (row["topic"], row["partition"], *metadata[:2])
            kind = NEW if metadata.offset > marks.get(place, -1) else REPLAYED
            marks[place] = max(metadata.offset, marks.get(place, -1))
        found.append((row["topic"], row["partition"], row["offset"], kind))
    return found


def kinds(df: DataFrame) -> list[tuple[str, int, int, str]]:
    rows = df.select("topic", "partition", "offset", "replay").collect()
    return sorted(tuple(row) for row in rows)


def shuffled(spark: SparkSession, rows: list[Row]) -> DataFrame:
    rows = random.Random(0).sample(rows, len(rows))
    return spark.createDataFrame(rows, SCHEMA).repartition(3)


class Stream:
    """A stream over files, one to a micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._written = 0
        (folder / "in").mkdir()

    def write(self, rows: list[Row]) -> None:
        rows = random.Random(0).sample(rows, len(rows))
        frame = self._spark.createDataFrame(rows, SCHEMA)
        frame.coalesce(1).write.parquet(str(self._folder / "in" / f"{self._written:03d}"))
        self._written += 1

    def read(self) -> DataFrame:
        return (
            self._spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self._folder / "in" / "*"))
        )

    def run(self, df: DataFrame, name: str) -> DataFrame:
        """Run until everything written so far is read; return all that came out, from every run."""
        query = (
            df.writeStream.option("checkpointLocation", str(self._folder / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._folder / name), format="parquet")
        )
        query.awaitTermination(120)
        return self._spark.read.schema(df.schema).parquet(str(self._folder / name))


@pytest.mark.parametrize("producers", [None, {1, -2}, set()])
def test_a_batch_is_marked_as_by_the_model_whatever_the_order_of_its_rows(
    spark: SparkSession, producers: set[int] | None
) -> None:
    rows = traffic(7)
    assert kinds(mark_replays(shuffled(spark, rows), producers)) == expected(rows, producers)


def test_a_stream_is_marked_as_by_the_model_across_batches_and_restarts(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = traffic(8)
    stream = Stream(spark, tmp_path)
    for start in range(0, 200, 50):
        stream.write(rows[start : start + 50])
    marked = mark_replays(stream.read(), {1, -2})
    assert kinds(stream.run(marked, "out")) == expected(rows[:200], {1, -2})
    stream.write(rows[200:])

    out = stream.run(mark_replays(stream.read(), {1, -2}), "out")
    assert kinds(out) == expected(rows, {1, -2})
    assert {kind for *_, kind in kinds(out)} == {NEW, REPLAYED, UNKEYED, FOREIGN}


def test_every_other_column_comes_out_as_it_went_in(spark: SparkSession, tmp_path: Path) -> None:
    rows = traffic(9, 40)
    stream = Stream(spark, tmp_path)
    stream.write(rows)
    given = spark.read.schema(SCHEMA).parquet(str(tmp_path / "in" / "*"))
    batch = mark_replays(given)
    streamed = stream.run(mark_replays(stream.read()), "out")

    assert [field.name for field in streamed.schema] == [*given.columns, "replay"]
    for marked in (batch, streamed):
        back = marked.drop("replay")
        assert [f.dataType for f in back.schema] == [f.dataType for f in given.schema]
        as_text = [frame.select(F.to_json(F.struct("*"))) for frame in (given, back)]
        assert as_text[0].exceptAll(as_text[1]).count() == 0
        assert as_text[1].count() == len(rows)


def test_the_filter_keeps_what_is_new_and_strangers_unless_it_is_strict(
    spark: SparkSession,
) -> None:
    rows = [
        record(0, position(5)), record(1, None), record(2, b"stranger"), record(3, position(5)),
        record(4, position(5, producer=2)), record(5, position(6)),
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, SCHEMA)

    def kept(**options: Any) -> list[int]:
        return sorted(row.offset for row in filter_replays(frame, {1}, **options).collect())

    assert kept() == [0, 1, 2, 4, 5]
    assert kept(strict=True) == [0, 5]
    assert filter_replays(frame).columns == frame.columns


def test_a_header_says_where_a_record_comes_from_when_its_key_does_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        record(number, b"customer-7", headers=[("position", position(offset)), ("h", b"")])
        for number, offset in enumerate([3, 4, 3, 5])
    ]
    stream = Stream(spark, tmp_path)
    stream.write(rows)
    wanted = [NEW, NEW, REPLAYED, NEW]

    for marked in (
        mark_replays(spark.createDataFrame(rows, SCHEMA)),
        stream.run(mark_replays(stream.read()), "out"),
    ):
        assert [kind for *_, kind in kinds(marked)] == wanted


def test_a_key_column_holds_the_bytes_of_stream_metadata(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(0, 0), (7, 2**62), (2**31 - 1, 2**63 - 1)], "partition INT, offset BIGINT"
    )
    for producer in (-(2**63), -1, 5, 2**63 - 1):
        for row in frame.withColumn("key", metadata_key(producer)).collect():
            found = StreamMetadata.from_bytes(bytes(row.key))
            assert found == (producer, row.partition, row.offset)


def test_a_record_that_lies_elsewhere_than_its_source_partition_ends_the_query(
    spark: SparkSession,
) -> None:
    right = [record(0, position(5, partition=3), partition=1), record(1, None, partition=0)]
    moved = [*right, record(2, position(6, partition=3), partition=3)]

    assert mark_replays(spark.createDataFrame(right, SCHEMA), partitions=2).count() == 2
    with pytest.raises(PySparkException, match="CONTRACT_DRIFT"):
        mark_replays(spark.createDataFrame(moved, SCHEMA), partitions=2).collect()


@pytest.mark.parametrize("lacking", ["key", "topic", "partition", "offset"])
def test_columns_that_are_not_there_are_named(spark: SparkSession, lacking: str) -> None:
    frame = spark.createDataFrame([record(0, None)], SCHEMA)
    with pytest.raises(ConfigurationError, match=lacking):
        mark_replays(frame.drop(lacking))
    with pytest.raises(ConfigurationError, match="'replay' already"):
        mark_replays(frame.withColumn("replay", F.lit(1)))
    for number in (2**63, "me"):
        with pytest.raises(ConfigurationError, match="64 bits"):
            mark_replays(frame, {number})  # type: ignore[arg-type]


EVENTS = [(0, offset, f"user-{offset % 3}", 1 + offset) for offset in range(30)]


def aggregated(spark: SparkSession, *edges: int) -> list[Row]:
    """Return what a job writes that aggregates one partition in batches with these edges."""
    frame = spark.createDataFrame(
        EVENTS, "partition INT, offset BIGINT, user STRING, amount BIGINT"
    )
    frame = frame.withColumn("topic", F.lit("a"))
    written = []
    for first, last in itertools.pairwise(edges):
        batch = frame.where(F.col("offset").between(first, last - 1))
        made = aggregate_partitions(
            batch, F.sum("amount").alias("amount"), producer=11, by=["user"]
        )
        (row,) = made.select(
            "key", "headers", F.to_json("groups").cast("binary").alias("value")
        ).collect()
        written.append(row.asDict())
    return written


def totals(spark: SparkSession, df: DataFrame) -> dict[str, int]:
    groups = F.from_json(
        F.col("value").cast("string"), "ARRAY<STRUCT<user: STRING, amount: BIGINT>>"
    )
    rows = (
        df.select(F.explode(groups).alias("group")).groupBy("group.user").agg(F.sum("group.amount"))
    )
    return dict(rows.collect())


def on_the_log(spark: SparkSession, written: list[Row]) -> DataFrame:
    rows = [{**row, "topic": "b", "partition": 0, "offset": n} for n, row in enumerate(written)]
    columns = ("key", "value", "topic", "partition", "offset", "headers", "timestamp")
    empty = spark.createDataFrame([], SCHEMA).select(*columns)
    moment = datetime(2026, 1, 5, tzinfo=UTC)
    return spark.createDataFrame([{**row, "timestamp": moment} for row in rows], empty.schema)


def test_a_shifted_batch_boundary_counts_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """The first run wrote 0-9 and 10-19, fell back to 10, and then cut its batches at 25 and 30."""
    truth: dict[str, int] = {}
    for _, _, user, amount in EVENTS:
        truth[user] = truth.get(user, 0) + amount
    once = on_the_log(spark, aggregated(spark, 0, 10, 20, 30))
    assert totals(spark, filter_replays(once, spans=True)) == truth

    shifted = on_the_log(spark, [*aggregated(spark, 0, 10, 20), *aggregated(spark, 10, 25, 30)])
    by_key_alone = totals(spark, filter_replays(shifted))
    assert sum(by_key_alone.values()) > sum(truth.values())

    marked = mark_replays(shifted, spans=True)
    assert [kind for *_, kind in kinds(marked)] == [NEW, NEW, "shifted", NEW]
    counted = totals(spark, marked.where("replay = 'new'"))
    assert all(counted[user] <= truth[user] for user in truth)
    with pytest.raises(PySparkException, match="INTEGRITY"):
        filter_replays(shifted, spans=True).collect()

    repaired = on_the_log(
        spark,
        [*aggregated(spark, 0, 10, 20), *aggregated(spark, 10, 25), *aggregated(spark, 20, 25, 30)],
    )
    marked = mark_replays(repaired, spans=True)
    assert totals(spark, marked.where("replay = 'new'")) == truth


def test_replayed_aggregates_are_found_in_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    written = [
        *aggregated(spark, 0, 10, 20),
        *aggregated(spark, 10, 20, 30),
        *aggregated(spark, 25, 30),
    ]
    frame = on_the_log(spark, written)
    for number in range(len(written)):
        frame.where(F.col("offset") == number).coalesce(1).write.parquet(
            str(tmp_path / "in" / str(number))
        )
    stream = spark.readStream.schema(frame.schema).option("maxFilesPerTrigger", 2)
    query = (
        mark_replays(stream.parquet(str(tmp_path / "in" / "*")), {11}, spans=True)
        .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"), format="parquet")
    )
    query.awaitTermination(120)

    found = kinds(spark.read.parquet(str(tmp_path / "out")))
    assert [kind for *_, kind in found] == [NEW, NEW, REPLAYED, NEW, REPLAYED]


def test_aggregates_say_which_offsets_they_stand_for(spark: SparkSession) -> None:
    rows = [(0, 3, "a", 1), (0, 9, "b", 2), (1, 4, "a", 3)]
    frame = spark.createDataFrame(rows, "partition INT, offset BIGINT, user STRING, amount BIGINT")
    frame = frame.withColumn("topic", F.lit("t"))
    made = aggregate_partitions(frame, F.count("*").alias("count"), producer=-6)
    found = {row.partition: row for row in made.collect()}

    assert {p: (r.first_offset, r.last_offset, r["count"]) for p, r in found.items()} == {
        0: (3, 9, 2),
        1: (4, 4, 1),
    }
    assert StreamMetadata.from_bytes(bytes(found[0].key)) == (-6, 0, 9)
    assert [(h.key, bytes(h.value)) for h in found[0].headers] == [
        ("first-offset", (3).to_bytes(8, "big"))
    ]
    two_topics = frame.withColumn("topic", F.concat(F.lit("t"), "user"))
    with pytest.raises(PySparkException, match="aggregate each topic for itself"):
        aggregate_partitions(two_topics, F.count("*"), producer=-6, by=["user"]).collect()
