"""Faults on a real Kafka by the hundred: at crash points, on connections, on the broker, behind open transactions.

Requests that the broker gets late are among them.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count, repeat
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from admitone.infra.crash_points import KAFKA_POINTS, RECONCILE_POINTS
from tests.faults.harness import Case, Fault, random_case
from tests.faults.kafka_harness import (
    HELD_BACK,
    cuts,
    kafka_storm,
    kills,
    late_requests,
    pauses,
    run_ambiguous_case,
    run_hidden_case,
    run_kafka_case,
)
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_proxy import Api, KafkaProxy
from tests.servers.postgres import PostgresServer

Found = tuple[int, list[str]]
_SHARES = {"crash points": 0.6, "cuts": 0.2, "kills": 0.08, "pauses": 0.06, "open": 0.06}
_LEDGER = "sqlite:data/ledger.db"


def kafka_campaign(
    wanted: int, held: int, seed: int, folder: Path, workers: int, console: Console
) -> Found:
    """Strike until so many faults struck, and so many requests of each kind were held back.

    Return how many faults struck and what went wrong.
    """
    aims = {kind: round(wanted * share) for kind, share in _SHARES.items()}
    aims |= {_late(api): held for api in HELD_BACK}
    broker, server = KafkaBroker(), PostgresServer(durable=False)
    proxy = KafkaProxy(broker)
    struck, findings = 0, []
    try:
        campaign = _Campaign(random.Random(seed), folder, broker, proxy, server, workers)
        with Progress(console=console) as progress:
            for kind, aim in aims.items():
                done = 0
                task = progress.add_task(f"kafka: {kind}", total=aim)
                while done < aim:
                    for hits, problems in campaign.strikes(kind, aim - done):
                        done += hits
                        findings += [f"kafka, {kind}: {problem}" for problem in problems]
                        progress.update(task, completed=done)
                struck += done
                console.print(f"  kafka: {kind:<26} {done:>6}")
    finally:
        proxy.close()
        server.close()
        broker.close()
    return struck, findings


class _Campaign:
    def __init__(
        self,
        rng: random.Random,
        folder: Path,
        broker: KafkaBroker,
        proxy: KafkaProxy,
        server: PostgresServer,
        workers: int,
    ) -> None:
        self._rng = rng
        self._homes = (folder / f"kafka-{number}" for number in count())
        self._broker, self._proxy, self._server = broker, proxy, server
        self._workers = workers
        self._storms = {
            "cuts": (broker.proxied, cuts(proxy), 0.3),
            "kills": (broker.bootstrap, kills(broker), 1.0),
            "pauses": (broker.bootstrap, pauses(broker), 1.0),
            **{_late(api): (broker.proxied, late_requests(proxy, api), 0.1) for api in HELD_BACK},
        }

    def strikes(self, kind: str, wanted: int) -> Iterator[Found]:
        """Yield how many faults struck, about as many as wanted, and what went wrong, piece by piece."""
        if kind == "crash points":
            yield from self._crashes(wanted)
        elif kind == "open":
            yield self._left_open()
        else:
            bootstrap, strike, pause_s = self._storms[kind]
            yield kafka_storm(
                next(self._homes), self._number(), self._broker, bootstrap, strike, wanted, pause_s,
                self._ledger(),
            )  # fmt: skip

    def _crashes(self, wanted: int) -> Iterator[Found]:
        planned = [
            (random_case(self._rng, KAFKA_POINTS), next(self._homes), self._ledger())
            for _ in range(wanted // 2 + 1)
        ]
        # Processes, not threads: multiprocessing lets threads reap each other's children.
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self._workers, spawned) as pool:
            yield from pool.map(_crash, repeat(self._broker.bootstrap), planned)

    def _left_open(self) -> Found:
        rng, home = self._rng, next(self._homes)
        if rng.random() < 0.5:
            endings = {"commit": rng.random() < 0.5, "patient": rng.random() < 0.5}
            problems = run_hidden_case(home, self._broker, self._number(), **endings)
            return 1, [f"{endings}: {problem}" for problem in problems]
        written = rng.random() < 0.3
        faults = tuple(
            Fault(point, 1, rng.choice(("kill", "stop")))
            for point in (RECONCILE_POINTS[:1] if written else RECONCILE_POINTS)
        )
        case = Case(self._number(), faults, (50,) * (len(faults) + 1))
        struck, problems = run_ambiguous_case(
            home, self._broker, self._proxy, case, written=written
        )
        return struck, [f"{case}: {problem}" for problem in problems]

    def _number(self) -> int:
        return self._rng.randrange(1 << 30)

    def _ledger(self) -> str:
        return self._rng.choice((_LEDGER, self._server.new_schema()))


def _late(api: Api) -> str:
    return f"late {api.name.lower()}"


def _crash(bootstrap: str, plan: tuple[Case, Path, str]) -> Found:
    case, home, ledger_url = plan
    struck, problems = run_kafka_case(case, home, bootstrap, ledger_url)
    return struck, [f"{case}: {problem}" for problem in problems]
