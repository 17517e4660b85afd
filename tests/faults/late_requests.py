"""`python -m tests.faults.late_requests`: requests that Kafka gets late, under the boundary and under Kafka Streams.

A proxy holds back one request of a transaction after the other: its client is cut off and asks again, and the broker
gets the first request between two later ones (`tests/servers/kafka_proxy.py`). The peer is the deduplication of
`benchmarks/streams.py`, exactly_once_v2. It speaks transaction version 2, where every transaction has an epoch of its
own, with a broker that offers it, and version 1 otherwise; ours speaks version 1 with both. Events are delivered
meanwhile, a fifth of them twice; afterwards each must be readable once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.streams import compile_peer, event_id, peer_command
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from admitone.demo.traffic import GeneratorOptions, generate
from tests.faults.kafka_harness import HELD_BACK, kafka_storm, late_requests
from tests.servers.kafka import KafkaBroker, read_committed
from tests.servers.kafka_proxy import Api, KafkaProxy

FIGURES = Path(__file__).parents[2] / "benchmarks" / "late_requests.json"
PEERS = (
    Api.END_TXN, Api.TXN_OFFSET_COMMIT, Api.ADD_OFFSETS_TO_TXN, Api.ADD_PARTITIONS_TO_TXN,
    Api.PRODUCE,
)  # fmt: skip
"""The requests of the peer's transactions."""
PARTITIONS = 2
PACE = 2_000
_UNANSWERED = 10
_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Wanted:
    """How many requests are to be held back, and how long that is tried."""

    requests: int
    seconds: int
    seed: int


@dataclass(frozen=True)
class PeerOutcome:
    """What became of the peer; what is lost or doubled counts events as a read-committed consumer sees them."""

    late: int
    events: int
    lost: int
    doubled: int
    unread: int
    """Records of the source that it did not get over, however long one waited."""
    restarts: int
    """How often its process ended with an error and was started again."""
    named: dict[str, int]
    """Errors its log names, and how often."""


@dataclass(frozen=True)
class Outcome:
    """What became of ours."""

    late: int
    findings: list[str]


