"""What changes from second to second, looked at once for all clients that watch, and only while one does.

Nothing here recounts a run: colours are those of the last recount, which is repeated when the ledger moved on and its
cost allows it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NotRequired, Required, cast

import numpy as np
from typing_extensions import TypedDict

from admitone.core.decisions import VERDICT_CODES
from admitone.core.errors import AdmitoneError
from admitone.infra.clock import wall_clock
from admitone.ledger.model import Filter
from admitone.ops.lag import Waiting
from admitone.ops.run import running
from admitone.ops.stores import Stores
from admitone.service.bounded_executor import OUR_MISTAKE, BoundedExecutor
from admitone.service.live.run_views import RunViews

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
PARTS: Final = frozenset({"rates", "lag", "gate"})
_SHOWN_S: Final = 300
_OVERLAP_MS: Final = 10_000
"""A block is seen this much later than its time of decision, at most."""
_LAG_EVERY_S: Final = 2.0
_SHORTEST_PAUSE_S: Final = 0.05
_RECOUNT_EVERY_S: Final = 30.0
_RECOUNT_AFTER_S: Final = 5.0
"""How soon a run is recounted again: where nothing moved, and where something did."""
_COST_SHARE: Final = 10
"""Recounting for clients that watch takes at most one part of so many of the time."""
_RUNS_SHOWN: Final = 20


class LagPart(Waiting):
    """The part `lag`: what waits, how many topics are not as agreed, and whether a pipeline runs."""

    drift: int
    running: bool


class GateLine(TypedDict):
    """One run's colour."""

    run_id: str
    state: str
    gate: Literal["green", "red"]
    blockers: int
    checked_at: str | None


class GatePart(TypedDict):
    """The part `gate`: the colours of the newest runs."""

    runs: list[GateLine]


class SecondRates(TypedDict, total=False):
    """One line of the part `rates`: the decisions of a second, counted by verdict where there were any."""

    at: Required[int]
    ADMITTED: int
    DUPLICATE: int
    REPLAYED: int
    QUARANTINED: int
    AMBIGUOUS: int


