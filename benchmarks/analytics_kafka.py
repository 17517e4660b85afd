"""`python -m benchmarks.analytics_kafka`: heavy hitters from Kafka, next to Spark's own sketch and to DuckDB.

An hour of event time in three dimensions, as the boundary leaves it on a topic of 4 partitions, about 470 bytes of JSON
and ten headers each. Items follow Zipf 1.1 over a million; with `--walk` every second event takes the next of a
million items instead, so that all of them occur. The broker is on the same machine.

- Ours: certified top-100, distinct counts and Count-Min for six windows, one durable commit per batch.
- Spark's `approx_top_k` on the same topic in one batch: the six windows of each event, nothing is kept.
- DuckDB: exact counts of the same events in a Parquet file, top 100 of each window and dimension.

*Steady* leaves out start and warm-up: it begins when two fifths are done. Memory is the proportional size of all
processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from tests.servers.appender import Appender
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_java import USUAL

from admitone.core.wire import encode
from admitone.ops.lag import LagMeter
from admitone.settings import Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.headers import listed
from benchmarks.kafka_boundary import cpu_seconds
from benchmarks.sketches import zipf

HERE = Path(__file__).parent
PARTITIONS = 4
TOPIC = "admitted.traffic"
ITEMS = 1_000_000
START_MS = 1_768_471_200_000
_AT_ONCE = 20_000
_TYPES = ("page_view", "product_view", "api_request")
_CONFIGURATION = """
[transport]
kind = "kafka"

[transport.kafka]
bootstrap = "{bootstrap}"

[[items]]
event_type = "page_view"
dimension = "url"
item = "url"
item_type = "url"

[[items]]
event_type = "product_view"
dimension = "productId"
item = "productId"
item_type = "product"

[[items]]
event_type = "api_request"
dimension = "apiEndpoint"
item = "endpoint"
item_type = "api"
"""
_FIELDS = {"page_view": "url", "product_view": "productId", "api_request": "endpoint"}


def main() -> None:
    """Measure all three on one backlog, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--walk", action="store_true", help="let a million different items occur")
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.home:
        print(json.dumps((run_spark_peer if options.peer else run_analytics)(options.home)))
        return
    import duckdb  # noqa: F401 - found missing now, not after ten minutes

    broker = KafkaBroker(java_options=USUAL)
    try:
        with tempfile.TemporaryDirectory(prefix="admitone-bench-") as name:
            home = Path(name)
            text = _CONFIGURATION.format(bootstrap=broker.bootstrap)
            (home / "admitone.toml").write_text(text)
            prepare(load_settings(home), home / "events.parquet", options.events, options.walk)
            ours = measure(home, broker.pid)
            spark_peer = _child(home, "--peer")[-1]
            duck = run_duckdb(home / "events.parquet")
    finally:
        broker.close()
    document = {
        "command": f"python -m benchmarks.analytics_kafka{' --walk' * options.walk}",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "analytics": ours,
        "spark_approx_top_k": spark_peer,
        "duckdb": duck,
    }
    print(json.dumps(document, indent=2))
    if options.events == 3_000_000:
        name = "analytics_kafka_walk.json" if options.walk else "analytics_kafka.json"
        (HERE / name).write_text(json.dumps(document, indent=2) + "\n")


def store_bytes(settings: Settings) -> int:
    """Return what the sketches take, with what is not yet written back into their file."""
    file = settings.sqlite_path(settings.topk.store)
    return sum(each.stat().st_size for each in file.parent.glob(f"{file.name}*"))


