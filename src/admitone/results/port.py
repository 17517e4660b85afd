"""What outlets (Redis, the history in PostgreSQL) are given to keep for other programs, and what each guarantees.

- *Absolute values.* A list is replaced as a whole, never added to, so writing it again changes nothing.
- *Fenced.* Every value carries the point of the store it was read at; an older one never replaces a newer one,
  however long its writer was suspended.
- *Atomic.* A reader sees a list of one point, never half of two.
- *Disposable.* Everything can be made again from the sketches: an outlet that was emptied says so and is filled again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from typing_extensions import TypedDict

from admitone.analytics.store_state import Point
from admitone.core.sketches import RankedItem
from admitone.core.windows import Window


class CountedUnder(TypedDict):
    """Under which parameters a list was counted in a window, and whether a counter reached its end."""

    width: int
    depth: int
    counter_bits: int
    k: int
    saturated: bool
    lateness_ms: int
    max_values: int
    rules: list[str]
    """The hashes of the rules it was counted under; empty where an older version counted it."""


def counted_under(kept: dict[str, Any]) -> CountedUnder:
    """Return the parameters that an outlet kept; those that an older version wrote name no rules."""
    return cast(CountedUnder, {"rules": [], **kept})


@dataclass(frozen=True, slots=True)
class ListResult:
    """What is known about one list in one window."""

    window: Window
    name: str
    item_type: str | None
    total: int
    late: int
    distinct: int
    complete: bool
    updated_at: int
    error_bound: float
    """In percent of the total: the widest of the listed items."""
    unlisted_upper: int
    """No item that is not listed was counted more often."""
    parameters: CountedUnder
    items: tuple[RankedItem, ...]
    fence: str


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What is known about one item over all time."""

    item_type: str
    key: str
    dimension: str
    estimate: int
    lower: int
    upper: int
    first_seen: int | None
    last_seen: int | None
    fence: str


class Outlet(Protocol):
    """Keeps answers where other programs read them."""

    label: str
    interval_ms: int
    """How often it is written to, at most."""
    wants_items: bool

    def reached(self) -> Point | None:
        """Return the point up to which everything was written; None where nothing, or no longer, is there."""

    def wants(self, window: Window, complete: bool, now: Point) -> bool:
        """Tell whether a window is kept here, and is to be written now."""

    def write(self, lists: Sequence[ListResult], items: Sequence[ItemResult]) -> None:
        """Replace lists and items that are older."""

    def finish(self, now: Point, rebuilt: Collection[Window]) -> bool:
        """Note that everything up to a point is written; of rebuilt windows nothing older is left.

        False when it was emptied since `reached` was asked: then something is missing, and it must be asked again.
        """

    def close(self) -> None:
        """Release what is open."""
