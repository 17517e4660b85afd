"""A run's books and gate, recounted when they are asked for, once for everybody who asks at the same time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

from admitone.boundary.admission import wall_clock
from admitone.ledger.decisions import iso
from admitone.service.asking import Asking
from admitone.service.stores import Stores

_FRESH_FOR_S: Final = 1.0
_COST_SHARE: Final = 4
"""A recount is not repeated before this many times its own duration have passed."""
_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it was found."""

    document: dict[str, Any]
    found_at: float
    took_s: float

    @property
    def is_fresh(self) -> bool:
        """Tell whether it need not be found again yet."""
        age = time.monotonic() - self.found_at
        return age < max(_FRESH_FOR_S, _COST_SHARE * self.took_s)


class RunViews:
    """Keeps what was found about runs for as long as finding it again would cost too much."""

    def __init__(self, stores: Stores, asking: Asking) -> None:
        self._stores = stores
        self._asking = asking
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
        """Let everything be found again: something was done."""
        self._found.clear()

    async def _look(self, run_id: str) -> RunView:
        began, now = time.monotonic(), wall_clock()
        try:
            document = await self._asking.ask(self._stores.run, run_id)
        except BaseException:
            self._locks.pop(run_id, None)
            raise
        ended = time.monotonic()
        view = RunView({**document, "checked_at": iso(now)}, ended, ended - began)
        self._found[run_id] = view
        if len(self._found) > _KEPT:
            oldest = next(iter(self._found))
            self._found.pop(oldest)
            self._locks.pop(oldest, None)
        return view
