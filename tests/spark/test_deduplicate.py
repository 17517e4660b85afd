"""Deduplication by engine state, against a model of its window: every row is kept, a repeat, or out with a reason."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from admitone import ConfigurationError, deduplicate
from admitone.core.keys import KeyRule
from admitone.settings import StateSettings
from admitone.spark.deduplicate import keyed
from admitone.spark.rocksdb import state_metrics, state_options, use_rocksdb
from tests.support.running import shared_spark

WITHIN = 100_000
START = 1_700_000_000_000
MINUTE = 60_000
SCHEMA = "number INT, key STRING, moment BIGINT"


class Row(NamedTuple):
    """One record of a stream; numbered, so that each can be told from its repeats."""

    number: int
    key: str | None
    moment: int | None


class Out(NamedTuple):
    """What came out of one batch: the kept rows, and the others with their reason."""

    kept: list[Row]
    aside: dict[Row, str]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    session = shared_spark().newSession()
    use_rocksdb(session, StateSettings())
    return session


class Stream:
    """A folder of files, one batch to a file, and the query that deduplicates them."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self.spark, self.checkpoint, self.folder = spark, home / "checkpoint", home / "in"
        self.folder.mkdir()
        self.files = 0
        self.out: dict[int, Out] = {}
        self.progress: list[Any] = []

    def add(self, *batches: list[Row]) -> None:
        for rows in batches:
            file = self.folder / f"{self.files}.json"
            file.write_text("\n".join(json.dumps(row._asdict()) for row in rows))
            os.utime(file, (1e9 + self.files, 1e9 + self.files))
            self.files += 1

    def read(self) -> DataFrame:
        frame = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return frame.json(str(self.folder)).withColumn("timestamp", F.timestamp_millis("moment"))

    def run(
        self, frame: DataFrame | None = None, seen: Callable[[int], None] = lambda _: None
    ) -> None:
        """Let the query read everything there is; by default it routes what is late."""
        if frame is None:
            frame = deduplicate(self.read(), "key", f"{WITHIN}ms", checkpoint=self.checkpoint)

        def take(batch: DataFrame, batch_id: int) -> None:
            rows = [row.asDict() for row in batch.collect()]
            seen(batch_id)
            made = [(Row(*(row[name] for name in Row._fields)), row) for row in rows]
            self.out[batch_id] = Out(
                [each for each, row in made if row.get("dedup_reason") is None],
                {each: row["dedup_reason"] for each, row in made if row.get("dedup_reason")},
            )

        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            self.progress += query.recentProgress


def expected(batches: list[list[Row]]) -> tuple[list[set[str]], list[dict[Row, str]]]:
    """Return the keys kept and the rows put aside in each batch, by a model of the window."""
    expires: dict[str, float] = {}
    newest, watermark = float("-inf"), 0.0
    kept, aside = [], []
    for rows in batches:
        late = {row: "TOO_OLD" for row in rows if row.moment <= watermark}
        fresh = [row for row in rows if row not in late and row.key not in expires]
        kept.append({row.key for row in fresh})
        aside.append(late)
        # Which row of a batch is kept is not known: tests give rows of one key and batch the same time.
        expires |= {row.key: row.moment + WITHIN for row in fresh}
        expires = {key: moment for key, moment in expires.items() if moment > watermark}
        newest = max([newest, *(row.moment for row in rows if row not in late)])
        watermark = max(watermark, newest - WITHIN)
    return kept, aside


def disorderly(seed: int, batches: int, rows: int) -> list[list[Row]]:
    """Return batches whose time moves on, with repeats at all distances, late rows, and rows at the watermark."""
    rng = random.Random(seed)
    numbers = itertools.count()
    made: list[list[Row]] = []
    for batch in range(batches):
        newest = max((row.moment for before in made for row in before), default=START)
        times = {"at": newest - WITHIN, "after": newest - WITHIN + 1}
        found = [Row(next(numbers), key, moment) for key, moment in times.items()]
        for _ in range(rows):
            key = f"k{rng.randrange(rows * 2)}"
            edge = WITHIN + rng.choice([-1, 0, 1])
            age = rng.choice([rng.randrange(40_000), rng.randrange(300_000), edge])
            moment = times.setdefault(key, START + batch * 30_000 - age)
            found.append(Row(next(numbers), key, moment))
        made.append(found)
    return made


