"""`python -m benchmarks.streams`: the usual deduplication on Kafka Streams, to compare with.

The peer is `streams/Deduplicate.java`: a RocksDB window store with its changelog, exactly_once_v2, from topic to topic.
How far it is, is read from the offsets it committed. *Steady* leaves out start and warm-up: it begins when two
fifths are done.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.servers.kafka import KafkaBroker, read_committed
from tests.servers.kafka_java import USUAL, jars, java_command

from admitone.demo.traffic import GeneratorOptions, generate

SOURCE = Path(__file__).parent / "streams" / "Deduplicate.java"
_DAY_S = 86_400


@dataclass(frozen=True)
class PeerFigures:
    """One run of the peer on one backlog; times end with its last commit, not with its waiting for more."""

    events: int
    forwarded: int
    seconds: float
    per_second: int
    steady_per_second: int
    cpu_us_per_event: float
    peak_memory_mb: int
    state_mb: int
    state_bytes: int


@dataclass(frozen=True)
class Sample:
    """How far the peer was at a moment, and what it had used."""

    at: float
    done: int
    cpu: float
    memory: int


def compile_peer(folder: Path) -> Path:
    """Compile the peer into a folder and return it."""
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin" if home else None)
    if javac is None:
        raise FileNotFoundError(
            "javac is not installed: the peer needs a JDK of version 17 or later to be compiled"
            " (Debian: apt-get install openjdk-17-jdk-headless)"
        )
    subprocess.run([javac, "-cp", f"{jars()}/*", "-d", folder, SOURCE], check=True)
    return folder


def run_peer(
    bootstrap: str,
    source: str,
    destination: str,
    *,
    threads: int = 2,
    window_s: int = _DAY_S,
    retention_s: int = _DAY_S,
    commit_ms: int = 100,
    idle_s: int = 3,
    java_options: Sequence[str] = USUAL,
) -> PeerFigures:
    """Run the peer on a topic until it is idle; the raw topic must be partitioned by event id."""
    with tempfile.TemporaryDirectory(prefix="admitone-streams-") as name:
        folder = Path(name)
        application = f"deduplicate-{destination}"
        command = peer_command(
            folder, compile_peer(folder / "classes"), bootstrap, source, destination, application,
            threads=threads, window_s=window_s, retention_s=retention_s, commit_ms=commit_ms,
            idle_s=idle_s, java_options=java_options,
        )  # fmt: skip
        progress = folder / "progress"
        with progress.open("wb") as out, (folder / "log").open("wb") as log:
            begun = time.monotonic()
            child = subprocess.Popen(command, stdout=out, stderr=log)
            samples = list(_watch(child, bootstrap, application, source))
        if child.returncode != 0:
            raise RuntimeError(f"the peer failed: {(folder / 'log').read_text()[-3000:]}")
        processed, forwarded = _last_line(progress)
        state = sum(path.stat().st_size for path in (folder / "state").rglob("*") if path.is_file())
    return _figures(begun, samples, processed, forwarded, state)


def peer_command(
    folder: Path, classes: Path, bootstrap: str, source: str, destination: str, application: str,
    *, threads: int = 2, window_s: int = _DAY_S, retention_s: int = _DAY_S, commit_ms: int = 100,
    idle_s: int = 3, java_options: Sequence[str] = USUAL,
) -> list[str | Path]:  # fmt: skip
    """Return the command that runs the peer, with its state in a folder."""
    told = {
        "application": application,
        "bootstrap": bootstrap,
        "input": source,
        "output": destination,
        "state": folder / "state",
        "threads": threads,
        "window": window_s,
        "retention": retention_s,
        "commit": commit_ms,
        "idle": idle_s,
    }
    arguments = [f"{name}={value}" for name, value in told.items()]
    return java_command(java_options, "Deduplicate", *arguments, classes=classes)


def _watch(
    child: subprocess.Popen[bytes], bootstrap: str, application: str, source: str
) -> Iterator[Sample]:
    """Yield what the peer committed and used so far, until it ends."""
    process = psutil.Process(child.pid)
    # A reader of committed records would wait for each transaction that moves the offsets.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": application,
            "isolation.level": "read_uncommitted",
        }
    )
    numbers = consumer.list_topics(source, timeout=10).topics[source].partitions
    places = [TopicPartition(source, number) for number in numbers]
    while child.poll() is None:
        done = sum(max(place.offset, 0) for place in consumer.committed(places, timeout=10))
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            memory = process.memory_info().rss
            yield Sample(time.monotonic(), done, times.user + times.system, memory)
        time.sleep(0.2)
    consumer.close()


def _last_line(progress: Path) -> tuple[int, int]:
    found = re.findall(r"(\d+) processed, (\d+) forwarded", progress.read_text())
    processed, forwarded = found[-1]
    return int(processed), int(forwarded)


def _figures(
    begun: float, samples: list[Sample], events: int, forwarded: int, state: int
) -> PeerFigures:
    done = samples[-1].done
    warm = next(sample for sample in samples if sample.done >= done * 2 / 5)
    last = next(sample for sample in samples if sample.done == done)
    if last is warm:
        raise RuntimeError(f"{done:,} events are too few: they were done in one look")
    seconds, steady = last.at - begun, last.done - warm.done
    return PeerFigures(
        events,
        forwarded,
        round(seconds, 1),
        round(events / seconds),
        round(steady / (last.at - warm.at)),
        round((last.cpu - warm.cpu) / steady * 1e6, 1),
        max(sample.memory for sample in samples) >> 20,
        state >> 20,
        state,
    )


def main() -> None:
    """Run the peer on a broker of its own, check what it published and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--commit-ms", type=int, default=100)
    options = parser.parse_args()
    broker = KafkaBroker(java_options=USUAL)
    try:
        source, destination = broker.new_topic(4), broker.new_topic(4)
        wanted = fill(broker.bootstrap, source, options.events)
        figures = run_peer(
            broker.bootstrap,
            source,
            destination,
            threads=options.threads,
            commit_ms=options.commit_ms,
        )
        found = Counter(
            event_id(record.value()) for record in read_committed(broker.bootstrap, destination)
        )
    finally:
        broker.close()
    if found != Counter(wanted):
        raise SystemExit(f"expected each of {len(wanted):,} ids once, found {found.total():,}")
    print(json.dumps(asdict(figures), indent=2))


def fill(bootstrap: str, topic: str, events: int) -> set[str]:
    """Fill a topic with events of which 20 % are duplicates, by event id; return the ids."""
    options = GeneratorOptions(
        events, seed=1, contradictions=0, malformed=0, late=0,
        end_ms=int(time.time() * 1000) - 60_000,
    )  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    ids = set()
    for delivery in generate(options):
        name = event_id(delivery.line)
        ids.add(name)
        while True:
            try:
                producer.produce(topic, delivery.line, name)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)
    return ids


def event_id(line: bytes) -> str:
    """Return the id in an envelope."""
    return str(orjson.loads(line)["metadata"]["eventId"])


if __name__ == "__main__":
    main()
