"""`python -m benchmarks.kafka_boundary`: from Kafka through PostgreSQL to Kafka, next to Kafka Streams in the same run.

Broker, database, Spark and the peer share the cores of this machine. Both read the same topic of 4 partitions, in
which every fifth delivery repeats an earlier one byte by byte, as a retry does. Ours validates, hashes, claims in the
ledger, publishes in transactions and writes evidence; the peer deduplicates by event id in its window store under
exactly_once_v2. There is a task for each partition, more than cores: while one waits for the database or the broker,
another works. *Steady* leaves out start and warm-up: it begins when two fifths are done. CPU is what each part
used for one event in that time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_java import USUAL
from tests.servers.postgres import PostgresServer

from admitone.demo.traffic import GeneratorOptions, generate
from admitone.infra.memory import keep_freed_memory
from admitone.ops.lag import LagMeter
from admitone.settings import Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic
from benchmarks.postgres_ledger import SERVER
from benchmarks.streams import run_peer

HERE = Path(__file__).parent
PARTITIONS = 4
REMEMBERED = 100_000


def main() -> None:
    """Measure both on one backlog, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--no-archive", action="store_true", help="receipts only, no envelopes")
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.home:
        print(json.dumps(run_boundary(options.home)))
        return
    broker, server = KafkaBroker(java_options=USUAL), PostgresServer(settings=SERVER)
    try:
        with tempfile.TemporaryDirectory(prefix="admitone-bench-") as name:
            settings = configured(Path(name), broker, server.new_schema(), not options.no_archive)
            events = prepare(settings, options.events)
            ours = measure(settings, {"broker": broker.pid, "database": server.pid})
            peer = run_peer(
                broker.bootstrap, settings.transport.raw_topic, broker.new_topic(PARTITIONS)
            )
    finally:
        server.close()
        broker.close()
    if peer.forwarded != events:
        raise SystemExit(f"the peer forwarded {peer.forwarded:,} of {events:,} different events")
    archive = settings.evidence.archive
    document = {
        "command": f"python -m benchmarks.kafka_boundary{'' if archive else ' --no-archive'}",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "archive": archive,
        "boundary": ours,
        "kafka_streams": asdict(peer),
        "ratio": round(ours["steady_per_second"] / peer.steady_per_second, 2),
    }
    print(json.dumps(document, indent=2))
    name = "kafka_boundary.json" if archive else "kafka_boundary_no_archive.json"
    (HERE / name).write_text(json.dumps(document, indent=2) + "\n")


def configured(home: Path, broker: KafkaBroker, ledger: str, archive: bool) -> Settings:
    """Write the configuration that is measured."""
    (home / "admitone.toml").write_text(
        f"""
[transport]
kind = "kafka"
raw_partitions = {PARTITIONS}
max_per_trigger = 800000

[transport.kafka]
bootstrap = "{broker.bootstrap}"

[ledger]
url = "{ledger}"

[evidence]
archive = {str(archive).lower()}

[spark]
master = "local[{PARTITIONS},4]"
"""
    )
    return load_settings(home)


def prepare(settings: Settings, deliveries: int) -> int:
    """Fill the raw topic; return how many different events are in it."""
    transport = open_transport(settings)
    topic = raw_topic(settings, transport)
    new = deliveries * 4 // 5
    for total in ingest_lines(transport, topic, lines(new)):
        print(f"\ringested {total.deliveries:,}", end="", file=sys.stderr)
    print(file=sys.stderr)
    transport.close()
    return new


def lines(new: int) -> Iterator[bytes]:
    """Yield events as 1,000 a second leave them behind, five types, and after every fourth an earlier one again."""
    options = GeneratorOptions(
        new, seed=1, rate=1_000, duplicates=0, contradictions=0, malformed=0, late=0,
        end_ms=int(time.time() * 1000) - 60_000,
    )  # fmt: skip
    choice, kept = random.Random(1), list[bytes]()
    for number, delivery in enumerate(generate(options), 1):
        yield delivery.line
        if len(kept) < REMEMBERED:
            kept.append(delivery.line)
        else:
            kept[choice.randrange(REMEMBERED)] = delivery.line
        if number % 4 == 0:
            yield choice.choice(kept)


def measure(settings: Settings, beside: dict[str, int]) -> dict[str, Any]:
    """Run the boundary in a process of its own; return its figures and what everybody used meanwhile."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.kafka_boundary", "--home", str(settings.home)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    used: list[dict[str, float]] = []
    found: dict[str, Any] = {}
    for line in child.stdout:
        used.append(cpu_seconds(child.pid, beside))
        found |= json.loads(line)
    if child.wait() != 0:
        raise SystemExit(f"the boundary failed with {child.returncode}")
    events = found.pop("steady_events")
    found["cpu_us_per_event"] = {
        part: round((used[1][part] - used[0][part]) / events * 1e6, 1) for part in used[1]
    }
    return found


def cpu_seconds(pid: int, beside: dict[str, int]) -> dict[str, float]:
    """Return the CPU time used so far by the driver, its JVM, the workers, broker and database."""
    used = {"driver": _cpu(psutil.Process(pid)), "jvm": 0.0, "workers": 0.0}
    for process in psutil.Process(pid).children(recursive=True):
        used["jvm" if process.name() == "java" else "workers"] += _cpu(process)
    for name, number in beside.items():
        root = psutil.Process(number)
        used[name] = _cpu(root) + sum(_cpu(child) for child in root.children(recursive=True))
    return used


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def run_boundary(home: Path) -> dict[str, float]:
    """Run the boundary until it is idle; say when it is warm, and return how it went."""
    from admitone.spark.boundary_query import boundary_query
    from admitone.spark.session import open_session

    keep_freed_memory()
    settings = load_settings(home)
    spark = open_session(settings)
    begun = time.monotonic()
    running = boundary_query(spark, settings, "0 seconds")
    warm: tuple[float, int] | None = None
    for done, events, idle in _progress(settings):
        if not running.isActive:
            raise SystemExit(str(running.exception()))
        if warm is None and done >= events * 2 / 5:
            warm = (time.monotonic(), done)
            print(json.dumps({"warm_after": round(warm[0] - begun, 1)}), flush=True)
        if idle:
            break
    ended = time.monotonic()
    assert warm is not None
    print(json.dumps({"steady_events": events - warm[1]}), flush=True)
    running.stop()
    spark.stop()
    return {
        "events": events,
        "seconds": round(ended - begun, 1),
        "per_second": round(events / (ended - begun)),
        "steady_per_second": round((events - warm[1]) / (ended - warm[0])),
    }


def _progress(settings: Settings) -> Iterator[tuple[int, int, bool]]:
    meter = LagMeter(settings)
    while True:
        lag = meter.measure()
        idle = lag.idle(boundary=True, analytics=False)
        partitions = lag.boundary.partitions
        yield sum(p.done for p in partitions), sum(p.end for p in partitions), idle
        time.sleep(0.25)


if __name__ == "__main__":
    main()
