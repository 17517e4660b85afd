"""Faults on a real Kafka by the hundred: at crash points, on connections, on the broker, behind open transactions.

Requests that the broker gets late are a campaign of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from rich.console import Console

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
from tests.faults.pieces import Found, run_pieces, shares, strike_until
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_proxy import Api, KafkaProxy
from tests.servers.postgres import PostgresServer

Struck = tuple[int, list[str]]
_SHARES = {"crash points": 0.6, "cuts": 0.2, "kills": 0.08, "pauses": 0.06, "open": 0.06}
_LEDGER = "sqlite:data/ledger.db"
_MOST = 50
"""Strikes on one broker."""


def kafka_campaign(wanted: int, seed: int, folder: Path, console: Console) -> Found:
    """Strike about so many times, and at least once in each way."""
    aims = {kind: max(1, round(wanted * share)) for kind, share in _SHARES.items()}
    return _campaign("kafka", aims, seed, folder, console)


def late_campaign(held: int, seed: int, folder: Path, console: Console) -> Found:
    """Hold so many requests of each kind back."""
    return _campaign(
        "late requests", {_late(api): held for api in HELD_BACK}, seed, folder, console
    )


def _campaign(
    name: str, aims: Mapping[str, int], seed: int, folder: Path, console: Console
) -> Found:
    planned = [(kind, share) for kind, aim in aims.items() for share in shares(aim, _MOST)]
    pieces = (
        (_strike, kind, share, seed + number, folder / f"kafka-{number}")
        for number, (kind, share) in enumerate(planned)
    )
    return run_pieces(name, pieces, console)


def _strike(kind: str, wanted: int, seed: int, folder: Path) -> Found:
    broker, server = KafkaBroker(), PostgresServer(durable=False)
    proxy = KafkaProxy(broker)
    try:
        strikes = _Strikes(random.Random(seed), folder, broker, proxy, server)
        return strike_until(wanted, kind, strikes.of(kind))
    finally:
        proxy.close()
        server.close()
        broker.close()


class _Strikes:
    def __init__(
        self,
        rng: random.Random,
        folder: Path,
        broker: KafkaBroker,
        proxy: KafkaProxy,
        server: PostgresServer,
    ) -> None:
        self._rng = rng
        self._homes = (folder / f"home-{number}" for number in count())
        self._broker, self._proxy, self._server = broker, proxy, server
        self._storms = {
            "cuts": (broker.proxied, cuts(proxy), 0.3),
            "kills": (broker.bootstrap, kills(broker), 1.0),
            "pauses": (broker.bootstrap, pauses(broker), 1.0),
            **{_late(api): (broker.proxied, late_requests(proxy, api), 0.1) for api in HELD_BACK},
        }

    def of(self, kind: str) -> Callable[[int], Struck]:
        """Return what strikes in that way, up to so many times, and says what went wrong."""
        if kind == "crash points":
            return lambda _: self._crash()
        if kind == "open":
            return lambda _: self._leave_open()
        return lambda wanted: self._storm(kind, wanted)

    def _storm(self, kind: str, wanted: int) -> Struck:
        bootstrap, strike, pause_s = self._storms[kind]
        return kafka_storm(
            next(self._homes), self._number(), self._broker, bootstrap, strike, wanted, pause_s,
            self._ledger(),
        )  # fmt: skip

    def _crash(self) -> Struck:
        case = random_case(self._rng, KAFKA_POINTS)
        struck, problems = run_kafka_case(
            case, next(self._homes), self._broker.bootstrap, self._ledger()
        )
        return struck, [f"{case}: {problem}" for problem in problems]

    def _leave_open(self) -> Struck:
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
