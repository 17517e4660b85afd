"""`GET /v1/topk` from Redis at a steady rate: latency from the moment each request was due.

    python -m benchmarks.topk_http [--rate 500] [--seconds 60]

The home folder holds 20,000 counted deliveries, published to a Redis of its own. Requests ask in turn for the lists of
every dimension in every newest window, except those that have no item in it: Redis does not hold them, and the store
answers. The load generator, the service and Redis share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from itertools import cycle, product
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import numpy as np
from tests.servers.redis import PASSWORD, RedisServer
from tests.servers.service import start_service

from admitone.demo.traffic import GeneratorOptions, generate
from admitone.settings import FILE_NAME, load_settings
from benchmarks.in_process import count_and_publish, decide

RESULTS = Path(__file__).with_name("topk_http.json")
NEWEST_MS = 1_767_609_050_000  # 2026-01-05T10:30:50Z
MIXTURE = {"contradictions": 0.002, "malformed": 0.003, "late": 0.01}
CONFIGURATION = """\
[pipeline]
run_id = "shop"
quarantine_limit = 1.0

[transport]
raw_partitions = 2

[results]
kind = "redis"
url = "{url}"
"""
_CONNECTIONS = 32
_DIMENSIONS = ("url", "productId", "apiEndpoint", "searchQuery", "purchase")
_WINDOWS = ("1m", "1h", "1d", "1w", "1mo", "all")


class Load:
    """Asks at fixed moments, whether or not the ones before were answered."""

    def __init__(self, url: str, questions: Iterable[str]) -> None:
        self._place = urlsplit(url)
        self._questions = cycle(questions)
        self.latencies: list[float] = []
        self.answers: Counter[str] = Counter()

    async def run(self, rate: float, seconds: float) -> None:
        """Ask, and wait for every answer."""
        waiting: asyncio.Queue[tuple[str, float] | None] = asyncio.Queue()
        workers = [asyncio.create_task(self._work(waiting)) for _ in range(_CONNECTIONS)]
        began = time.perf_counter()
        for number in range(int(rate * seconds)):
            due = began + number / rate
            pause = due - time.perf_counter()
            if pause > 0.001:
                await asyncio.sleep(pause)
            waiting.put_nowait((next(self._questions), due))
        for _ in workers:
            waiting.put_nowait(None)
        await asyncio.gather(*workers)

    async def _work(self, waiting: asyncio.Queue[tuple[str, float] | None]) -> None:
        reader, writer = await asyncio.open_connection(self._place.hostname, self._place.port)
        while (job := await waiting.get()) is not None:
            path, due = job
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = int(head.partition("content-length:")[2].split("\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            self.latencies.append(time.perf_counter() - due)
            self.answers[f"{head.split()[1]} {body.get('source', {}).get('kept_in')}"] += 1
        writer.close()


def held_in_redis(client: httpx.Client) -> list[str]:
    """Return the questions that Redis answers."""
    questions = [
        f"/v1/topk?dimension={quote(dimension)}&window={window}&k=20"
        for dimension, window in product(_DIMENSIONS, _WINDOWS)
    ]
    return [q for q in questions if client.get(q).json()["source"]["kept_in"] == "redis"]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rate", type=float, default=500)
    options.add_argument("--seconds", type=float, default=60)
    given = options.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="admitone-topk-")))
        server = RedisServer()
        stack.callback(server.close)
        (home / FILE_NAME).write_text(CONFIGURATION.format(url=server.new_database()))
        os.environ["ADMITONE_RESULTS__PASSWORD"] = PASSWORD
        settings = load_settings(home)
        made = GeneratorOptions(20_000, seed=5, run="shop", end_ms=NEWEST_MS, **MIXTURE)
        lines = (delivery.line for delivery in generate(made))
        count_and_publish(settings, decide(settings, lines, "shop"))
        running = start_service(home)
        stack.callback(running.stop)
        with running.client() as client:
            questions = held_in_redis(client)
        gc.disable()  # a generator that looks for its own garbage would measure that
        asyncio.run(Load(running.url, questions).run(given.rate / 4, 3))
        load = Load(running.url, questions)
        asyncio.run(load.run(given.rate, given.seconds))
        milliseconds = np.array(load.latencies) * 1_000
        figures = {
            "cores": os.cpu_count(),
            "rate": given.rate,
            "lists": len(questions),
            "requests": len(milliseconds),
            "p50_ms": round(float(np.percentile(milliseconds, 50)), 2),
            "p95_ms": round(float(np.percentile(milliseconds, 95)), 2),
            "p99_ms": round(float(np.percentile(milliseconds, 99)), 2),
            "max_ms": round(float(milliseconds.max()), 2),
            "answers": dict(sorted(load.answers.items())),
        }
        print(json.dumps(figures, indent=2))
        RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
