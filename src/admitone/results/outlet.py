"""What is handed to those who keep answers for others to read, and what every one of them guarantees.

- *Absolute values.* A list is replaced as a whole, never added to, so writing it again changes nothing.
- *Fenced.* Every value carries the point of the store it was read at; an older one never replaces a newer one,
  however long its writer was asleep.
- *Atomic.* A reader sees a list of one point, never half of two.
- *Disposable.* Everything can be made again from the sketches: one that was emptied says so and is filled again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from admitone.core.sketches import RankedItem
from admitone.core.windows import Window


class Point(NamedTuple):
    """How far the sketches' store had come."""

    generation: int
    """Which life of the store: when it was made, or replaced by a recomputation."""
    revision: int
    frontier: int
    """Stream time of the slowest active source partition."""
    newest: int
    """Stream time of the fastest one."""

    @property
    def fence(self) -> str:
        """Return a text that is greater for every later point."""
        return f"{self.generation:016d}-{self.revision:012d}"


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
    parameters: dict[str, Any]
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
    """Keeps answers for others to read."""

    label: str
    interval_ms: int
    """How often it is written to, at most."""
    wants_items: bool

    def reached(self) -> Point | None:
        """Return the point up to which everything was written; None where nothing, or no longer, is there."""

    def wants(self, window: Window, complete: bool, now: Point) -> bool:
        """Tell whether a window belongs here."""

    def write(self, lists: Sequence[ListResult], items: Sequence[ItemResult]) -> None:
        """Replace lists and items that are older."""

    def finish(self, now: Point, rebuilt: Collection[Window]) -> bool:
        """Note that everything up to a point is written; of rebuilt windows nothing older is left.

        False when it was emptied since `reached` was asked: then something is missing, and it must be asked again.
        """

    def close(self) -> None:
        """Release what is open."""