class Trouble(TypedDict):
    """What a part says while it cannot be found."""

    problem: str
    remedy: str | None
    code: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was found so far; a part that did not change keeps the number it was found under."""

    number: int
    parts: dict[str, tuple[int, Any]] = field(default_factory=dict)


class Rates:
    """Decisions for each second and verdict, from the blocks that were decided lately."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._seen: dict[int, int] = {}
        self._seconds: dict[int, Counter[str]] = {}
        self._since = 0

    def look(self) -> list[SecondRates]:
        """Return what was decided in each of the last seconds in which something was."""
        now = wall_clock()
        since = max(self._since - _OVERLAP_MS, now - _SHOWN_S * 1_000)
        for block, _, verdicts, _ in self._stores.ledger.decided(Filter(since=since)):
            if block.block_id in self._seen or block.decided_at is None:
                continue
            self._seen[block.block_id] = block.decided_at
            counts = self._seconds.setdefault(block.decided_at // 1_000, Counter())
            codes, sizes = np.unique(verdicts["verdict"].to_numpy(), return_counts=True)
            for code, size in zip(codes.tolist(), sizes.tolist(), strict=True):
                counts[str(VERDICT_CODES[code])] += size
        self._since = now
        oldest = now - _SHOWN_S * 1_000
        self._seen = {block: at for block, at in self._seen.items() if at >= oldest - _OVERLAP_MS}
        self._seconds = {at: found for at, found in self._seconds.items() if at * 1_000 >= oldest}
        return [
            cast(SecondRates, {"at": at, **found}) for at, found in sorted(self._seconds.items())
        ]


class LiveFeed:
    """Looks again and again while a client watches, at each part in its own time: none waits for a slower one."""

    def __init__(self, stores: Stores, executor: BoundedExecutor, runs: RunViews) -> None:
        self._stores = stores
        self._executor = executor
        self._runs = runs
        self._rates = Rates(stores)
        self.watchers = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshot = Snapshot(0)
        self._changed = asyncio.Condition()
        self._woken = asyncio.Event()
        self._recounted: dict[str, tuple[Any, float]] = {}
        self.stopping = asyncio.Event()

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Look while a client is within."""
        self.watchers += 1
        if all(task.done() for task in self._tasks):
            self._snapshot = Snapshot(self._snapshot.number)
            self._tasks = [
                asyncio.create_task(self._keep(name, every_s, look))
                for name, every_s, look in (
                    (None, EVERY_S, None),
                    ("rates", EVERY_S, lambda: self._executor.run(self._rates.look)),
                    ("lag", _LAG_EVERY_S, lambda: self._executor.run(self._lag)),
                    ("gate", EVERY_S, self._gates),
                )
            ]
        try:
            yield
        finally:
            self.watchers -= 1

    async def after(self, number: int) -> Snapshot:
        """Return the first snapshot after one that was seen; the same again when the service stops."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._snapshot.number > number or self.stopping.is_set()
            )
            return self._snapshot

    def wake(self) -> None:
        """Look now: something was done."""
        self._recounted.clear()
        self._woken.set()

    async def stop(self) -> None:
        """Let the clients that watch go."""
        self.stopping.set()
        self._woken.set()
        async with self._changed:
            self._changed.notify_all()

    async def _keep(
        self, name: str | None, every_s: float, look: Callable[[], Awaitable[Any]] | None
    ) -> None:
        """Look at one part again and again; without one, only let time pass."""
        while self.watchers and not self.stopping.is_set():
            began = time.monotonic()
            if name is None or look is None:
                await self._tell(self._snapshot.parts)
            else:
                document = await _told(look())
                told = self._snapshot.parts.get(name)
                if told is None or told[1] != document:
                    part = (self._snapshot.number + 1, document)
                    await self._tell({**self._snapshot.parts, name: part})
            pause = max(_SHORTEST_PAUSE_S, every_s - (time.monotonic() - began))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)
                await asyncio.sleep(_SHORTEST_PAUSE_S)
                self._woken.clear()

    async def _tell(self, parts: dict[str, tuple[int, Any]]) -> None:
        async with self._changed:
            self._snapshot = Snapshot(self._snapshot.number + 1, parts)
            self._changed.notify_all()

    def _lag(self) -> LagPart:
        lag = self._stores.lag()
        return {
            **lag.waiting(),
            "drift": len(lag.drift),
            "running": running(self._stores.settings) is not None,
        }

    async def _gates(self) -> GatePart:
        runs = await self._executor.run(self._stores.ledger.runs)
        stamp = await self._executor.run(self._stamp)
        lines: list[GateLine] = []
        for run_id, state in list(runs.items())[-_RUNS_SHOWN:]:
            known = self._runs.last(run_id)
            seen, at = self._recounted.get(run_id, (None, 0.0))
            pause = _RECOUNT_EVERY_S if seen == (stamp, state) else _RECOUNT_AFTER_S
            cost = 0.0 if known is None else _COST_SHARE * known.took_s
            if known is None or time.monotonic() - at > max(pause, cost):
                known = await self._runs.of(run_id)
                self._recounted[run_id] = ((stamp, state), time.monotonic())
            gate, checked_at = known.document["gate"], known.document["checked_at"]
            blockers = sum(len(check["blockers"]) for check in known.document["checks"])
            line = GateLine(
                run_id=run_id, state=state, gate=gate, blockers=blockers, checked_at=checked_at
            )
            lines.append(line)
        return {"runs": lines}

    def _stamp(self) -> tuple[Any, ...]:
        """Return numbers of which one changes whenever a run may change its colour."""
        ledger = self._stores.ledger
        with ledger.snapshot():
            decided = sum(info.decided for info in ledger.sources())
            return (
                decided,
                len(ledger.anomalies()),
                len(ledger.pending_evidence()),
                len(ledger.pending_resolutions()),
            )


async def _told(look: Awaitable[Any]) -> Any:
    """Return what a look found, or why it found nothing: watching clients are told, and the next look may find more."""
    try:
        return await look
    except AdmitoneError as error:
        return Trouble(problem=error.problem, remedy=error.remedy)
    except Exception:
        log.exception("a look failed")
        return Trouble(problem=OUR_MISTAKE, remedy=None)
