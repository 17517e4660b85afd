"""A database that dies, and connections that are cut, under a boundary at work; compared with the oracle.

The boundary runs in a process of its own. Whatever strikes, it either gets over it or stops with a clear error and is
started again; at the end every decision, record and file is what the generator's truth says.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.harness import (
    FENCED,
    FINISHED,
    OVERTAKEN,
    UNREACHABLE,
    prepare,
    start,
    use_ledger,
    verify,
)
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Fault, Proxy

_EXPECTED = (FENCED, OVERTAKEN, UNREACHABLE)
_MAX_BLOCK = 30
_EVENTS = 3_000
_MOST_STRIKES = 12
_PATIENCE_S = 180.0

Strike = Callable[[random.Random], int]


def kills(server: PostgresServer) -> Strike:
    """Return a strike that kills the whole server and starts it again."""

    def strike(rng: random.Random) -> int:
        server.kill()
        time.sleep(rng.choice((0.0, 0.2)))
        server.start()
        return 1

    return strike


def cuts(proxy: Proxy) -> Strike:
    """Return a strike that cuts connections: all at once, or one at its next COMMIT, before or after it."""

    def strike(rng: random.Random) -> int:
        before = proxy.struck
        if rng.random() < 0.4:
            return proxy.cut_all()
        proxy.arm(rng.choice((Fault.BEFORE, Fault.AFTER, Fault.AFTER, Fault.LATE)))
        deadline = time.monotonic() + 2.0
        while proxy.struck == before and time.monotonic() < deadline:
            time.sleep(0.005)
        proxy.arm()
        return proxy.struck - before

    return strike


def storm(
    home: Path, seed: int, url: str, strike: Strike, wanted: int, pause_s: float
) -> tuple[int, list[str]]:
    """Strike a database under a boundary at work; return how often, and what is wrong at the end."""
    truth = prepare(home, seed, _EVENTS)
    use_ledger(home, url)
    return weather(home, random.Random(seed), strike, wanted, pause_s, lambda: verify(home, truth))


def weather(
    home: Path,
    rng: random.Random,
    strike: Strike,
    wanted: int,
    pause_s: float,
    check: Callable[[], list[str]],
) -> tuple[int, list[str]]:
    """Strike a boundary at work, up to `pause_s` apart; return how often, and what is wrong at the end."""
    struck, problems = 0, []
    wanted = min(wanted, _MOST_STRIKES)
    deadline = time.monotonic() + _PATIENCE_S
    process = start(home, _MAX_BLOCK, None)
    while time.monotonic() < deadline:
        process.join(rng.uniform(0.02, pause_s))
        if process.exitcode is None:
            if struck < wanted:
                struck += strike(rng)
                # What counts is that it finishes once it is left alone.
                deadline = time.monotonic() + _PATIENCE_S
            continue
        if process.exitcode == FINISHED:
            break
        if process.exitcode not in _EXPECTED:
            problems.append(f"the boundary ended with {process.exitcode}")
            break
        process = start(home, _MAX_BLOCK, None)
    else:
        process.kill()
        problems.append(f"not finished after {_PATIENCE_S:.0f} s")
    return struck, problems + check()