def prepare(settings: Settings, file: Path, events: int, walk: bool) -> None:
    """Fill the admitted topic as the boundary does, and a file with the same events."""
    transport = open_transport(settings)
    transport.create_topic(TOPIC, PARTITIONS)
    producer = Appender(transport, "bench")
    items = zipf(1.1, ITEMS // 3, events, seed=3)
    if walk:
        items[::2] = np.arange(0, events, 2) // 6 % (ITEMS // 3 + 1)
    spacing = 3_600_000 / events
    written = 0
    schema = pa.schema([("type", pa.string()), ("at", pa.int64()), ("value", pa.binary())])
    with pq.ParquetWriter(file, schema, compression="lz4") as parquet:
        for start in range(0, events, _AT_ONCE):
            numbers = np.arange(start, min(start + _AT_ONCE, events))
            times = START_MS + (numbers * spacing).astype(np.int64)
            types = [_TYPES[number % 3] for number in numbers.tolist()]
            values = [
                envelope(kind, item, number, at)
                for kind, item, number, at in zip(
                    types, items[numbers].tolist(), numbers.tolist(), times.tolist(), strict=True
                )
            ]
            parquet.write_table(pa.table([types, times, values], schema=schema))
            table = pa.table(
                {
                    "partition": pa.array((numbers % PARTITIONS).astype(np.int32)),
                    "key": keys(numbers),
                    "value": pa.array(values, pa.binary()),
                    "headers": headers(numbers, types, times),
                }
            )
            producer.append({TOPIC: listed(table)})
            written += len(numbers)
            print(f"\rwritten {written:,}", end="", file=sys.stderr)
    print(file=sys.stderr)
    transport.close()


def keys(numbers: np.ndarray) -> pa.Array:
    """Return each record's stream metadata: as many source partitions as there are partitions."""
    found: list[bytes | None] = [None] * len(numbers)
    for partition in range(PARTITIONS):
        rows = np.flatnonzero(numbers % PARTITIONS == partition)
        made = encode(7, partition, numbers[rows] // PARTITIONS).to_pylist()
        for row, key in zip(rows.tolist(), made, strict=True):
            found[row] = key
    return pa.array(found, pa.binary())


def headers(numbers: np.ndarray, types: list[str], times: np.ndarray) -> pa.StructArray:
    """Return the eleven headers of the boundary, as long as they are there."""
    size = len(numbers)
    digest = pa.array([os.urandom(32) for _ in range(size)], pa.binary())
    moments = pa.array([b"%d" % at for at in times.tolist()], pa.binary())
    columns = {
        "identity": digest,
        "run": pa.array([b"bench"] * size, pa.binary()),
        "class": pa.array([kind.encode() for kind in types], pa.binary()),
        "event-id": pa.array([b"event-%030d" % number for number in numbers.tolist()], pa.binary()),
        "payload-hash": digest,
        "rules": pa.array([b"1"] * size, pa.binary()),
        "business-key": pa.array([b"user-%08d" % n for n in numbers.tolist()], pa.binary()),
        "admitted-at": moments,
        "event-time": moments,
        "stream-time": moments,
        "block": pa.array([b"%d" % (number // 100_000 + 1) for number in numbers.tolist()]),
    }
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def envelope(kind: str, item: int, number: int, at: int) -> bytes:
    """Return one event of about 460 bytes."""
    moment = np.datetime_as_string(np.datetime64(at, "ms"))
    return (
        f'{{"metadata":{{"eventId":"event-{number:030d}","eventType":"{kind}","source":"web_application",'
        f'"timestamp":"{moment}Z","partitionKey":"user-{number % 50_000:08d}","schemaVersion":1}},'
        f'"payload":{{"{_FIELDS[kind]}":"https://shop.example/catalog/item-{item:07d}",'
        f'"userId":"user-{number % 50_000:08d}",'
        f'"sessionId":"{number:032x}","deviceType":"mobile","referrer":"https://search.example/?q=item",'
        f'"userAgent":"Mozilla/5.0 (X11; Linux x86_64)","durationMs":{number % 9_000}}}}}'
    ).encode()


def measure(home: Path, broker: int) -> dict[str, Any]:
    """Run ours in a process of its own; return its figures, the CPU of each part, and memory on the way."""
    lines, used = [], []
    child = _start(home)
    assert child.stdout is not None
    for line in child.stdout:
        lines.append(json.loads(line))
        if "mark" in lines[-1]:
            used.append(cpu_seconds(child.pid, {"broker": broker}))
    if child.wait() != 0:
        raise SystemExit(f"the analytics failed with {child.returncode}")
    found = lines[-1]
    events = found.pop("steady_events")
    found["cpu_us_per_event"] = {
        part: round((used[1][part] - used[0][part]) / events * 1e6, 1) for part in used[1]
    }
    return found


def run_analytics(home: Path) -> dict[str, Any]:
    """Count until everything is counted; say when it is warm and when it is done."""
    from admitone.spark.analytics_query import analytics_query
    from admitone.spark.session import open_session

    settings = load_settings(home)
    spark = open_session(settings)
    begun = time.monotonic()
    running = analytics_query(spark, settings, "0 seconds")
    warm: tuple[float, int] | None = None
    memory: list[int] = []
    for done, events in _progress(settings):
        if not running.isActive:
            raise SystemExit(str(running.exception()))
        if warm is None and done >= events * 2 / 5:
            warm = (time.monotonic(), done)
            print(json.dumps({"mark": "warm"}), flush=True)
        if done * 10 // events > len(memory):
            memory.append(_memory() >> 20)
        if done >= events:
            break
    ended = time.monotonic()
    assert warm is not None
    print(json.dumps({"mark": "done"}), flush=True)
    running.stop()
    running.companion.close()
    answers = _answers(settings)
    spark.stop()
    return {
        "events": events,
        "seconds": round(ended - begun, 1),
        "per_second": round(events / (ended - begun)),
        "steady_per_second": round((events - warm[1]) / (ended - warm[0])),
        "steady_events": events - warm[1],
        "memory_mb_by_tenth": memory,
        "store_mb": round(store_bytes(settings) / 1e6, 1),
        **answers,
    }


def _answers(settings: Settings) -> dict[str, Any]:
    from admitone.results import open_answers

    answers = open_answers(settings)
    windows = answers.windows()
    found = {
        dimension: answers.top(dimension, "all")
        for dimension in ("url", "productId", "apiEndpoint")
    }
    answers.close()
    return {
        "windows": len(windows),
        "total": sum(answer["total"] for answer in found.values()),
        "distinct": sum(answer["distinct"] for answer in found.values()),
        "error_bound_percent": max(answer["error_bound"] for answer in found.values()),
    }


def _progress(settings: Settings) -> Iterator[tuple[int, int]]:
    meter = LagMeter(settings)
    while True:
        partitions = meter.measure().analytics.partitions
        yield sum(p.done for p in partitions), sum(p.end for p in partitions)
        time.sleep(0.25)


def _memory() -> int:
    used = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            used += process.memory_full_info().pss
    return used


def run_spark_peer(home: Path) -> dict[str, Any]:
    """Let Spark count the same topic in one batch with its own sketch."""
    from pyspark.sql import functions as F  # noqa: N812

    from admitone.spark.session import open_session

    settings = load_settings(home)
    spark = open_session(settings)
    begun = time.monotonic()
    events = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", settings.transport.kafka.bootstrap)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", TOPIC)
        .load()
        .select(
            F.from_json(
                F.col("value").cast("string"),
                "metadata STRUCT<eventType: STRING, timestamp: TIMESTAMP>,"
                " payload STRUCT<url: STRING, productId: STRING, endpoint: STRING>",
            ).alias("e")
        )
        .select(
            F.col("e.metadata.eventType").alias("dimension"),
            F.coalesce("e.payload.url", "e.payload.productId", "e.payload.endpoint").alias("item"),
            F.col("e.metadata.timestamp").alias("at"),
        )
    )
    units = ("MINUTE", "HOUR", "DAY", "WEEK", "MONTH")
    windows = [F.concat(F.lit(unit), F.date_trunc(unit, "at").cast("string")) for unit in units]
    top = (
        events.withColumn("window", F.explode(F.array(*windows, F.lit("global"))))
        .groupBy("window", "dimension")
        .agg(F.expr("approx_top_k(item, 100, 2048)").alias("top"), F.count("*").alias("total"))
        .collect()
    )
    seconds = time.monotonic() - begun
    total = sum(row["total"] for row in top if row["window"] == "global")
    spark.stop()
    return {"events": total, "seconds": round(seconds, 1), "per_second": round(total / seconds)}


def run_duckdb(file: Path) -> dict[str, Any]:
    """Let DuckDB count the same events exactly, from a file."""
    import duckdb

    database = duckdb.connect()
    database.execute(f"SET threads = {os.cpu_count()}")
    begun = time.monotonic()
    rows = database.execute(
        """
        WITH events AS (
            SELECT "type" AS dimension, epoch_ms("at") AS moment,
                coalesce(j->>'$.payload.url', j->>'$.payload.productId', j->>'$.payload.endpoint') AS item
            FROM (SELECT "type", "at", decode("value")::JSON AS j FROM read_parquet($file))
        ), windowed AS (
            SELECT unnest(['minute' || date_trunc('minute', moment), 'hour' || date_trunc('hour', moment),
                'day' || date_trunc('day', moment), 'week' || date_trunc('week', moment),
                'month' || date_trunc('month', moment), 'global']) AS win, dimension, item FROM events
        ), counted AS (
            SELECT win, dimension, item, count(*) AS n FROM windowed GROUP BY ALL
        )
        SELECT win, dimension, sum(n) OVER (PARTITION BY win, dimension), item, n FROM counted
        QUALIFY row_number() OVER (PARTITION BY win, dimension ORDER BY n DESC) <= 100
        """,
        {"file": str(file)},
    ).fetchall()
    seconds = time.monotonic() - begun
    events = sum({row[1]: row[2] for row in rows if row[0] == "global"}.values())
    return {
        "events": int(events),
        "seconds": round(seconds, 1),
        "per_second": round(int(events) / seconds),
    }


def _start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.analytics_kafka", "--home", str(home), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _child(home: Path, *arguments: str) -> list[dict[str, Any]]:
    child = _start(home, *arguments)
    out, _ = child.communicate()
    if child.returncode != 0:
        raise SystemExit(f"the peer failed with {child.returncode}")
    return [json.loads(line) for line in out.splitlines()]


if __name__ == "__main__":
    main()
