"""The synchronous door under load: latency at a steady rate, and what is left after SIGKILL.

    python -m benchmarks.door [--rate 1000] [--seconds 300] [--kills 3] [--embedded]

Single-event requests arrive at fixed moments, whether or not the ones before were answered (an open loop), at
`admitone serve` over PostgreSQL and Kafka. The load generator, the service, the database and the broker share the
machine's cores. In the second part the service is killed and started again under the same load; every request without
an answer is sent again until it has one. Then every acknowledged event must be on the log exactly once, at the place
its receipt says.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.servers.service import Running, start_service

from admitone.core.wire import header_column
from admitone.ledger import open_ledger
from admitone.ledger.books import books
from admitone.settings import load_settings
from admitone.transport import open_transport

RESULTS = Path(__file__).with_name("door.json")
_CONNECTIONS = 256
_AGAIN_S = 0.2


def envelope(number: int, rng: random.Random) -> bytes:
    """Return one page view of about 460 bytes."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps(
        [
            {
                "metadata": {
                    "eventId": f"event-{number}",
                    "eventType": "page_view",
                    "source": "load",
                    "timestamp": now,
                    "partitionKey": f"user-{rng.randrange(10_000)}",
                    "schemaVersion": 1,
                },
                "payload": {
                    "url": f"https://shop.example/p/{int(rng.paretovariate(1.1))}",
                    "deviceType": rng.choice(("mobile", "desktop", "tablet")),
                    "sessionId": f"session-{rng.randrange(1 << 40):x}",
                },
            }
        ]
    ).encode()


@dataclass
class Load:
    """What was sent, and what came back."""

    url: str
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    receipts: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    unanswered: int = 0

    async def run(self, rate: float, seconds: float, first: int = 0) -> None:
        """Send requests at fixed moments; each is sent until it has an answer."""
        waiting: asyncio.Queue[tuple[int, float] | None] = asyncio.Queue()
        workers = [asyncio.create_task(self._work(waiting)) for _ in range(_CONNECTIONS)]
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            pause = due - time.perf_counter()
            if pause > 0.001:
                await asyncio.sleep(pause)
            waiting.put_nowait((first + number, due))
        for _ in workers:
            waiting.put_nowait(None)
        await asyncio.gather(*workers)

    async def _work(self, waiting: asyncio.Queue[tuple[int, float] | None]) -> None:
        rng = random.Random(id(self))
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while (job := await waiting.get()) is not None:
            number, due = job
            body = envelope(number, rng)
            while True:
                try:
                    if connection is None:
                        connection = await self._connect()
                    status, answer = await _asked(connection, body)
                except (OSError, EOFError, asyncio.IncompleteReadError, ValueError):
                    connection = None
                    self.unanswered += 1
                    await asyncio.sleep(_AGAIN_S)
                    continue
                self.statuses[status] += 1
                if status == "200":
                    break
                await asyncio.sleep(_AGAIN_S)
            self.latencies.append(time.perf_counter() - due)
            (row,) = json.loads(answer)["decisions"]
            self.statuses[row["verdict"]] += 1
            bus = row["receipt"]["bus"]
            self.receipts[number] = (bus["topic"], bus["partition"], bus["offset"])

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = urlsplit(self.url)
        return await asyncio.open_connection(place.hostname, place.port)


async def _asked(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], body: bytes
) -> tuple[str, bytes]:
    reader, writer = connection
    writer.write(
        b"POST /v1/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    length = next(
        int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:")
    )
    return lines[0].split()[1], await reader.readexactly(length)


def measured(load: Load, seconds: float) -> dict[str, object]:
    """Return the figures of a run; latency counts from the moment a request was due."""
    milliseconds = np.array(load.latencies) * 1_000
    return {
        "requests": len(milliseconds),
        "per_second": round(len(milliseconds) / seconds, 1),
        "p50_ms": round(float(np.percentile(milliseconds, 50)), 1),
        "p95_ms": round(float(np.percentile(milliseconds, 95)), 1),
        "p99_ms": round(float(np.percentile(milliseconds, 99)), 1),
        "max_ms": round(float(milliseconds.max()), 1),
        "answers": dict(sorted(load.statuses.items())),
        "without_an_answer_at_first": load.unanswered,
    }


