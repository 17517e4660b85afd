"""Answers from the sketches; no Spark, and nothing is written."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from admitone.analytics.folding import is_complete
from admitone.analytics.open import item_rules, open_sketch_reader
from admitone.analytics.port import NOTHING_READ, SketchReader, StoreState
from admitone.core.errors import NotFound
from admitone.core.items import OTHER, ItemRule, list_name
from admitone.core.sketches import WindowSketch
from admitone.core.windows import ALIASES, BEGINNING, END, Window, parse_window
from admitone.results.port import ItemAnswer, TopAnswer, WindowLine
from admitone.settings import Settings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def open_answers(settings: Settings) -> SketchAnswers:
    """Open the answers of a home folder."""
    if not settings.sqlite_path(settings.topk.store).exists():
        raise _nothing_yet()
    return SketchAnswers(open_sketch_reader(settings), item_rules(settings))


class SketchAnswers:
    """`Answers` straight from the store that counts."""

    def __init__(self, reader: SketchReader, rules: Sequence[ItemRule]) -> None:
        self._reader = reader
        self._rules = rules

    def top(
        self, dimension: str, window: str = "1h", where: str | None = None, k: int | None = None
    ) -> TopAnswer:
        """Return the heaviest items of a list."""
        with self._reader.snapshot():
            state = self._state()
            name = self._list(dimension, where)
            chosen = self._window(window)
            sketch = self._sketch(chosen, name, state)
        size = state.parameters.sketch.k if k is None else k
        ranked = sketch.top(size)
        widest = max((entry.upper - entry.lower for entry in ranked), default=0)
        return {
            "window": chosen.key,
            "dimension": dimension,
            "where": where,
            "item_type": next((r.item_type for r in self._rules if r.dimension == dimension), None),
            "k": size,
            "total": sketch.total,
            "distinct": sketch.summary.distinct(),
            "complete": _complete(chosen, state),
            "late": sketch.late,
            "updated_at": _iso(sketch.updated_at) if sketch.updated_at else None,
            "error_bound": _percent(widest, sketch.total),
            "parameters": _parameters(sketch, state),
            "source": _source(state),
            "items": [
                {
                    "rank": entry.rank,
                    "item": entry.item,
                    "estimate": entry.estimate,
                    "lower": entry.lower,
                    "upper": entry.upper,
                }
                for entry in ranked
            ],
        }

    def item(self, item_type: str, key: str, window: str = "1h") -> ItemAnswer:
        """Return one item's estimate with its bounds."""
        with self._reader.snapshot():
            state = self._state()
            return self._item(self._rule(item_type), key, self._window(window), state)

    def history(
        self, item_type: str, key: str, first: str | None, last: str | None = None
    ) -> list[ItemAnswer]:
        """Return one item in every window there is from the first to the last."""
        with self._reader.snapshot():
            state = self._state()
            rule = self._rule(item_type)
            named = [
                self._window(end, must_exist=False) for end in (first, last) if end is not None
            ]
            if len({window.kind for window in named}) != 1:
                raise NotFound(
                    "A history needs windows of one size.", "hour_… to hour_…, for example"
                )
            of_size = [window for window in self._reader.windows() if window.kind == named[0].kind]
            start = named[0].start_ms if first is not None else BEGINNING
            end = named[-1].start_ms if last is not None else END
            return [
                self._item(rule, key, window, state)
                for window in of_size
                if start <= window.start_ms <= end
            ]

    def windows(self) -> list[WindowLine]:
        """Return every window there is."""
        with self._reader.snapshot():
            state = self._state()
            found = self._reader.windows()
        return [
            {
                "window": window.key,
                "kind": window.kind,
                "start": None if window.kind == "global" else _iso(window.start_ms),
                "end": None if window.kind == "global" else _iso(window.end_ms),
                "complete": _complete(window, state),
            }
            for window in found
        ]

    def close(self) -> None:
        """Release the store."""
        self._reader.close()

    def _state(self) -> StoreState:
        state = self._reader.state()
        if state.clock is None:
            raise _nothing_yet()
        return state

    def _item(self, rule: ItemRule, key: str, window: Window, state: StoreState) -> ItemAnswer:
        sketch = self._sketch(window, rule.dimension, state)
        lower, upper = sketch.bounds(key)
        return {
            "window": window.key,
            "dimension": rule.dimension,
            "item_type": rule.item_type,
            "item": key,
            "estimate": upper,
            "lower": lower,
            "upper": upper,
            "total": sketch.total,
            "complete": _complete(window, state),
            "late": sketch.late,
            "updated_at": _iso(sketch.updated_at) if sketch.updated_at else None,
            "error_bound": _percent(upper - lower, sketch.total),
            "parameters": _parameters(sketch, state),
            "source": _source(state),
        }

    def _sketch(self, window: Window, name: str, state: StoreState) -> WindowSketch:
        # A list that is empty in this window is an answer, not an error.
        empty = WindowSketch(state.parameters.of(window.kind))
        return self._reader.sketch(window, name) or empty

    def _rule(self, item_type: str) -> ItemRule:
        for rule in self._rules:
            if rule.item_type == item_type:
                return rule
        known = sorted({rule.item_type for rule in self._rules})
        raise NotFound(f"There is no item type {item_type!r}.", _instead(item_type, known))

    def _list(self, dimension: str, where: str | None) -> str:
        dimensions = sorted({rule.dimension for rule in self._rules})
        if dimension not in dimensions:
            raise NotFound(f"There is no dimension {dimension!r}.", _instead(dimension, dimensions))
        if where is None:
            return dimension
        attribute, _, value = where.partition("=")
        attributes = {
            name: kept
            for (owner, name), kept in self._reader.kept_values().items()
            if owner == dimension
        }
        configured = {a for r in self._rules if r.dimension == dimension for a in r.group_by}
        known = sorted(attributes.keys() | configured)
        if attribute not in known:
            raise NotFound(
                f"{dimension} is not grouped by {attribute!r}.",
                _instead(attribute, known)
                if known
                else f"add group_by to [[items]] of {dimension}",
            )
        kept = attributes.get(attribute)
        values = sorted(kept.values) if kept else []
        if kept and kept.closed:
            values.append(OTHER)
        if value not in values:
            problem = f"{dimension} has no list for {where}."
            if kept and kept.closed:
                problem += f" Values beyond the kept ones are counted under {attribute}={OTHER}."
            raise NotFound(problem, _instead(value, values))
        return list_name(dimension, attribute, value)

    def _window(self, name: str, *, must_exist: bool = True) -> Window:
        found = self._reader.windows()
        if name in ALIASES:
            of_size = [window for window in found if window.kind == ALIASES[name]]
            if not of_size:
                raise NotFound(f"There is no {ALIASES[name]} window.", _ranges(found))
            return of_size[-1]
        try:
            window = parse_window(name)
        except ValueError as error:
            raise NotFound(
                f"{error}.", f"one of {', '.join(ALIASES)}, or {_ranges(found)}"
            ) from error
        if must_exist and window not in found:
            raise NotFound(f"There is no window {name}.", _ranges(found))
        return window


