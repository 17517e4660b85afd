"""Counting everything again into a second store, which then takes the place of the live one (TOP-10).

1. Count into the empty second store, up to where the live one is.
2. Catch up and compare everything, while the pipeline goes on counting into the live store.
3. Hold back all other writers for a moment: catch up, compare what changed meanwhile, and switch.

Readers see the live store as it was until the switch commits; it is one transaction of the live store. An error or a
kill before that leaves the live store untouched, and the next attempt begins anew.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from admitone.analytics import open_sketch_store
from admitone.analytics.port import SketchStore
from admitone.analytics.recompute.comparison import Comparison, compare
from admitone.analytics.recompute.record_sources import RecordSource, Report
from admitone.infra.clock import wall_clock
from admitone.infra.crash_points import crash_point
from admitone.settings import Settings


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What came of it."""

    records: int
    comparison: Comparison
    switched: bool
    was_empty: bool


def recompute(
    settings: Settings, source: RecordSource, *, accept: bool, report: Report
) -> Recomputed:
    """Count everything again, compare, and switch unless something differs that is not accepted."""
    with closing(open_sketch_store(settings, adopt=False)) as live, live.replacement() as fresh:
        was_empty = live.state().clock is None
        if live.state().parameters.max_values == fresh.state().parameters.max_values:
            fresh.keep_values(live.kept_values())
        source.count(fresh, live, source.target(live), report)  # 1
        crash_point("recompute.counted")
        with live.snapshot():  # 2
            before = live.state()
            source.count(fresh, live, source.target(live), report)
            report("comparing", _records(fresh))
            found = Comparison() if was_empty else compare(live, fresh)
        crash_point("recompute.compared")
        if found.differing and not accept:
            return Recomputed(_records(fresh), found, False, was_empty)
        with live.writing():  # 3
            source.count(fresh, live, source.target(live), report)
            changed = live.changes(before.generation, before.revision)
            if not was_empty and not changed.whole:
                more = compare(live, fresh, changed.lists)
                if more.differing and not accept:
                    return Recomputed(_records(fresh), more, False, was_empty)
            report("switching", _records(fresh))
            live.take_over(fresh, wall_clock())
            crash_point("recompute.switching")
        crash_point("recompute.switched")
        return Recomputed(_records(fresh), found, True, was_empty)


def _records(store: SketchStore) -> int:
    return sum(mark.counted for mark in store.state().marks)
