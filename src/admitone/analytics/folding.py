"""How a batch of minute deltas becomes windows, inside one store transaction.

A minute is *open* until the slowest active source partition has passed its end + lateness; then it
is folded upward, once. At its turn a minute is one of:

    stays open   the delta is merged into the minute; nothing else moves
    closes       the minute with its delta goes up
    is folded    the delta is merged into the minute, and the delta goes up
    is not kept  older than the retention: the delta goes up, the minute itself is gone

What goes up is summed before stored windows are touched: minutes to hours, hours to days, days to
weeks and months, months to global. So a batch costs one merge per minute and list, and one per
stored window and list. `late` is part of a sketch and travels with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from admitone.analytics.port import Delta
from admitone.analytics.store_state import Clock, CountingParameters
from admitone.core.sketches import Meta, SketchBytes, WindowSketch
from admitone.core.windows import Window, window_of

_ABOVE = {
    "hour": ("day",),
    "day": ("week", "month"),
    "week": (),
    "month": ("global",),
    "global": (),
}


class SketchRows(Protocol):
    """The stored sketches as one transaction sees them; `Folding` reads each at most once, then writes it."""

    def get(self, window: str, dimension_list: str) -> SketchBytes | None:
        """Return the stored parts."""

    def put(self, window: str, dimension_list: str, parts: SketchBytes) -> None:
        """Replace the stored parts."""

    def meta(self, window: str, dimension_list: str) -> bytes | None:
        """Return the stored totals only."""

    def put_meta(self, window: str, dimension_list: str, meta: bytes) -> None:
        """Replace the stored totals only."""

    def lists_in(self, window: str) -> list[str]:
        """Return the lists stored for a window."""


class Folding:
    """Adds one batch to the windows."""

    def __init__(
        self,
        rows: SketchRows,
        parameters: CountingParameters,
        clock: Clock,
        minutes: Mapping[int, bool],
    ) -> None:
        self._rows = rows
        self._parameters = parameters
        self._clock = clock
        self.folded_before = minutes
        self.minutes: dict[int, bool] = dict(minutes)
        """Every kept minute, and whether it is folded."""
        self.raised: set[Window] = set()
        """The windows above that were written."""

    def apply(self, deltas: Iterable[Delta]) -> None:
        """Merge the deltas into their minutes and fold what became complete."""
        by_list: dict[str, dict[int, list[SketchBytes]]] = defaultdict(lambda: defaultdict(list))
        for delta in deltas:
            by_list[delta.dimension_list][delta.minute].append(delta.parts)
            self.minutes.setdefault(delta.minute, False)
        for minute, folded in self.minutes.items():
            if not folded and self._is_over(_minute(minute)):
                self.minutes[minute] = True
                if minute in self.folded_before:
                    for name in self._rows.lists_in(_minute(minute).key):
                        by_list[name].setdefault(minute, [])
        for name, minutes in by_list.items():
            self._apply_list(name, minutes)
        for minute in list(self.minutes):
            if not self._keeps(_minute(minute)):
                del self.minutes[minute]

    def _is_over(self, window: Window) -> bool:
        return self._clock.completes(window, self._parameters.lateness) or not self._keeps(window)

    def _keeps(self, window: Window) -> bool:
        return self._clock.keeps(window, self._parameters)

    def _apply_list(self, name: str, minutes: Mapping[int, list[SketchBytes]]) -> None:
        hours: dict[Window, WindowSketch] = {}
        for minute, added in minutes.items():
            rising = self._merge_minute(name, minute, added)
            if rising is not None:
                self._gather(hours, window_of("hour", minute), rising)
        self._raise(name, hours)

    def _merge_minute(
        self, name: str, minute: int, added: list[SketchBytes]
    ) -> WindowSketch | None:
        """Store the minute's new content and return what goes up from it."""
        window = _minute(minute)
        folded = self.folded_before.get(minute)
        stored = None if folded is None else self._rows.get(window.key, name)
        if not self.minutes[minute] and stored is None and len(added) == 1:
            self._rows.put(window.key, name, added[0])
            return None
        delta = _merged(added)
        if stored is None:
            whole = delta
        else:
            whole = WindowSketch.from_bytes(stored)
            if delta is not None:
                whole.merge(delta)
        if whole is not None and delta is not None and self._keeps(window):
            as_it_came = whole is delta and len(added) == 1
            self._rows.put(window.key, name, added[0] if as_it_came else whole.to_bytes())
        if not self.minutes[minute]:
            return None
        return delta if folded else whole

    def _gather(
        self, sums: dict[Window, WindowSketch], window: Window, sketch: WindowSketch
    ) -> None:
        # Sums have wide counters whatever they are sums for, so that no counter stops on the way.
        if window not in sums:
            sums[window] = WindowSketch(self._parameters.sketch.widened())
        sums[window].merge(sketch)

    def _raise(self, name: str, sums: dict[Window, WindowSketch]) -> None:
        above: dict[Window, WindowSketch] = {}
        for window, sketch in sums.items():
            for kind in _ABOVE[window.kind]:
                self._gather(above, window_of(kind, window.start_ms), sketch)
            if window.kind in self._parameters.kinds and self._keeps(window):
                self._add(window, name, sketch)
        if above:
            self._raise(name, above)

    def _add(self, window: Window, name: str, sketch: WindowSketch) -> None:
        self.raised.add(window)
        if sketch.total == 0 and self._add_late(window, name, sketch):
            return
        stored = self._rows.get(window.key, name)
        if stored is None:
            whole = WindowSketch(self._parameters.of(window.kind))
        else:
            whole = WindowSketch.from_bytes(stored)
        whole.merge(sketch)
        self._rows.put(window.key, name, whole.to_bytes())

    def _add_late(self, window: Window, name: str, sketch: WindowSketch) -> bool:
        stored = self._rows.meta(window.key, name)
        if stored is None:
            return False
        meta = Meta.from_bytes(stored)
        changed = meta._replace(late=meta.late + sketch.late, updated_at=sketch.updated_at)
        self._rows.put_meta(window.key, name, changed.to_bytes())
        return True


def _minute(minute: int) -> Window:
    return window_of("minute", minute)


def _merged(parts: list[SketchBytes]) -> WindowSketch | None:
    if not parts:
        return None
    merged = WindowSketch.from_bytes(parts[0])
    for more in parts[1:]:
        merged.merge(WindowSketch.from_bytes(more))
    return merged
