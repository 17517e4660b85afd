"""Answers as the documents that everybody gets: the command line, the service, the dashboard."""

from __future__ import annotations

from typing import Any, cast

from admitone.analytics.known import Known, percent
from admitone.analytics.port import NOTHING_READ, StoreState
from admitone.core.items import ItemRule
from admitone.core.moments import iso
from admitone.core.windows import Window
from admitone.results.outlet import ListResult
from admitone.results.port import (
    ItemAnswer,
    TopAnswer,
    TrendAnswer,
    TrendLine,
    WindowKind,
    WindowLine,
    WindowTotals,
)

SKETCHES, HISTORY = "sketches", "history"


def top_answer(
    result: ListResult, dimension: str, where: str | None, k: int, source: dict[str, Any]
) -> TopAnswer:
    """Return the heaviest items of a list."""
    return {
        "window": result.window.key,
        "dimension": dimension,
        "where": where,
        "item_type": result.item_type,
        "k": k,
        "total": result.total,
        "distinct": result.distinct,
        "complete": result.complete,
        "late": result.late,
        "updated_at": _updated(result),
        "error_bound": result.error_bound,
        "parameters": result.parameters,
        "source": source,
        "items": [
            {
                "rank": entry.rank,
                "item": entry.item,
                "estimate": entry.estimate,
                "lower": entry.lower,
                "upper": entry.upper,
            }
            for entry in result.items
        ],
    }


def item_answer(known: Known, rule: ItemRule, key: str, source: dict[str, Any]) -> ItemAnswer:
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
        "total": result.total,
        "distinct": result.distinct,
        "complete": result.complete,
        "late": result.late,
        "updated_at": _updated(result),
        "error_bound": percent(upper - lower, result.total),
        "parameters": result.parameters,
        "source": source,
    }


def trend_answer(
    now: Known, before: Known, dimension: str, where: str | None, k: int, source: dict[str, Any]
) -> TrendAnswer:
    """Return what rose between two windows; what is not listed now cannot have risen most."""
    result, previous = now.result(), before.result(0)
    lines: list[TrendLine] = []
    for entry in result.items:
        lower, upper = before.bounds(entry.item)
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
    lines = [line for line in lines if line["change"] > 0]
    lines.sort(key=lambda line: (-line["lower"], -line["change"], line["item"]))
    lines = lines[:k]
    for rank, line in enumerate(lines, 1):
        line["rank"] = rank
    widest = max((line["upper"] - line["lower"] for line in lines), default=0)
    return {
        "window": result.window.key,
        "previous": previous.window.key,
        "dimension": dimension,
        "where": where,
        "item_type": result.item_type,
        "k": k,
        "total": result.total,
        "previous_total": previous.total,
        "distinct": result.distinct,
        "complete": result.complete,
        "previous_complete": previous.complete,
        "late": result.late,
        "updated_at": _updated(result),
        "error_bound": percent(widest, result.total),
        "parameters": result.parameters,
        "source": source,
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
    return {
        **window_line(result.window, result.complete, kept_in),
        "total": result.total,
        "distinct": result.distinct,
        "late": result.late,
        "updated_at": _updated(result),
        "error_bound": result.error_bound,
        "parameters": result.parameters,
    }


def live_source(state: StoreState) -> dict[str, Any]:
    """Return how far the log was counted when an answer was given."""
    topics: dict[str, dict[str, int]] = {}
    for mark in state.marks:
        if mark.offset != NOTHING_READ:
            topics.setdefault(mark.topic, {})[str(mark.partition)] = mark.offset
    return {"kept_in": SKETCHES, "revision": state.revision, "counted_up_to": topics}


def past_source(result: ListResult) -> dict[str, Any]:
    """Return the revision at which the history was last told about a list."""
    return {"kept_in": HISTORY, "revision": int(result.fence.rpartition("-")[2] or 0)}


def _updated(result: ListResult) -> str | None:
    return iso(result.updated_at) if result.updated_at else None