def test_every_row_is_kept_a_counted_repeat_or_out_with_a_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = disorderly(seed=4, batches=8, rows=120)
    stream = Stream(spark, tmp_path)
    stream.add(*batches[:5])
    stream.run()
    stream.add(*batches[5:])
    stream.run()  # goes on where the first run stopped, with its watermark and its keys

    # A run ends with a batch without rows, which only evicts.
    keys, aside = expected([*batches[:5], [], *batches[5:], []])
    done = [out for _, out in sorted(stream.out.items())]
    assert [sorted(row.key for row in out.kept) for out in done] == [sorted(each) for each in keys]
    assert [out.aside for out in done] == aside
    assert sum(map(len, aside)) > 50

    metrics = [state_metrics(progress) for progress in stream.progress]
    rows = sum(map(len, batches))
    assert sum(each.dropped_duplicates for each in metrics) == rows - sum(
        len(out.kept) + len(out.aside) for out in done
    )
    assert {each.dropped_late for each in metrics} == {0}
    assert sum(each.rows_added for each in metrics) - sum(each.evicted for each in metrics) == (
        metrics[-1].rows
    )
    assert metrics[-1].evicted > 0


def test_without_a_checkpoint_spark_drops_late_rows_and_counts_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Why late rows are routed: this is what happens to them otherwise."""
    stream = Stream(spark, tmp_path)
    first, late = Row(0, "a", START), Row(2, "b", START - 500_000)
    stream.add([first], [Row(1, "a", START)], [late])
    stream.run(deduplicate(stream.read(), "key", f"{WITHIN}ms"))

    assert [row for out in stream.out.values() for row in out.kept] == [first]
    metrics = [state_metrics(progress) for progress in stream.progress]
    assert sum(each.dropped_late for each in metrics) == 1
    assert sum(each.dropped_duplicates for each in metrics) == 1


def test_rows_that_cannot_be_judged_come_out_each_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    now = time.time_ns() // 1_000_000
    soon = now + 30 * MINUTE
    batch = [
        Row(0, None, now), Row(1, None, now), Row(2, "a", None), Row(3, "a", now + 120 * MINUTE),
        Row(4, "a", now), Row(5, "b", soon), Row(6, "b", soon),
    ]  # fmt: skip
    stream = Stream(spark, tmp_path)
    stream.add(batch, [Row(7, "c", now - 20 * MINUTE), Row(8, "b", now)])
    stream.run(deduplicate(stream.read(), "key", "1h", checkpoint=stream.checkpoint))

    first, second = stream.out[0], stream.out[1]
    assert {row.number: reason for row, reason in first.aside.items()} == {
        0: "IDENTITY_INVALID", 1: "IDENTITY_INVALID", 2: "TIMESTAMP_INVALID", 3: "TOO_FAR_IN_FUTURE",
    }  # fmt: skip
    assert sorted(row.key for row in first.kept) == ["a", "b"]
    # A clock half an hour fast made nobody late, and its key is remembered.
    assert [row.number for row in second.kept] == [7]
    assert second.aside == {}


def test_a_batch_that_fails_is_judged_the_same_when_it_runs_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = disorderly(seed=9, batches=6, rows=40)
    stream = Stream(spark, tmp_path)
    stream.add(*batches)
    tried: list[int] = []

    def fail_once(batch_id: int) -> None:
        tried.append(batch_id)
        if tried.count(3) == 1 and batch_id == 3:
            raise RuntimeError("the sink is gone")

    with pytest.raises(Exception, match="the sink is gone"):
        stream.run(seen=fail_once)
    stream.run(seen=fail_once)

    assert tried.count(3) == 2
    keys, aside = expected(batches)
    done = [stream.out[batch] for batch in range(6)]
    assert [{row.key for row in out.kept} for out in done] == keys
    assert [out.aside for out in done] == aside


def test_a_lost_checkpoint_forgets_every_key(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add([Row(0, "a", START)], [Row(1, "a", START)])
    stream.run()
    assert [row.number for out in stream.out.values() for row in out.kept] == [0]

    shutil.rmtree(stream.checkpoint)
    shutil.rmtree(stream.folder)
    stream.folder.mkdir()
    stream.add([Row(2, "a", START)])
    stream.run()
    assert [row.number for row in stream.out[0].kept] == [2]


def test_the_checkpoint_of_another_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add([Row(0, "a", START)])
    stream.run()
    wrong = deduplicate(stream.read(), "key", "1h", checkpoint=stream.checkpoint)
    nowhere = deduplicate(stream.read(), "key", "1h", checkpoint=tmp_path / "nowhere")
    stream.checkpoint = tmp_path / "another"

    with pytest.raises(Exception, match=r"\[INTEGRITY\] .* is the checkpoint of another query"):
        stream.run(wrong)
    with pytest.raises(Exception, match=r"\[INTEGRITY\] Expected the watermark of batch 0"):
        stream.run(nowhere)


def test_what_cannot_be_deduplicated_is_refused_before_it_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path).read()
    for arguments, said in (
        (("key", "soon"), "within: expected a number and one of"),
        (("id", "1h"), "Expected columns id, timestamp, got number, key, moment, timestamp"),
        (([], "1h"), "Expected columns timestamp"),
        (("key", "1h", "moment"), "Expected moment to be a timestamp, got bigint"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            deduplicate(stream, *arguments)
    table = spark.sql("SELECT 'a' AS key, current_timestamp() AS timestamp")
    with pytest.raises(ConfigurationError, match="Only a stream has a checkpoint"):
        deduplicate(table, "key", "1h", checkpoint=tmp_path)


def test_records_get_the_key_of_their_rule_or_a_reason(spark: SparkSession) -> None:
    values = [
        b'{"metadata": {"eventId": "e1", "eventType": "t", "runId": "own"}, "payload": {"n": 1}}',
        b'{"metadata": {"eventId": "e1", "eventType": "t"}, "payload": {"n": 1.0}}',
        b'{"metadata": {}}',
        b"no json",
        None,
    ]
    headers = [None, [("runId", b"named")], [("runId", b"\xff")], [("other", b"x")], None]
    frame = spark.createDataFrame(
        list(zip(map(bytearray_or_none, values), headers, strict=True)),
        "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>",
    )

    def found(rule: KeyRule, frame: DataFrame = frame) -> list[tuple[str | None, str | None]]:
        return [
            (row.dedup_key, row.dedup_reason) for row in keyed(frame, rule, "default").collect()
        ]

    bad = [(None, "NOT_JSON"), (None, "NOT_JSON")]
    invalid = (None, "IDENTITY_INVALID")
    identity = KeyRule.of("identity")
    assert found(identity) == [
        ('json:["own","t","e1"]', None), ('json:["named","t","e1"]', None), invalid, *bad,
    ]  # fmt: skip
    assert found(identity, frame.drop("headers"))[1] == ('json:["default","t","e1"]', None)
    assert found(KeyRule.of("field", ["payload.n"])) == [
        ("json:1", None), ("json:1", None), invalid, *bad,
    ]  # fmt: skip
    by_content = found(KeyRule.of("content"))
    assert by_content[0] == by_content[1]
    assert by_content[0][0].startswith("sha256:")


def test_a_reason_from_before_stays_and_its_row_comes_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)
    stream.add([Row(number, "same", START) for number in range(4)])
    known = F.when(F.col("number") < 2, F.lit("NOT_JSON"))
    frame = stream.read().withColumn("dedup_reason", known)
    stream.run(deduplicate(frame, "key", "1h", checkpoint=stream.checkpoint))

    assert len(stream.out[0].kept) == 1
    assert Counter(stream.out[0].aside.values()) == {"NOT_JSON": 2}


def test_the_options_are_spelled_as_this_spark_spells_them() -> None:
    """A name Spark does not know would be ignored without a word."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_2.13-*.jar")
    known = zipfile.ZipFile(jar).read(
        "org/apache/spark/sql/execution/streaming/state/RocksDBConf$.class"
    )
    prefix = "spark.sql.streaming.stateStore.rocksdb."
    options = state_options(StateSettings(memory_mb=0)) | state_options(StateSettings())
    ours = [name.removeprefix(prefix) for name in options if name.startswith(prefix)]
    assert len(ours) == 9
    assert [name for name in ours if name.encode() not in known] == []
    assert state_options(StateSettings(memory_mb=0))[f"{prefix}boundedMemoryUsage"] == "false"
    assert f"{prefix}maxMemoryUsageMB" not in state_options(StateSettings(memory_mb=0))


def test_the_state_is_in_rocksdb_with_a_changelog(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path)
    stream.add([Row(number, f"k{number}", START) for number in range(1_000)])
    stream.run()

    state = stream.checkpoint / "state"
    assert list(state.rglob("*.changelog"))
    assert state_metrics(stream.progress[0]).rows == 1_000
    assert state_metrics(stream.progress[0]).bytes_in_memory > 10_000


def bytearray_or_none(value: bytes | None) -> bytearray | None:
    return None if value is None else bytearray(value)
