"""Answers as documents, the same for the command line, the service and the dashboard.

Counts are integers and lower <= true count <= upper. Every answer says how complete and how fresh it is.
"""

from __future__ import annotations

from typing import Literal, NotRequired, cast

# The service describes its answers by these types, which typing's own does not allow before Python 3.12.
from typing_extensions import TypedDict

from admitone.analytics.port import NOTHING_READ
from admitone.analytics.store_state import StoreState, revision_of
from admitone.core.items import ItemRule
from admitone.core.moments import iso
from admitone.core.windows import Window
from admitone.results.list_view import ListView, percent
from admitone.results.port import CountedUnder, ListResult

SKETCHES, HISTORY = "sketches", "history"
WindowKind = Literal["minute", "hour", "day", "week", "month", "global"]


class AnswerSource(TypedDict):
    """Where an answer comes from, and how far the log was counted then, by topic and partition."""

    kept_in: str
    revision: int
    counted_up_to: NotRequired[dict[str, dict[str, int]]]
    instead_of: NotRequired[str]
    """What did not answer."""


class ListTotals(TypedDict):
    """What a list amounts to in a window."""

    total: int
    distinct: int
    complete: bool
    late: int
    updated_at: str | None
    error_bound: float
    parameters: CountedUnder


class ItemLine(TypedDict):
    """One ranked item; lower <= true count <= upper."""

    rank: int
    item: str
    estimate: int
    lower: int
    upper: int


class _ListAnswer(ListTotals):
    window: str
    dimension: str
    where: str | None
    item_type: str | None
    k: int
    source: AnswerSource


class TopAnswer(_ListAnswer):
    """The heaviest items of one list in one window."""

    items: list[ItemLine]


class ItemAnswer(ListTotals):
    """One item in one window."""

    window: str
    dimension: str
    item_type: str
    item: str
    estimate: int
    lower: int
    upper: int
    source: AnswerSource


class TrendLine(TypedDict):
    """One item that rose: by `change`, certainly by no less than `lower` and no more than `upper`."""

    rank: int
    item: str
    change: int
    lower: int
    upper: int
    now: int
    before: int


class TrendAnswer(_ListAnswer):
    """What rose in a list since the window before."""

    previous: str
    previous_total: int
    previous_complete: bool
    items: list[TrendLine]


class _WindowPlace(TypedDict):
    window: str
    kind: WindowKind
    start: str | None
    end: str | None
    kept_in: str
    """`sketches`, where any item can be asked for, or `history`, where only listed ones are exact."""


class WindowLine(_WindowPlace):
    """One window there is; global has neither start nor end."""

    complete: bool


class WindowTotals(_WindowPlace, ListTotals):
    """One window there is, with what one list amounts to in it."""


class DimensionLine(TypedDict):
    """A list there is, and the attribute values that have lists of their own."""

    dimension: str
    item_type: str
    attributes: dict[str, list[str]]


class ItemHistory(TypedDict):
    """One item in every window of a range."""

    windows: list[ItemAnswer]


class WindowLines(TypedDict):
    """Windows, smallest size first, oldest first."""

    windows: list[WindowLine]


class TotalsOfList(TypedDict):
    """The same, with what one list amounts to in each."""

    dimension: str
    where: str | None
    windows: list[WindowTotals]


def top_answer(
    result: ListResult, dimension: str, where: str | None, k: int, source: AnswerSource
) -> TopAnswer:
    """Return the heaviest items of a list."""
    items = [cast(ItemLine, entry._asdict()) for entry in result.items]
    return {**_list_answer(result, dimension, where, k, source), "items": items}


def item_answer(known: ListView, rule: ItemRule, key: str, source: AnswerSource) -> ItemAnswer:
    """Return one item in one window."""
    result = known.result(0)
    lower, upper = known.bounds(key)
    return {
        "window": result.window.key,
        "dimension": rule.dimension,
        "item_type": rule.item_type,
        "item": key,
        "estimate": upper,
        "lower": lower,
        "upper": upper,
        **_totals(result),
        "error_bound": percent(upper - lower, result.total),
        "source": source,
    }


def trend_answer(
    now: ListView,
    before: ListView,
    dimension: str,
    where: str | None,
    k: int,
    source: AnswerSource,
) -> TrendAnswer:
    """Return what rose between two windows; what is not listed now cannot have risen most."""
    result, previous = now.result(), before.result(0)
    lines: list[TrendLine] = []
    for entry in result.items:
        lower, upper = before.bounds(entry.item)
        if entry.estimate > upper:
            lines.append(
                {
                    "rank": 0,
                    "item": entry.item,
                    "change": entry.estimate - upper,
                    "lower": entry.lower - upper,
                    "upper": entry.upper - lower,
                    "now": entry.estimate,
                    "before": upper,
                }
            )
    lines.sort(key=lambda line: (-line["lower"], -line["change"], line["item"]))
    lines = lines[:k]
    for rank, line in enumerate(lines, 1):
        line["rank"] = rank
    widest = max((line["upper"] - line["lower"] for line in lines), default=0)
    return {
        **_list_answer(result, dimension, where, k, source),
        "error_bound": percent(widest, result.total),
        "previous": previous.window.key,
        "previous_total": previous.total,
        "previous_complete": previous.complete,
        "items": lines,
    }


def window_line(window: Window, complete: bool, kept_in: str) -> WindowLine:
    """Return one window there is."""
    spans = window.kind != "global"
    return {
        "window": window.key,
        "kind": cast(WindowKind, window.kind),
        "start": iso(window.start_ms) if spans else None,
        "end": iso(window.end_ms) if spans else None,
        "complete": complete,
        "kept_in": kept_in,
    }


def window_totals(result: ListResult, kept_in: str) -> WindowTotals:
    """Return one window with what a list amounts to in it."""
    return {**window_line(result.window, result.complete, kept_in), **_totals(result)}


def live_source(state: StoreState) -> AnswerSource:
    """Return how far the log was counted when an answer was given."""
    topics: dict[str, dict[str, int]] = {}
    for mark in state.marks:
        if mark.offset != NOTHING_READ:
            topics.setdefault(mark.topic, {})[str(mark.partition)] = mark.offset
    return {"kept_in": SKETCHES, "revision": state.revision, "counted_up_to": topics}


def past_source(result: ListResult) -> AnswerSource:
    """Return the revision at which the history was last told about a list."""
    return {"kept_in": HISTORY, "revision": revision_of(result.fence)}


def _list_answer(
    result: ListResult, dimension: str, where: str | None, k: int, source: AnswerSource
) -> _ListAnswer:
    return {
        "window": result.window.key,
        "dimension": dimension,
        "where": where,
        "item_type": result.item_type,
        "k": k,
        **_totals(result),
        "source": source,
    }


def _totals(result: ListResult) -> ListTotals:
    return {
        "total": result.total,
        "distinct": result.distinct,
        "complete": result.complete,
        "late": result.late,
        "updated_at": iso(result.updated_at or None),
        "error_bound": result.error_bound,
        "parameters": result.parameters,
    }
