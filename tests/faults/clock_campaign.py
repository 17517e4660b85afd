"""Clocks jump, forward and back: those of brokers, of the worker, of the driver and of the ledger's database.

A history is a pipeline at work: sources of different pace, one that falls silent and comes back, duplicates of
whatever is still inside the retention, late events, and a door whose request is under way while a clock jumps. Beside
it stands an oracle that knows the true time and nothing of the product: it says what every delivery must become, which
sources are active, and how far windows may be complete.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.console import Console

from admitone.boundary import open_boundary
from admitone.boundary.doors import Delivery, DoorSlot
from admitone.core.decisions import BlockState
from admitone.core.windows import parse_window
from admitone.ledger.books import books
from tests.faults.pieces import Found, run_pieces, shares
from tests.servers.postgres import PostgresServer
from tests.support.clocks import LedgerClock, clocked_postgres
from tests.support.counted import sketch_in
from tests.support.ledgers import OpenLedger
from tests.support.machines import (
    DATABASE,
    DRIVER,
    HOUR,
    IDLE_AFTER,
    LATENESS,
    MINUTE,
    RETENTION,
    WORKER,
    Machines,
    page_view,
)

_BEHIND = {0: 0, 1: 25 * MINUTE, 2: 45 * MINUTE, 3: 12 * MINUTE}
"""How long ago the events of a source happened."""
_SLEEPER, _DOOR = 3, 4
_BROKERS = [f"broker {partition}" for partition in _BEHIND]
_MACHINES = [DATABASE, DATABASE, DATABASE, WORKER, DRIVER, *_BROKERS]
_JUMPS = [MINUTE, 20 * MINUTE, HOUR, 5 * HOUR, 24 * HOUR, 960 * HOUR]
_JUMPS_EACH = 25
_STEPS_BETWEEN, _STEPS_UNTIL_IDLE = 3, 14

Clocked = Callable[[], tuple[OpenLedger, LedgerClock]]


@dataclass
class Oracle:
    """What must become of everything, by the true time."""

    stream_times: dict[int, int] = field(default_factory=dict)
    heard_at: dict[int, int] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    """When each event happened that was admitted."""
    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    late: int = 0

    def take(self, source: int, event_id: str, at: int, now: int) -> None:
        """Take note of a delivery."""
        known = event_id in self.keys
        self.verdicts[event_id, "DUPLICATE" if known else "ADMITTED"] += 1
        self.stream_times[source] = max(at, self.stream_times.get(source, at))
        if not known:
            self.keys[event_id] = at
            self.heard_at[source] = now
            self.late += self.stream_times[source] >= at // MINUTE * MINUTE + MINUTE + LATENESS

    def repeatable(self, source: int) -> list[str]:
        """Return the events that a source may deliver again, each of which must be found, the oldest first."""
        now = self.stream_times[source]
        found = [event_id for event_id, at in self.keys.items() if now - RETENTION < at <= now]
        return sorted(found, key=self.keys.__getitem__)

    def held_at(self, now: int) -> int:
        """Return the stream time of the slowest source that is active beyond doubt."""
        active = [s for s, at in self.heard_at.items() if at >= now - IDLE_AFTER // 2]
        return min(self.stream_times[source] for source in active)


class History:
    """A pipeline whose clocks jump, beside its oracle."""

    def __init__(self, home: Path, seed: int, clocked: Clocked | None) -> None:
        home.mkdir(parents=True)
        opened, clock = clocked() if clocked else (None, None)
        self.machines = Machines(home, len(_BEHIND), opened, clock and clock.set)
        self.chance, self.oracle = random.Random(seed), Oracle()
        self.jumps: list[str] = []
        self.findings: list[str] = []
        self._numbers = iter(range(1_000_000))
        self._awake = True

    def found(self, what: str) -> None:
        """Note what went wrong, and behind which jumps."""
        self.findings.append(f"{what}, after {', '.join(self.jumps[-3:]) or 'no jump'}")

    def jump(self) -> None:
        """Set a clock."""
        machine, by = self.chance.choice(_MACHINES), self.chance.choice(_JUMPS)
        # A clock that was set wrong is mostly set right again.
        error = self.machines.errors[machine]
        by = -error if error and self.chance.random() < 0.6 else by * self.chance.choice([1, 1, -1])
        self.machines.jump(machine, by)
        self.jumps.append(f"{machine} {by / MINUTE:+.0f} min")

    def steps(self, number: int, strike: Callable[[], None] | None = None) -> None:
        """Let everything work for a while; the strike comes when only some sources took their turn."""
        for _ in range(number):
            self.machines.pass_time(self.chance.randrange(60_000, 150_000))
            sources = [source for source in _BEHIND if source != _SLEEPER or self._awake]
            self.chance.shuffle(sources)
            first = self.chance.randint(1, len(sources) - 1)
            self._work(sources[:first])
            if strike is not None:
                strike()
                strike = None
            self._work(sources[first:])

    def _work(self, sources: list[int]) -> None:
        for source in sources:
            self.machines.deliver(source, *self._events(source))
        self.machines.decide(sources)
        self.machines.pipeline.ledger.expire_segments(RETENTION, IDLE_AFTER)
        self.machines.count(self.chance.choice([3, 1_000]))
        self._look()

    def sleep_or_wake(self) -> None:
        """Let one source fall silent, or come back."""
        self._awake = self.chance.random() < 0.6

    def door(self) -> None:
        """Let a request of the door be under way while a clock jumps and a pipeline starts beside it."""
        machines = self.machines
        boundary = open_boundary(machines.pipeline.settings)
        boundary.ledger, boundary.clock = machines.pipeline.ledger, machines.pipeline.boundary.clock
        append = machines.pipeline.transport.append

        def jump_and_append(*parts: Any) -> Any:
            (block,) = boundary.in_flight()
            self.jump()
            machines.pipeline.boundary.start(machines.pipeline.topic)
            (now,) = boundary.ledger.blocks(ids=[block.block_id])
            if (now.state, now.epoch) != (BlockState.IN_FLIGHT, block.epoch):
                self.found(f"a block that a door is publishing was seized: {now.state}")
            return append(*parts)

        boundary.transport.append = jump_and_append  # type: ignore[method-assign]
        event_id, at = f"door-{next(self._numbers)}", machines.now
        ((answer,),) = DoorSlot(boundary, 0).admit([Delivery(page_view(event_id, at))])
        self.oracle.take(_DOOR, event_id, at, machines.now)
        if answer["verdict"] != "ADMITTED":
            self.found(f"{event_id} became {answer['verdict']}")

    def end(self) -> None:
        """Look at everything once more: decisions, books, what is silent, and what counting again says."""
        self._awake = False
        self.steps(_STEPS_UNTIL_IDLE)
        machines, pipeline = self.machines, self.machines.pipeline
        silent = self.oracle.stream_times.get(_SLEEPER)
        clock = machines.store.state().clock
        if clock is None or clock.frontier == silent:
            self.found("a source that is silent still holds windows open")
        decided = Counter((row["event_id"], row["verdict"]) for row in pipeline.decisions())
        for what, difference in (
            ("decided, and ought not to be", decided - self.oracle.verdicts),
            ("not decided", self.oracle.verdicts - decided),
        ):
            if difference:
                self.found(f"{what}: {difference.most_common(3)} of {difference.total()}")
        if not all(run["balanced"] for run in books(pipeline.ledger)["runs"]):
            self.found("the books do not balance")
        self.findings += pipeline.problems()
        for kind in ("log", "archive"):
            done = machines.count_again(kind)
            if not done.switched or machines.store.state().clock != clock:
                self.found(f"from the {kind} it is counted differently: {done.comparison.told}")
        machines.store.close()

    def _events(self, source: int) -> Iterator[bytes]:
        now = self.machines.now - _BEHIND[source]
        for _ in range(self.chance.randint(1, 3)):
            at = now - (self.chance.random() < 0.3) * self.chance.randrange(RETENTION // 2)
            yield self._event(source, f"e{next(self._numbers)}", at)
        again = self.oracle.repeatable(source)
        # The oldest is what a source that is taken for idle loses first.
        for event_id in [again[0], *self.chance.sample(again, min(2, len(again)))]:
            yield self._event(source, event_id, self.oracle.keys[event_id])

    def _event(self, source: int, event_id: str, at: int) -> bytes:
        self.oracle.take(source, event_id, at, self.machines.now)
        return page_view(event_id, at)

    def _look(self) -> None:
        state, held = self.machines.store.state(), self.oracle.held_at(self.machines.now)
        early = [
            window.key
            for window in self.machines.store.windows()
            if state.is_complete(window) and window.end_ms + LATENESS > held
        ]
        if early:
            self.found(f"{len(early)} windows are complete too early, {early[-1]} among them")
        counted = sketch_in(self.machines.store, parse_window("global"), "url")
        expected = (len(self.oracle.keys) - self.oracle.late, self.oracle.late)
        if counted is None or (counted.total, counted.late) != expected:
            self.found(
                f"total and late are {counted and (counted.total, counted.late)}, not {expected}"
            )


def clock_campaign(jumps: int, seed: int, folder: Path, console: Console) -> Found:
    """Let clocks jump, in one history beside the other, on both ledgers."""
    stores = cycle(("sqlite", "postgres"))
    pieces = [
        (_history, share, seed + number, folder / f"history-{number}", next(stores))
        for number, share in enumerate(shares(jumps, _JUMPS_EACH))
    ]
    return run_pieces("clocks", pieces, console)


def _history(jumps: int, seed: int, home: Path, store: str) -> Found:
    with ExitStack() as stack:
        clocked = None
        if store == "postgres":
            server = stack.enter_context(closing(PostgresServer(durable=False)))
            clocked = partial(clocked_postgres, server.new_schema())
        history = History(home, seed, clocked)
        history.steps(2)
        while len(history.jumps) < jumps:
            history.sleep_or_wake()
            strike = history.door if history.chance.random() < 0.3 else history.jump
            history.steps(_STEPS_BETWEEN, strike)
        history.end()
    struck = Counter(jump.split()[0] for jump in history.jumps)
    return struck, [f"{store}, seed {seed}: {finding}" for finding in history.findings]
