"""A run's books and gate, recounted when a client asks for them, once for all who ask at the same time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final, cast

from admitone.core.closure import GateDocument
from admitone.core.moments import iso
from admitone.infra.clock import wall_clock
from admitone.ledger.books import RunBooks, books
from admitone.ops.close import close
from admitone.ops.status import RunState
from admitone.ops.stores import Stores
from admitone.ops.unread import unread
from admitone.service.bounded_executor import BoundedExecutor

_FRESH_FOR_S: Final = 1.0
_COST_SHARE: Final = 4
"""A recount is not repeated before this many times its own duration have passed."""
_KEPT: Final = 100


class RunDocument(GateDocument):
    """A run's state, books and gate, and when they were recounted."""

    state: RunState
    books: RunBooks | None
    checked_at: str | None
    unread: int
    """Deliveries of the run that lie on the raw log and are not decided yet, as far as was looked."""
    head: str | None
    """The head of the chain of all closings: kept elsewhere, it holds them to what they were."""


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it was found."""

    document: RunDocument
    found_at: float
    took_s: float

    @property
    def is_fresh(self) -> bool:
        """Tell whether it need not be found again yet."""
        age = time.monotonic() - self.found_at
        return age < max(_FRESH_FOR_S, _COST_SHARE * self.took_s)


class RunViews:
    """Keeps what was found about runs for as long as finding it again would cost too much."""

    def __init__(self, stores: Stores, executor: BoundedExecutor) -> None:
        self._stores = stores
        self._executor = executor
        self._found: dict[str, RunView] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, run_id: str) -> RunView:
        """Return a run's state, books and gate."""
        async with self._locks.setdefault(run_id, asyncio.Lock()):
            known = self._found.get(run_id)
            if known is not None and known.is_fresh:
                return known
            return await self._look(run_id)

    def last(self, run_id: str) -> RunView | None:
        """Return what was found last, however old."""
        return self._found.get(run_id)

    def forget(self) -> None:
        """Let everything be found again: an operator did something."""
        self._found.clear()

    async def _look(self, run_id: str) -> RunView:
        began = time.monotonic()
        try:
            document = await self._executor.run(_recounted, self._stores, run_id)
        except BaseException:
            self._locks.pop(run_id, None)
            raise
        ended = time.monotonic()
        view = RunView(document, ended, ended - began)
        self._found[run_id] = view
        if len(self._found) > _KEPT:
            oldest = next(iter(self._found))
            self._found.pop(oldest)
            self._locks.pop(oldest, None)
        return view


def _recounted(stores: Stores, run_id: str) -> RunDocument:
    now = wall_clock()
    gate = close(stores, run_id, dry_run=True).gate
    accounts, chain = books(stores.ledger, run_id)["runs"], stores.ledger.closings()
    return {
        **gate.document(),
        "state": cast(RunState, stores.ledger.runs()[run_id]),
        "books": accounts[0] if accounts else None,
        "checked_at": iso(now),
        "unread": unread(stores, run_id).of_run,
        "head": chain[-1].head.hex() if chain else None,
    }
