"""Counting everything again beside the live store, and taking its place (TOP-10).

1. Count into an empty store beside the live one, up to where the live one is.
2. Catch up and compare everything, while the live store goes on.
3. Hold the live store's writers back for a moment: catch up, compare what changed meanwhile, and switch.

Readers see the live store as it was until the switch commits; it is one transaction of the live store. Whatever ends
this before leaves the live store untouched, and the next attempt begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from admitone.analytics.comparing import Comparison, compare
from admitone.analytics.open import counting_parameters
from admitone.analytics.port import CountingParameters
from admitone.analytics.sqlite import SqliteSketchStore
from admitone.core.errors import IntegrityError
from admitone.faults import crash_point
from admitone.settings import Settings

Marks = Mapping[tuple[str, int], int]
"""The last counted offset by topic id and partition."""
Report = Callable[[str, int], None]
"""Told what is going on, and how many records were counted so far."""

BESIDE = ".recomputing"


class Again(Protocol):
    """Where admitted records can be had once more."""

    def target(self, live: SqliteSketchStore) -> Marks:
        """Return up to where to count: where the live store is, or the end where it has nothing."""

    def count(
        self, into: SqliteSketchStore, live: SqliteSketchStore, target: Marks, report: Report
    ) -> None:
        """Count what lies between a store's marks and the target."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came of it."""

    records: int
    comparison: Comparison
    switched: bool
    was_empty: bool


def recompute(settings: Settings, again: Again, *, accept: bool, report: Report) -> Recomputed:
    """Count everything again, compare, and switch unless something differs that is not accepted."""
    path = settings.sqlite_path(settings.topk.store)
    parameters = counting_parameters(settings)
    live = SqliteSketchStore(path, parameters)
    beside = _beside(path, live, parameters)
    try:
        was_empty = live.state().clock is None
        again.count(beside, live, again.target(live), report)  # 1
        crash_point("recompute.counted")
        with live.snapshot():  # 2
            before = live.state()
            again.count(beside, live, again.target(live), report)
            report("comparing", _records(beside))
            found = Comparison() if was_empty else compare(live, beside)
        crash_point("recompute.compared")
        if found.differing and not accept:
            return Recomputed(_records(beside), found, False, was_empty)
        with live.writing():  # 3
            again.count(beside, live, again.target(live), report)
            changed = live.changes(before.generation, before.revision)
            if not was_empty and not changed.whole:
                more = compare(live, beside, changed.lists)
                if more.differing and not accept:
                    return Recomputed(_records(beside), more, False, was_empty)
            report("switching", _records(beside))
            live.become(beside, time.time_ns() // 1_000_000)
            crash_point("recompute.switching")
        crash_point("recompute.switched")
        return Recomputed(_records(beside), found, True, was_empty)
    finally:
        beside.close()
        live.close()
        remove_beside(path)


def remove_beside(path: Path) -> None:
    """Remove what an attempt left behind."""
    for ending in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{BESIDE}{ending}").unlink(missing_ok=True)


def _beside(
    path: Path, live: SqliteSketchStore, parameters: CountingParameters
) -> SqliteSketchStore:
    remove_beside(path)
    beside = SqliteSketchStore(path.with_name(path.name + BESIDE), parameters)
    beside.adopt(parameters)
    if live.state().parameters.max_values == parameters.max_values:
        beside.keep_values(live.kept_values())
    return beside


def _records(store: SqliteSketchStore) -> int:
    return sum(mark.counted for mark in store.state().marks)


def nothing_is_left(what: str) -> IntegrityError:
    """Return what to say when the log cannot give everything once more."""
    return IntegrityError(
        f"{what}, so the log alone does not give the same answers.",
        "admitone recompute --from-archive",
    )
