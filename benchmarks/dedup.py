"""`python -m benchmarks.dedup`: deduplication from topic to topic, on the ledger, on engine state and by Kafka Streams.

Broker, database, Spark and the peer share the cores of this machine; all read the same topics of 4 partitions, by event
id, with a window of a day. Ours is the command line's pipeline: the ledger on PostgreSQL, with its cache of settled
pairs and without; Spark's own state in RocksDB. The peer keeps ids in a RocksDB window store under exactly_once_v2.

*Steady* leaves out start and warm-up: it begins when two fifths of the backlog are done. *Latency* is measured on a
topic of its own at a steady 1,000 events a second, from the sending of a record to its arrival at a read-committed
consumer of the destination. *Memory* is the highest sum over the engine's processes; the database's is not in it.
*Disk* is what the engine keeps for a key: its row in the ledger, its share of the checkpoint, or of the state folder.
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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_java import USUAL
from tests.servers.postgres import PostgresServer

from admitone.demo.traffic import GeneratorOptions, generate
from admitone.ops.lag import Lag, LagMeter
from admitone.ops.run import Plan, run
from admitone.settings import Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic
from benchmarks.postgres_ledger import SERVER
from benchmarks.streams import event_id, run_peer

HERE = Path(__file__).parent
PARTITIONS = 4
REMEMBERED = 100_000
SHARES = (0.0, 0.2, 0.95)
CACHE = {"ledger": 500_000, "ledger without cache": 0, "state": 0}
PEER = "Kafka Streams"
PACE = 1_000
APPENDED = {"message_timestamp_type": "LogAppendTime"}


@dataclass
class Figures:
    """One engine on one backlog."""

    engine: str
    duplicates: float
    events: int
    kept: int
    seconds: float
    per_second: int
    steady_per_second: int | None
    """None where the backlog was done in one look."""
    p50_ms: int
    p95_ms: int
    peak_memory_mb: int
    disk_bytes_per_key: int
    cached: int = 0


def main() -> None:
    """Measure every engine on every backlog, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--paced-seconds", type=int, default=20)
    parser.add_argument("--shares", type=float, nargs="*", default=SHARES)
    parser.add_argument("--engines", nargs="*", default=(*CACHE, PEER))
    parser.add_argument("--out", type=Path, default=HERE / "dedup.json")
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--until-idle", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.home:
        run_engine(options.home, options.engine, options.until_idle)
        return
    found = []
    broker, server = KafkaBroker(java_options=USUAL), PostgresServer(settings=SERVER)
    try:
        with tempfile.TemporaryDirectory(prefix="admitone-bench-") as name:
            for share in options.shares:
                bench = Bench(broker, server, Path(name), share)
                bench.fill(options.events)
                for engine in options.engines:
                    measure = bench.peer if engine == PEER else bench.ours
                    found.append(measure(engine, options.paced_seconds))
                    print(json.dumps(asdict(found[-1])), file=sys.stderr)
    finally:
        server.close()
        broker.close()
    document = {
        "command": "python -m benchmarks.dedup",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "figures": [asdict(each) for each in found],
    }
    print(json.dumps(document, indent=2))
    options.out.write_text(json.dumps(document, indent=2) + "\n")


