"""Runs many histories, on every core there is, and says what came of them."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from typing_extensions import TypedDict

from admitone.core.errors import IntegrityError
from admitone.simulation.drawn_history import Told, run_history, steps_of
from admitone.simulation.shrink import shrunk

_AT_ONCE = 50
_SHRUNK = 3
"""How many violations are shrunk: each takes as long as some dozens of histories."""

Report = Callable[[int], None]
"""Is told how many histories more are done."""


class ViolationDocument(TypedDict):
    """A history that broke promises, and the command that replays the least of it that still does."""

    seed: int
    steps: list[int]
    kind: str
    promise: int
    what: str
    replay: str


class SimulationDocument(TypedDict):
    """How many histories happened, how large they were, what went wrong in them, and which broke a promise."""

    histories: int
    seeds: tuple[int, int]
    port_calls_median: int
    port_calls: int
    faults: dict[str, int]
    violations: list[ViolationDocument]
    seconds: float
    histories_per_second: float
    processes: int


class _Done(NamedTuple):
    """What is told of many histories."""

    calls: list[int]
    faults: Counter[str]
    broken: list[Told]


@dataclass(slots=True)
class Simulation:
    """What came of many histories."""

    first_seed: int
    careless: bool
    processes: int
    calls: list[int] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    broken: list[Told] = field(default_factory=list)
    seconds: float = 0.0
    trace: list[str] = field(default_factory=list)
    """Of a single history, every call and whatever else happened."""

    def document(self) -> SimulationDocument:
        """Return it as the interface spells it."""
        ordered = sorted(self.calls)
        return {
            "histories": len(ordered),
            "seeds": (self.first_seed, self.first_seed + len(ordered) - 1),
            "port_calls_median": ordered[len(ordered) // 2] if ordered else 0,
            "port_calls": sum(ordered),
            "faults": dict(sorted(self.faults.items())),
            "violations": [
                {
                    "seed": told.seed,
                    "steps": list(told.steps),
                    "kind": told.violations[0].kind,
                    "promise": told.violations[0].promise,
                    "what": told.violations[0].what,
                    "replay": replay_command(told, careless=self.careless),
                }
                for told in self.broken
            ],
            "seconds": round(self.seconds, 3),
            "histories_per_second": round(len(ordered) / self.seconds, 1) if self.seconds else 0.0,
            "processes": self.processes,
        }

    def refusal(self) -> IntegrityError:
        """Return what is said when a promise was broken."""
        return IntegrityError(
            f"{len(self.broken)} of {len(self.calls)} histories broke a promise, the first with seed"
            f" {self.broken[0].seed}: {self.broken[0].violations[0].what}.",
            replay_command(self.broken[0], careless=self.careless),
        )


def simulate(
    first_seed: int,
    histories: int,
    report: Report,
    *,
    careless: bool = False,
    processes: int | None = None,
) -> Simulation:
    """Let as many histories happen as asked for, by seeds that follow one another; shrink the first that fail."""
    processes = processes or min(os.cpu_count() or 1, -(-histories // _AT_ONCE))
    done = Simulation(first_seed, careless, processes)
    began = time.monotonic()
    seeds = range(first_seed, first_seed + histories)
    pieces = [seeds[start : start + _AT_ONCE] for start in range(0, len(seeds), _AT_ONCE)]
    with _mapped(processes) as mapped:
        for piece in mapped(partial(_run_all, careless=careless), pieces):
            done.calls += piece.calls
            done.faults += piece.faults
            done.broken += piece.broken
            report(len(piece.calls))
    done.seconds = time.monotonic() - began
    done.broken[:_SHRUNK] = [shrink(told, careless=careless) for told in done.broken[:_SHRUNK]]
    return done


def replay(seed: int, steps: Sequence[int] | None = None, *, careless: bool = False) -> Simulation:
    """Let one history happen, or some of its steps."""
    began = time.monotonic()
    told = run_history(seed, steps, careless=careless)
    broken = [told] if told.violations else []
    return Simulation(
        seed, careless, 1, [told.calls], told.faults, broken, time.monotonic() - began, told.trace
    )


def shrink(told: Told, *, careless: bool = False) -> Told:
    """Return the least of a history that breaks the same promise."""
    return shrunk(told, lambda steps: run_history(told.seed, steps, careless=careless))


def replay_command(told: Told, *, careless: bool = False) -> str:
    """Return the command that lets the same happen again."""
    words = ["admitone simulate", f"--seed {told.seed}"]
    if len(told.steps) < len(steps_of(told.seed, careless=careless)[1]):
        words.append(f"--steps {','.join(map(str, told.steps))}")
    return " ".join([*words, "--careless"] if careless else words)


def _run_all(seeds: Sequence[int], *, careless: bool) -> _Done:
    calls: list[int] = []
    faults: Counter[str] = Counter()
    broken: list[Told] = []
    for seed in seeds:
        told = run_history(seed, careless=careless)
        calls.append(told.calls)
        faults += told.faults
        if told.violations:
            broken.append(told._replace(trace=[]))
    # Looking for garbage while a history runs takes a tenth of the time, and finds next to nothing.
    gc.collect()
    return _Done(calls, faults, broken)


@contextmanager
def _mapped(processes: int) -> Iterator[Callable[..., Iterator[_Done]]]:
    """Yield what spreads work over processes; a single one does it itself."""
    if processes == 1:
        yield map
        return
    # Forked, arrow's threads would not come along.
    with ProcessPoolExecutor(processes, get_context("spawn"), gc.disable) as pool:
        yield pool.map
