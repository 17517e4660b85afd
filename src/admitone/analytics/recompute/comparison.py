"""Do two stores say the same? Totals, windows, Count-Min cells and completeness must be identical.

What the summaries list may differ, because their bounds depend on how records were batched: two of them agree when
the true count of every listed item can lie within the bounds of both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from admitone.analytics.port import SketchReader
from admitone.analytics.store_state import StoreState
from admitone.core.sketches import WindowSketch
from admitone.core.windows import Window

_TOLD: Final = 20
_LISTED: Final = 100


@dataclass(slots=True)
class Comparison:
    """What was compared, and what differs: a count, and the first of them in words."""

    lists: int = 0
    windows: int = 0
    items: int = 0
    differing: int = 0
    told: list[str] = field(default_factory=list)

    def differs(self, what: str) -> None:
        """Note one difference."""
        self.differing += 1
        if len(self.told) < _TOLD:
            self.told.append(what)


def compare(
    one: SketchReader, other: SketchReader, chosen: Mapping[str, Collection[Window]] | None = None
) -> Comparison:
    """Compare two stores that have counted up to the same marks; all of them, or chosen windows by list."""
    found = Comparison()
    with one.snapshot(), other.snapshot():
        states = one.state(), other.state()
        if chosen is None:
            chosen = one.changes(-1, -1).lists
            for name in other.changes(-1, -1).lists.keys() - chosen.keys():
                found.differs(f"{name} is only in the second")
        _compare_windows(one, other, states, found)
        for name in sorted(chosen):
            windows = sorted(chosen[name])
            others = dict(other.sketches(windows, name))
            found.lists += 1
            for window, sketch in one.sketches(windows, name):
                found.windows += 1
                _compare_list(f"{window.key} {name}", sketch, others.get(window), states, found)
    return found


def _compare_windows(
    one: SketchReader,
    other: SketchReader,
    states: tuple[StoreState, StoreState],
    found: Comparison,
) -> None:
    first, second = (
        {window: state.is_complete(window) for window in reader.windows()}
        for reader, state in zip((one, other), states, strict=True)
    )
    if states[0].parameters.kinds != states[1].parameters.kinds:
        return
    for window in first.keys() | second.keys():
        if first.get(window) is not second.get(window):
            found.differs(
                f"{window.key} is {_spoken(first.get(window))} and {_spoken(second.get(window))}"
            )


def _compare_list(
    place: str,
    one: WindowSketch,
    other: WindowSketch | None,
    states: tuple[StoreState, StoreState],
    found: Comparison,
) -> None:
    if other is None:
        found.differs(f"{place} is missing in the second")
        return
    same_lateness = states[0].parameters.lateness == states[1].parameters.lateness
    totals = ((one.total, one.late), (other.total, other.late))
    if totals[0] != totals[1] if same_lateness else sum(totals[0]) != sum(totals[1]):
        found.differs(f"{place}: total and late are {totals[0]} and {totals[1]}")
        return
    if not same_lateness:
        return
    shapes = [(s.parameters.width, s.parameters.depth) for s in (one, other)]
    if shapes[0] == shapes[1] and not (one.countmin.cells == other.countmin.cells).all():
        found.differs(f"{place}: Count-Min cells differ")
    for item in {entry.item for sketch in (one, other) for entry in sketch.top(_LISTED)}:
        found.items += 1
        first, second = one.bounds(item), other.bounds(item)
        if max(first.lower, second.lower) > min(first.upper, second.upper):
            found.differs(f"{place}: {item!r} is within {first} and within {second}")


def _spoken(complete: bool | None) -> str:
    return {True: "complete", False: "open", None: "missing"}[complete]
