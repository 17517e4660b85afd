"""What is known about a list in a window: from the sketches while they are kept, from the history afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from admitone.analytics.port import SketchReader
from admitone.core.items import ItemRule, split_list
from admitone.core.sketches import RankedItem, WindowSketch
from admitone.core.summary import Bounds
from admitone.core.windows import Window
from admitone.results.port import ListResult


@dataclass(frozen=True, slots=True)
class FromSketches:
    """What the sketches know."""

    window: Window
    name: str
    sketch: WindowSketch
    context: ViewContext

    def result(self, k: int | None = None) -> ListResult:
        """Return the heaviest items, as many as are usual or as many as wanted."""
        state, sketch = self.context.state, self.sketch
        ranked, unlisted = sketch.ranking(state.parameters.sketch.k if k is None else k)
        return ListResult(
            window=self.window,
            name=self.name,
            item_type=self.context.item_type(self.name),
            total=sketch.total,
            late=sketch.late,
            distinct=sketch.summary.distinct(),
            complete=state.is_complete(self.window),
            updated_at=sketch.updated_at,
            error_bound=error_bound(ranked, sketch.total),
            unlisted_upper=unlisted,
            parameters={
                "width": sketch.parameters.width,
                "depth": sketch.parameters.depth,
                "counter_bits": sketch.parameters.counter_bits,
                "k": state.parameters.sketch.k,
                "saturated": sketch.countmin.saturated,
                "lateness_ms": state.parameters.lateness,
                "max_values": state.parameters.max_values,
                "rules": self.context.rules_of(self.window),
            },
            items=tuple(ranked),
            fence=self.context.fence,
        )

    def bounds(self, item: str) -> Bounds:
        """Return lower <= true count <= upper, for any item."""
        return self.sketch.bounds(item)


@dataclass(frozen=True, slots=True)
class FromHistory:
    """What the history knows: the items that were listed, and a bound for all others."""

    written: ListResult

    def result(self, k: int | None = None) -> ListResult:
        """Return the heaviest items that were listed."""
        return replace(self.written, items=self.written.items[:k])

    def bounds(self, item: str) -> Bounds:
        """Return lower <= true count <= upper, for any item."""
        for entry in self.written.items:
            if entry.item == item:
                return Bounds(entry.lower, entry.upper)
        return Bounds(0, self.written.unlisted_upper)


ListView = FromSketches | FromHistory
"""Answers about one list in one window."""


class ViewContext:
    """A store that sketches are read from, its state, and the rules they were counted by."""

    def __init__(self, reader: SketchReader, rules: Sequence[ItemRule]) -> None:
        self._reader = reader
        self.state = reader.state()
        self.fence = "" if self.state.point is None else self.state.point.fence
        self._rules_of = cache(reader.rules_of)
        self._types = {rule.dimension: rule.item_type for rule in reversed(rules)}

    def item_type(self, name: str) -> str | None:
        """Return what kind of items a list has."""
        return self._types.get(split_list(name)[0])

    def rules_of(self, window: Window) -> list[str]:
        """Return the hashes of the rules that a window was counted under."""
        return self._rules_of(window)

    def known(self, windows: Iterable[Window], name: str) -> Iterator[FromSketches]:
        """Yield what the sketches know about a list in some windows; empty ones are left out."""
        for window, sketch in self._reader.sketches(windows, name):
            yield FromSketches(window, name, sketch, self)

    def nothing(self, window: Window, name: str) -> FromSketches:
        """Return what is known about a list that is empty in a window."""
        return FromSketches(window, name, WindowSketch(self.state.parameters.of(window.kind)), self)


def error_bound(items: Iterable[RankedItem], total: int) -> float:
    """Return how wide the bounds of some items are at most, in percent of the total."""
    return percent(max((entry.upper - entry.lower for entry in items), default=0), total)


def percent(width: int, total: int) -> float:
    """Return a share of the total in percent."""
    return round(width / total * 100, 4) if total else 0.0