class Bench:
    """One backlog, and everything that is measured on it."""

    def __init__(
        self, broker: KafkaBroker, server: PostgresServer, folder: Path, share: float
    ) -> None:
        self._broker, self._server, self._share = broker, server, share
        self._folder = folder / f"{share}"
        self._events = self._new = 0
        self._source = f"raw-{share}"

    def fill(self, events: int) -> None:
        """Fill the source topic."""
        self._events, self._new = events, max(1, round(events * (1 - self._share)))
        settings = self._home("fill", "ledger", self._source, "unused")
        transport = open_transport(settings)
        topic = raw_topic(settings, transport)
        for total in ingest_lines(transport, topic, lines(self._new, events)):
            print(f"\r{self._share:.0%}: {total.deliveries:,}", end="", file=sys.stderr)
        print(file=sys.stderr)
        transport.close()

    def ours(self, engine: str, paced_seconds: int) -> Figures:
        """Measure one of our engines."""
        settings = self._home(engine, engine, self._source, self._topic())
        begun = time.monotonic()
        looks: list[tuple[float, float]] = []
        with started(settings, engine, until_idle=True) as (child, memory):
            assert child.stdout is not None
            for line in child.stdout:
                told = json.loads(line)
                looks.append((time.monotonic(), told["done"] / max(told["all"], 1)))
        if child.returncode != 0:
            raise SystemExit(f"{engine} failed with {child.returncode}")
        warm = next(look for look in looks if look[1] >= 2 / 5)
        last = next(look for look in looks if look[1] >= 1)
        kept, cached = outcome(settings, engine)
        self._check(engine, kept)
        paced = self._home(f"{engine} paced", engine, self._topic(), self._topic())

        @contextmanager
        def running() -> Iterator[None]:
            with started(paced, engine, until_idle=False):
                yield

        latencies = self._latencies(
            running, paced.transport.raw_topic, paced.dedup.destination, paced_seconds
        )
        return Figures(
            engine,
            self._share,
            self._events,
            kept,
            round(last[0] - begun, 1),
            round(self._events / (last[0] - begun)),
            None
            if last is warm
            else round((last[1] - warm[1]) * self._events / (last[0] - warm[0])),
            *latencies,
            max(memory) >> 20,
            round(self._disk(settings, engine) / kept),
            cached,
        )

    def peer(self, engine: str, paced_seconds: int) -> Figures:
        """Measure Kafka Streams."""
        found = run_peer(self._broker.bootstrap, self._source, self._topic())
        self._check(engine, found.forwarded)
        source, destination = self._topic(), self._topic()

        @contextmanager
        def running() -> Iterator[None]:
            peer = threading.Thread(
                target=run_peer, args=(self._broker.bootstrap, source, destination), kwargs={"idle_s": 5}
            )  # fmt: skip
            peer.start()
            yield
            peer.join()

        latencies = self._latencies(running, source, destination, paced_seconds)
        return Figures(
            engine,
            self._share,
            found.events,
            found.forwarded,
            found.seconds,
            found.per_second,
            found.steady_per_second,
            *latencies,
            found.peak_memory_mb,
            round(found.state_bytes / found.forwarded),
        )

    def _latencies(
        self, running: Callable[[], Any], source: str, destination: str, seconds: int
    ) -> tuple[int, int]:
        """Return the median and the 95th percentile of how long a record takes, once it is warm."""
        arrivals: dict[str, float] = {}
        stop = threading.Event()
        reader = threading.Thread(
            target=watch, args=(self._broker.bootstrap, destination, arrivals, stop)
        )
        reader.start()
        sent: dict[str, float] = {}
        try:
            with running():
                pace(self._broker.bootstrap, source, seconds, self._share, sent, arrivals)
        finally:
            stop.set()
            reader.join()
        taken = [arrivals[name] - at for name, at in sent.items() if name in arrivals]
        warm = np.array(taken[len(taken) // 3 :]) * 1000
        return round(float(np.percentile(warm, 50))), round(float(np.percentile(warm, 95)))

    def _home(self, name: str, engine: str, source: str, destination: str) -> Settings:
        home = self._folder / name.replace(" ", "-")
        home.mkdir(parents=True)
        (home / "admitone.toml").write_text(
            f'transport.kind = "kafka"\ntransport.raw_topic = "{source}"\n'
            f"transport.raw_partitions = {PARTITIONS}\n"
            f'transport.kafka.bootstrap = "{self._broker.bootstrap}"\n'
            f'ledger.url = "{self._server.new_schema()}"\n'
            f'dedup.destination = "{destination}"\ndedup.late = "{destination}-late"\n'
            f"dedup.cache = {CACHE[engine]}\n"
            'dedup.key = "field"\ndedup.key_fields = ["metadata.eventId"]\ndedup.retention = "1d"\n'
            "evidence.archive = false\n"
        )
        return load_settings(home)

    def _topic(self) -> str:
        return self._broker.new_topic(PARTITIONS, retention_ms="604800000", **APPENDED)

    def _check(self, engine: str, kept: int) -> None:
        if kept != self._new:
            raise SystemExit(f"{engine} kept {kept:,} of {self._new:,} different events")

    def _disk(self, settings: Settings, engine: str) -> int:
        if engine == "state":
            checkpoints = settings.resolve(settings.spark.checkpoints)
            return sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file())
        with psycopg.connect(settings.ledger.url) as db:
            row = db.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n"
                " ON n.oid = relnamespace WHERE nspname = current_schema() AND relkind = 'r'"
                " AND starts_with(relname, %s)",
                (settings.dedup_pipeline,),
            ).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def started(
    settings: Settings, engine: str, *, until_idle: bool
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run an engine in a process of its own, and note what memory it and its children use."""
    arguments = ["--home", str(settings.home), "--engine", engine]
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.dedup", *arguments, *["--until-idle"] * until_idle],
        stdout=subprocess.PIPE if until_idle else subprocess.DEVNULL,
        text=True,
    )
    memory = [0]
    watcher = threading.Thread(target=note_memory, args=(child, memory))
    watcher.start()
    try:
        yield child, memory
    finally:
        if not until_idle:
            end(child)
        child.wait()
        watcher.join()


def note_memory(child: subprocess.Popen[str], memory: list[int]) -> None:
    """Note the memory of a process and its children until it ends."""
    while child.poll() is None:
        with suppress(psutil.NoSuchProcess):
            family = [
                psutil.Process(child.pid),
                *psutil.Process(child.pid).children(recursive=True),
            ]
            memory.append(sum(process.memory_info().rss for process in family))
        time.sleep(0.5)


def end(child: subprocess.Popen[str]) -> None:
    """Kill a process with its children."""
    for process in (*psutil.Process(child.pid).children(recursive=True), psutil.Process(child.pid)):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def lines(new: int, events: int) -> Iterator[bytes]:
    """Yield so many events, the new ones evenly among repetitions of earlier ones."""
    options = GeneratorOptions(
        new, seed=1, rate=1_000, duplicates=0, contradictions=0, malformed=0, late=0,
        end_ms=int(time.time() * 1000) - 60_000,
    )  # fmt: skip
    choice, kept = random.Random(1), list[bytes]()
    made = 0
    for number, delivery in enumerate(generate(options), 1):
        yield delivery.line
        made += 1
        if len(kept) < REMEMBERED:
            kept.append(delivery.line)
        else:
            kept[choice.randrange(REMEMBERED)] = delivery.line
        while made < events * number // new:
            yield choice.choice(kept)
            made += 1


def pace(
    bootstrap: str,
    topic: str,
    seconds: int,
    share: float,
    sent: dict[str, float],
    arrivals: dict[str, float],
) -> None:
    """Send a first record until it arrives, then a steady stream; note when each new event was sent."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    total = PACE * seconds
    stream = lines(max(1, round(total * (1 - share))) + 1, total + 1)
    first = next(stream)
    producer.produce(topic, first, event_id(first), partition=0)
    producer.flush()
    while event_id(first) not in arrivals:
        time.sleep(0.05)
    begun = time.monotonic()
    for number, line in enumerate(stream):
        name = event_id(line)
        wait = begun + number / PACE - time.monotonic()
        if wait > 0:
            producer.poll(wait)
        producer.produce(topic, line, name)
        sent.setdefault(name, time.time())
    producer.flush()
    deadline = time.monotonic() + 30
    while len(sent.keys() - arrivals.keys()) and time.monotonic() < deadline:
        time.sleep(0.1)


def watch(bootstrap: str, topic: str, arrivals: dict[str, float], stop: threading.Event) -> None:
    """Note when each event first reaches a reader of committed records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"watch-{topic}",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(PARTITIONS)])
    while not stop.is_set():
        for message in consumer.consume(1_000, 0.05):
            if message.error() is None:
                arrivals.setdefault(event_id(message.value()), time.time())
    consumer.close()


def outcome(settings: Settings, engine: str) -> tuple[int, int]:
    """Return how many records were kept, and how many duplicates the cache knew."""
    if engine == "state":
        lag = LagMeter(settings).measure().state
        assert lag is not None
        return lag.figures["kept"], 0
    from admitone.ledger import open_ledger
    from admitone.ledger.books import books

    (found,) = books(open_ledger(settings))["runs"]
    return found["admitted"], found["cached"]


def run_engine(home: Path, engine: str, until_idle: bool) -> None:
    """Run the pipeline as the command line does, and say how far it is."""
    state = engine == "state"

    def report(lag: Lag) -> None:
        found = lag.state if state else lag.dedup
        if found is not None:
            ends = sum(partition.done for partition in found.partitions)
            print(json.dumps({"done": ends, "all": ends + found.waiting}), flush=True)

    run(
        load_settings(home),
        Plan(
            boundary=False,
            analytics=False,
            dedup=not state,
            state=state,
            until_idle=until_idle,
            trigger="0 seconds",
        ),
        report,
    )


if __name__ == "__main__":
    main()