async def kill_and_restart(home: Path, running: list[Running], times: int, every_s: float) -> None:
    """Kill the service in the middle of its work, again and again, and start it on the same port."""
    port = int(urlsplit(running[0].url).port or 0)
    for _ in range(times):
        await asyncio.sleep(every_s)
        running[-1].kill()
        running.append(await asyncio.to_thread(start_service, home, port))


def problems(home: Path, load: Load) -> list[str]:
    """Compare the answers with the log and the books."""
    settings = load_settings(home)
    transport, ledger = open_transport(settings), open_ledger(settings)
    found: dict[bytes, list[tuple[str, int, int]]] = {}
    for entry in settings.topics:
        topic = transport.topic(entry.topic)
        for partition, end in enumerate(transport.ends(topic)):
            for batch in transport.read(topic, partition, 0, end):
                _, names = header_column(batch.column("headers"), "event-id")
                offsets = batch.column("offset").to_pylist()
                for name, offset in zip(names.to_pylist(), offsets, strict=True):
                    found.setdefault(name, []).append((topic.name, partition, offset))
    wrong = [
        f"{len(places)} times on the log: {name!r}"
        for name, places in found.items()
        if len(places) != 1
    ]
    for number, place in load.receipts.items():
        if found.get(f"event-{number}".encode()) != [place]:
            wrong.append(
                f"event-{number} was answered with {place}, the log has it at {found.get(f'event-{number}'.encode())}"
            )
    if len(found) != len(load.receipts):
        wrong.append(f"{len(found)} events on the log, {len(load.receipts)} were answered")
    if not all(run["balanced"] for run in books(ledger)["runs"]):
        wrong.append("the books do not balance")
    return wrong


def prepare(stack: ExitStack, *, embedded: bool) -> Path:
    """Return a home folder on PostgreSQL and Kafka, or on the embedded stores."""
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="admitone-door-")))
    if embedded:
        return home
    database, broker = PostgresServer(), KafkaBroker()
    stack.callback(database.close)
    stack.callback(broker.close)
    (home / "admitone.toml").write_text(
        f'[ledger]\nurl = "{database.new_schema()}"\n'
        f'[transport]\nkind = "kafka"\n[transport.kafka]\nbootstrap = "{broker.bootstrap}"\n'
    )
    return home


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=1_000)
    options.add_argument("--seconds", type=float, default=300)
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--embedded", action="store_true")
    given = options.parse_args()
    gc.disable()  # a generator that looks for its own garbage would measure that
    with ExitStack() as stack:
        home = prepare(stack, embedded=given.embedded)
        running = [start_service(home)]
        stack.callback(lambda: running[-1].stop())  # noqa: PLW0108 - the last one at the end
        warm = Load(running[0].url)
        asyncio.run(warm.run(given.rate / 4, 5, first=1_000_000_000))
        steady = Load(running[0].url)
        asyncio.run(steady.run(given.rate, given.seconds))
        figures: dict[str, object] = {
            "stores": "embedded" if given.embedded else "PostgreSQL and Kafka",
            "cores": os.cpu_count(),
            "rate": given.rate,
            "steady": measured(steady, given.seconds),
        }
        shaken = Load(running[0].url)
        every = 6.0
        span = every * (given.kills + 1)

        async def shake() -> None:
            await asyncio.gather(
                shaken.run(given.rate, span, first=500_000_000),
                kill_and_restart(home, running, given.kills, every),
            )

        asyncio.run(shake())
        everything = Load("", receipts={**warm.receipts, **steady.receipts, **shaken.receipts})
        wrong = problems(home, everything)
        figures["killed"] = {"kills": given.kills, **measured(shaken, span), "wrong": len(wrong)}
        for problem in wrong[:20]:
            print(problem)
        print(json.dumps(figures, indent=2))
        if not given.embedded:
            RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
