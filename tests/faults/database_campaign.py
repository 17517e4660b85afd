"""A real PostgreSQL that is killed, and connections to it that are cut, under a boundary at work."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

from rich.console import Console

from tests.faults.database_harness import cuts, kills, storm
from tests.faults.pieces import Found, run_pieces, shares, strike_until
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy

_MOST = 20
"""Strikes on one server."""


def kill_campaign(wanted: int, seed: int, folder: Path, console: Console) -> Found:
    """Kill the server so many times."""
    return _campaign("kills", wanted, seed, folder, console)


def cut_campaign(wanted: int, seed: int, folder: Path, console: Console) -> Found:
    """Cut connections so many times."""
    return _campaign("cuts", wanted, seed, folder, console)


def _campaign(kind: str, wanted: int, seed: int, folder: Path, console: Console) -> Found:
    pieces = [
        (_strike, kind, share, seed + number, folder / f"{kind}-{number}")
        for number, share in enumerate(shares(wanted, _MOST))
    ]
    return run_pieces(f"database {kind}", pieces, console)


def _strike(kind: str, wanted: int, seed: int, folder: Path) -> Found:
    rng = random.Random(seed)
    homes = (folder / f"storm-{number}" for number in count())
    server = PostgresServer()
    proxy = Proxy(server.port)
    strike, pause_s = (kills(server), 1.0) if kind == "kills" else (cuts(proxy), 0.2)

    def storms(left: int) -> tuple[int, list[str]]:
        url = server.new_schema() if kind == "kills" else proxy.url(server.new_schema())
        return storm(next(homes), rng.randrange(1 << 30), url, strike, left, pause_s)

    try:
        return strike_until(wanted, kind, storms)
    finally:
        proxy.close()
        server.close()