def _nothing_yet() -> NotFound:
    return NotFound("Nothing has been counted yet.", "admitone run")


def _complete(window: Window, state: StoreState) -> bool:
    return state.clock is not None and is_complete(window, state.clock, state.parameters.lateness)


def _percent(width: int, total: int) -> float:
    return round(width / total * 100, 4) if total else 0.0


def _iso(moment_ms: int) -> str | None:
    try:
        moment = _EPOCH + timedelta(milliseconds=moment_ms)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parameters(sketch: WindowSketch, state: StoreState) -> dict[str, Any]:
    return {
        **sketch.parameters._asdict(),
        "saturated": sketch.countmin.saturated,
        "lateness_ms": state.parameters.lateness,
        "max_values": state.parameters.max_values,
    }


def _source(state: StoreState) -> dict[str, Any]:
    topics: dict[str, dict[str, int]] = {}
    for mark in state.marks:
        if mark.offset == NOTHING_READ:
            continue
        topics.setdefault(mark.topic, {})[str(mark.partition)] = mark.offset
    return {"revision": state.revision, "counted_up_to": topics}


def _instead(wanted: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(wanted, known, n=1)
    listed = ", ".join(known) if known else "nothing yet"
    return f"did you mean {nearest[0]!r}? There is {listed}" if nearest else f"there is {listed}"


def _ranges(windows: Iterable[Window]) -> str:
    spans: dict[str, list[str]] = {}
    for window in windows:
        spans.setdefault(window.kind, []).append(window.key)
    texts = [keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}" for keys in spans.values()]
    return f"there is {', '.join(texts) or 'none yet'}"
