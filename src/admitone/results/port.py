"""Answers about heavy hitters, read only: what the command line, the service and the dashboard may
ask.

Counts are integers and lower <= true count <= upper. Every answer says how complete and how fresh
it is.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

# The service describes its answers by these, which typing's own does not allow before Python 3.12.
from typing_extensions import TypedDict

WindowKind = Literal["minute", "hour", "day", "week", "month", "global"]


class ItemLine(TypedDict):
    """One ranked item; lower <= true count <= upper."""

    rank: int
    item: str
    estimate: int
    lower: int
    upper: int


class TopAnswer(TypedDict):
    """The heaviest items of one list in one window."""

    window: str
    dimension: str
    where: str | None
    item_type: str | None
    k: int
    total: int
    distinct: int
    complete: bool
    late: int
    updated_at: str | None
    error_bound: float
    parameters: dict[str, Any]
    source: dict[str, Any]
    items: list[ItemLine]


class ItemAnswer(TypedDict):
    """One item in one window."""

    window: str
    dimension: str
    item_type: str
    item: str
    estimate: int
    lower: int
    upper: int
    total: int
    distinct: int
    complete: bool
    late: int
    updated_at: str | None
    error_bound: float
    parameters: dict[str, Any]
    source: dict[str, Any]


class TrendLine(TypedDict):
    """One item that rose: by `change`, certainly by no less than `lower` and no more than `upper`."""

    rank: int
    item: str
    change: int
    lower: int
    upper: int
    now: int
    before: int


class TrendAnswer(TypedDict):
    """What rose in a list since the window before."""

    window: str
    previous: str
    dimension: str
    where: str | None
    item_type: str | None
    k: int
    total: int
    previous_total: int
    distinct: int
    complete: bool
    previous_complete: bool
    late: int
    updated_at: str | None
    error_bound: float
    parameters: dict[str, Any]
    source: dict[str, Any]
    items: list[TrendLine]


class WindowLine(TypedDict):
    """One window there is; global has neither start nor end."""

    window: str
    kind: WindowKind
    start: str | None
    end: str | None
    complete: bool
    kept_in: str
    """`sketches`, where any item can be asked for, or `history`, where only listed ones are exact."""


class WindowTotals(WindowLine):
    """The same, with what one list amounts to in it."""

    total: int
    distinct: int
    late: int
    updated_at: str | None
    error_bound: float
    parameters: dict[str, Any]


class Answers(Protocol):
    """Answers questions; cannot change what they are about."""

    def top(
        self, dimension: str, window: str = "1h", where: str | None = None, k: int | None = None
    ) -> TopAnswer:
        """Return the heaviest items of a list.

        A window is a key, or one of 1m, 1h, 1d, 1w, 1mo, all: the newest of that size.
        """

    def item(self, item_type: str, key: str, window: str = "1h") -> ItemAnswer:
        """Return one item's estimate with its bounds, listed or not."""

    def history(
        self,
        item_type: str,
        key: str,
        first: str | None,
        last: str | None = None,
        most: int | None = None,
    ) -> list[ItemAnswer]:
        """Return one item in every window there is from the first to the last, both of one size; the newest `most`.

        Without a first it begins with the oldest; without a last it ends with the newest.
        """

    def trend(
        self, dimension: str, window: str = "1h", where: str | None = None, k: int | None = None
    ) -> TrendAnswer:
        """Return what rose in a list since the window before, what certainly rose most first."""

    def windows(self) -> list[WindowLine]:
        """Return every window there is, smallest size first, oldest first."""

    def window_totals(
        self, dimension: str, where: str | None = None, size: str | None = None
    ) -> list[WindowTotals]:
        """Return every window there is, or those of one size, with what a list amounts to in it."""

    def close(self) -> None:
        """Release what is open."""
