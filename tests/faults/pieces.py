"""The pieces of a campaign: they run beside each other, and one that fails does not end the others."""

from __future__ import annotations

import multiprocessing
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from rich.console import Console
from rich.progress import Progress

Found = tuple[Mapping[str, int], list[str]]
"""How many faults of each kind struck, and what went wrong."""
Piece = tuple[Any, ...]
"""A function of a module, which returns what it found, and its arguments."""
# One more than the cores that a campaign is made for: a piece often waits, for a server or for a disk.
_BESIDE = 3
_SPARE = 10


def run_pieces(name: str, pieces: Iterable[Piece], console: Console) -> Found:
    """Run pieces in processes; what they found is added up, and an exception is a finding."""
    struck, findings = Counter[str](), list[str]()
    # Processes, not threads: multiprocessing lets threads reap each other's children.
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_BESIDE, spawned) as pool, Progress(console=console) as progress:
        running: list[Future[Found]] = [pool.submit(*piece) for piece in pieces]
        for piece in progress.track(running, description=name):
            try:
                hits, problems = piece.result()
            except Exception:
                findings.append(traceback.format_exc())
            else:
                struck.update(hits)
                findings += problems
    return struck, findings


def shares(count: int, most: int) -> list[int]:
    """Return a count in equal shares of so many at most."""
    number = -(-count // most)
    return [count // number + (share < count % number) for share in range(number)]


def strike_until(wanted: int, kind: str, strike: Callable[[int], tuple[int, list[str]]]) -> Found:
    """Strike until so many faults struck; `strike` is told how many are left."""
    struck, problems = 0, list[str]()
    for _ in range(wanted + _SPARE):
        if struck >= wanted:
            break
        hits, more = strike(wanted - struck)
        struck += hits
        problems += more
    if struck < wanted:
        problems.append(f"only {struck} of {wanted} faults struck")
    return {kind: struck}, [f"{kind}: {problem}" for problem in problems]