def main() -> None:
    """Hold requests back, print what became of it and write it beside the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="of each kind, to each engine")
    parser.add_argument("--seconds", type=int, default=180, help="longest, for each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--version", type=int, choices=(1, 2), action="append")
    parser.add_argument("--engine", choices=("boundary", "streams"), action="append")
    parser.add_argument("--only", choices=[api.name.lower() for api in Api], action="append")
    options = parser.parse_args()
    document = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    document["machine"] = f"{os.cpu_count()} cores, Python {platform.python_version()}, Kafka 4.1.0"
    command = " ".join(["python -m tests.faults.late_requests", *sys.argv[1:]])
    wanted = Wanted(options.requests, options.seconds, options.seed)
    for version in options.version or (1, 2):
        offered = document.setdefault(f"transaction version {version} offered", {})
        for engine, kind, outcome in held(version, wanted, options.engine, options.only):
            found = {**asdict(outcome), "command": command}
            print(json.dumps({"version": version, "engine": engine, kind: found}), flush=True)
            offered.setdefault(engine, {})[kind] = found
            FIGURES.write_text(json.dumps(document, indent=2) + "\n")


def held(
    version: int, wanted: Wanted, engines: Sequence[str] | None, kinds: Sequence[str] | None
) -> Iterator[tuple[str, str, Outcome | PeerOutcome]]:
    """Hold requests of each kind back from each engine, on a broker of its own; yield what became of it."""
    broker = KafkaBroker(features=(f"transaction.version={version}",))
    proxy = KafkaProxy(broker)
    try:
        with tempfile.TemporaryDirectory(prefix="admitone-late-") as name:
            for engine, (run, apis) in ENGINES.items():
                for api in apis:
                    kind = api.name.lower()
                    if engine in (engines or [engine]) and kind in (kinds or [kind]):
                        folder = Path(name) / f"{engine}-{kind}"
                        folder.mkdir()
                        yield engine, kind, run(folder, broker, proxy, api, wanted)
    finally:
        proxy.close()
        broker.close()


def boundary(
    folder: Path, broker: KafkaBroker, proxy: KafkaProxy, api: Api, wanted: Wanted
) -> Outcome:
    """Hold so many requests of ours back; everything is compared with the truth afterwards."""
    late, findings = 0, list[str]()
    strike = late_requests(proxy, api)
    until = time.monotonic() + wanted.seconds
    while late < wanted.requests and time.monotonic() < until:
        number, left = wanted.seed * 1_000 + late, wanted.requests - late
        hits, problems = kafka_storm(
            folder / str(late), number, broker, broker.proxied, strike, left, 0.1
        )
        late += hits
        findings += problems
        if not hits:
            break
    return Outcome(late, findings)


def streams(
    folder: Path, broker: KafkaBroker, proxy: KafkaProxy, api: Api, wanted: Wanted
) -> PeerOutcome:
    """Hold so many requests of the peer back, while events arrive; look what a plain consumer sees then."""
    source, destination = broker.new_topic(PARTITIONS), broker.new_topic(PARTITIONS)
    peer = Peer(folder, broker.proxied, source, destination)
    rng, strike = random.Random(wanted.seed), late_requests(proxy, api)
    late = unanswered = 0
    until = time.monotonic() + wanted.seconds
    try:
        with arriving(broker.bootstrap, source, wanted.seed):
            while late < wanted.requests and unanswered < _UNANSWERED and time.monotonic() < until:
                peer.keep_running()
                hits = strike(rng)
                late += hits
                unanswered = 0 if hits else unanswered + 1
        unread = peer.finish(broker.bootstrap)
    finally:
        peer.kill()
        proxy.disarm()
        proxy.deliver()
    ids = set(map(event_id, readable(broker.bootstrap, source)))
    found = Counter(map(event_id, readable(broker.bootstrap, destination)))
    return PeerOutcome(
        late,
        len(ids),
        len(ids - found.keys()),
        sum(times > 1 for times in found.values()),
        unread,
        peer.restarts,
        peer.named(),
    )


class Peer:
    """The peer's process, started again whenever it ends."""

    def __init__(self, folder: Path, bootstrap: str, source: str, destination: str) -> None:
        self._source, self._application = source, f"deduplicate-{destination}"
        self._command = peer_command(
            folder, compile_peer(folder / "classes"), bootstrap, source, destination,
            self._application, threads=1, idle_s=86_400,
        )  # fmt: skip
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.restarts = -1

    def keep_running(self) -> None:
        """Start the process where it does not run."""
        if self._process is None or self._process.poll() is not None:
            self.restarts += 1
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdout=subprocess.DEVNULL, stderr=log
                )

    def finish(self, bootstrap: str) -> int:
        """Wait until everything was read; return how many records were not, where that does not come."""
        settings = {"bootstrap.servers": bootstrap, "group.id": self._application}
        consumer = Consumer({**settings, "isolation.level": "read_uncommitted"})
        places = [TopicPartition(self._source, number) for number in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(place, 10)[1] for place in places]
        left, deadline = sum(ends), time.monotonic() + _PATIENCE_S
        while left and time.monotonic() < deadline:
            self.keep_running()
            done = sum(max(place.offset, 0) for place in committed(consumer, places))
            if sum(ends) - done < left:
                left, deadline = sum(ends) - done, time.monotonic() + _PATIENCE_S
            time.sleep(0.2)
        consumer.close()
        return left

    def kill(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)

    def named(self) -> dict[str, int]:
        """Return the errors that lines of its log name, stack traces left out."""
        lines = self._log.read_text(errors="replace").splitlines()
        names = (
            name
            for line in lines
            if line[:1].strip()
            for name in set(re.findall(r"\b\w+(?:Exception|Error)\b", line))
        )
        return dict(Counter(names).most_common())


def committed(consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
    """Return how far a group is; a transaction that is open there lets it be asked again."""
    try:
        return list(consumer.committed(places, timeout=10))
    except KafkaException:
        return []


def readable(bootstrap: str, topic: str) -> list[bytes]:
    """Return the values a read-committed consumer sees; up to an open transaction where one does not end."""
    try:
        records = read_committed(bootstrap, topic, timeout=_PATIENCE_S)
    except TimeoutError:
        print(f"a transaction on {topic} does not end", flush=True)
        records = read_committed(bootstrap, topic, whole=False)
    return [record.value() for record in records]


@contextmanager
def arriving(bootstrap: str, topic: str, seed: int) -> Iterator[None]:
    """Deliver events at a steady pace, a fifth of them twice."""
    stop = threading.Event()
    sender = threading.Thread(target=_send, args=(bootstrap, topic, seed, stop))
    sender.start()
    try:
        yield
    finally:
        stop.set()
        sender.join()


def _send(bootstrap: str, topic: str, seed: int, stop: threading.Event) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    options: Any = {"seed": seed, "contradictions": 0, "malformed": 0, "late": 0}
    begun = time.monotonic()
    events = generate(GeneratorOptions(10_000_000, end_ms=int(time.time() * 1000), **options))
    for number, delivery in enumerate(events):
        if stop.is_set():
            break
        producer.produce(topic, delivery.line, event_id(delivery.line))
        producer.poll(max(0.0, begun + number / PACE - time.monotonic()))
    producer.flush(60)


Run = Callable[[Path, KafkaBroker, KafkaProxy, Api, Wanted], Outcome | PeerOutcome]
ENGINES: dict[str, tuple[Run, Sequence[Api]]] = {
    "boundary": (boundary, HELD_BACK),
    "streams": (streams, PEERS),
}


if __name__ == "__main__":
    main()
