"""Ledgers that go back under a pipeline at work: older copies, and standbys that take a primary's place."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.faults.failover import fail_over
from tests.faults.pieces import Found, run_pieces, shares
from tests.servers.postgres import PostgresServer
from tests.support import pipeline
from tests.support.goes_back import goes_back

_MOST = 25
"""Ledgers of one process, and on one server."""


def going_back_campaign(repetitions: int, seed: int, folder: Path, console: Console) -> Found:
    """Put an older copy in the place of so many ledgers of each store."""
    pieces, number = [], seed
    for share in shares(repetitions, _MOST):
        for store in ("sqlite", "postgres"):
            pieces.append((_go_back, store, range(number, number + share), folder))
        number += share
    return run_pieces("ledgers that go back", pieces, console)


def standby_campaign(repetitions: int, seed: int, folder: Path, console: Console) -> Found:
    """Let so many standbys of each kind take the place of their primaries."""
    pieces = (
        (_fail_over, kind, number, folder / f"{kind}-{number}")
        for number in range(seed, seed + repetitions)
        for kind in ("synchronous", "lagging")
    )
    return run_pieces("standbys", pieces, console)


def _go_back(store: str, seeds: range, folder: Path) -> Found:
    server = PostgresServer(durable=False) if store == "postgres" else None
    pipeline.new_ledger = server.new_schema if server else None
    findings = []
    try:
        for seed in seeds:
            home = folder / f"{store}-{seed}"
            home.mkdir()
            findings += [f"{store}, {seed}: {problem}" for problem in goes_back(home, seed)]
    finally:
        pipeline.new_ledger = None
        if server is not None:
            server.close()
    return {store: len(seeds)}, findings


def _fail_over(kind: str, seed: int, home: Path) -> Found:
    problems = fail_over(home, seed, synchronous=kind == "synchronous")
    return {kind: 1}, [f"{kind}, {seed}: {problem}" for problem in problems]
