"""Answers about heavy hitters: from the sketches, and from the history where the sketches are gone.

No Spark is needed, and nothing is written.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from admitone.analytics.port import NOTHING_KEPT, SketchReader
from admitone.core.errors import NotFound
from admitone.core.items import OTHER, ItemRule, list_name
from admitone.core.windows import ALIASES, BEGINNING, END, KINDS, Window, parse_window
from admitone.results.documents import (
    HISTORY,
    SKETCHES,
    AnswerSource,
    DimensionLine,
    ItemAnswer,
    ItemHistory,
    TopAnswer,
    TotalsOfList,
    TrendAnswer,
    WindowLine,
    WindowLines,
    item_answer,
    live_source,
    past_source,
    top_answer,
    trend_answer,
    window_line,
    window_totals,
)
from admitone.results.list_view import FromHistory, ListView, ViewContext

if TYPE_CHECKING:
    from admitone.results.history import HistoryReader


class Answers:
    """Answers questions from the store that counts and the history beyond what it keeps; cannot change them."""

    def __init__(
        self,
        reader: SketchReader,
        rules: Sequence[ItemRule],
        history: HistoryReader | None = None,
    ) -> None:
        self._reader = reader
        self._rules = rules
        self._history = history

    def top(
        self, dimension: str, window: str = "1h", where: str | None = None, k: int | None = None
    ) -> TopAnswer:
        """Return the heaviest items of a list.

        A window is a key, or one of 1m, 1h, 1d, 1w, 1mo, all: the newest of that size.
        """
        with self._reader.snapshot():
            question = self._question()
            known = question.known(question.window(window), self._list(dimension, where))
        size = question.usual_k if k is None else k
        return top_answer(known.result(size), dimension, where, size, question.source_of(known))

    def item(self, item_type: str, key: str, window: str = "1h") -> ItemAnswer:
        """Return one item's estimate with its bounds, listed or not."""
        with self._reader.snapshot():
            question, rule = self._question(), self._rule(item_type)
            known = question.known(question.window(window), rule.dimension)
        return item_answer(known, rule, key, question.source_of(known))

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
        with self._reader.snapshot():
            question, rule = self._question(), self._rule(item_type)
            named = [
                question.window(end, must_exist=False) for end in (first, last) if end is not None
            ]
            if len({window.kind for window in named}) != 1:
                raise NotFound(
                    "A history needs windows of one size.", "hour_… to hour_…, for example"
                )
            start = named[0].start_ms if first is not None else BEGINNING
            end = named[-1].start_ms if last is not None else END
            windows = [
                window
                for window in question.windows(named[0].kind)
                if start <= window.start_ms <= end
            ]
            newest = windows if most is None else windows[-most:]
            return [
                item_answer(known, rule, key, question.source_of(known))
                for known in question.known_in(newest, rule.dimension)
            ]

    def item_or_history(
        self,
        item_type: str,
        key: str,
        window: str,
        first: str | None,
        last: str | None,
        most: int | None = None,
    ) -> ItemAnswer | ItemHistory:
        """Return one item in one window or, where either end is named, in every window of a range."""
        if first is None and last is None:
            return self.item(item_type, key, window)
        return {"windows": self.history(item_type, key, first, last, most)}

    def trend(
        self, dimension: str, window: str = "1h", where: str | None = None, k: int | None = None
    ) -> TrendAnswer:
        """Return what rose in a list since the window before, what certainly rose most first."""
        with self._reader.snapshot():
            question, name = self._question(), self._list(dimension, where)
            chosen = question.window(window)
            previous = chosen.previous()
            if previous is None:
                raise NotFound(f"Nothing comes before {chosen.key}.", "--window 1h, for example")
            now = question.known(chosen, name)
            before = question.known(question.there_or_empty(previous), name)
        size = question.usual_k if k is None else k
        return trend_answer(now, before, dimension, where, size, question.source_of(now))

    def windows(
        self,
        dimension: str | None = None,
        where: str | None = None,
        size: str | None = None,
        most: int | None = None,
    ) -> WindowLines | TotalsOfList:
        """Return every window there is, or those of one size, with what a list amounts to where one is named.

        Smallest size first, oldest first; of each size the newest `most`.
        """
        if size is not None and size not in ALIASES:
            raise NotFound(f"{size!r} is no size.", f"one of {', '.join(ALIASES)}")
        kinds = KINDS if size is None else (ALIASES[size],)
        with self._reader.snapshot():
            question = self._question()
            windows = [
                window for kind in kinds for window in question.windows(kind)[-(most or 0) :]
            ]
            if dimension is None:
                return {"windows": [question.line(window) for window in windows]}
            name = self._list(dimension, where)
            totals = [
                window_totals(known.result(), question.source_of(known)["kept_in"])
                for known in question.known_in(windows, name)
            ]
        return {"dimension": dimension, "where": where, "windows": totals}

    def dimensions(self) -> list[DimensionLine]:
        """Return every dimension there is, and the values that have a list of their own so far."""
        kept, found = self._reader.kept_values(), dict[str, DimensionLine]()
        for rule in self._rules:
            line: DimensionLine = {
                "dimension": rule.dimension,
                "item_type": rule.item_type,
                "attributes": {},
            }
            attributes = found.setdefault(rule.dimension, line)["attributes"]
            for attribute in rule.group_by:
                attributes[attribute] = kept.get((rule.dimension, attribute), NOTHING_KEPT).listed
        return list(found.values())

    def close(self) -> None:
        """Release the stores."""
        self._reader.close()
        if self._history is not None:
            self._history.close()

    def _question(self) -> _Question:
        return _Question(self._reader, self._rules, self._history)

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
            add = f"add group_by to [[items]] of {dimension}"
            remedy = _instead(attribute, known) if known else add
            raise NotFound(f"{dimension} is not grouped by {attribute!r}.", remedy)
        kept = attributes.get(attribute, NOTHING_KEPT)
        if value not in kept.listed:
            problem = f"{dimension} has no list for {where}."
            if kept.closed:
                problem += f" Values beyond the kept ones are counted under {attribute}={OTHER}."
            raise NotFound(problem, _instead(value, kept.listed))
        return list_name(dimension, attribute, value)


class _Question:
    """What one question sees: the store at one revision, and the history beyond it."""

    def __init__(
        self, reader: SketchReader, rules: Sequence[ItemRule], history: HistoryReader | None
    ) -> None:
        self._context = ViewContext(reader, rules)
        self.state = self._context.state
        if self.state.clock is None:
            raise NotFound("Nothing has been counted yet.", "admitone run")
        self.usual_k = self.state.parameters.sketch.k
        self._history = history
        self._present = set(reader.windows())

    def window(self, name: str, *, must_exist: bool = True) -> Window:
        """Return the window a name stands for: a key, or the newest of a size."""
        if name in ALIASES:
            of_size = sorted(window for window in self._present if window.kind == ALIASES[name])
            if not of_size:
                raise NotFound(f"There is no {ALIASES[name]} window.", self._what_there_is())
            return of_size[-1]
        try:
            window = parse_window(name)
        except ValueError as error:
            raise NotFound(
                f"{error}.", f"one of {', '.join(ALIASES)}, or {self._what_there_is()}"
            ) from error
        if must_exist and window not in self._present and window not in self._past:
            raise NotFound(f"There is no window {name}.", self._what_there_is())
        return window

    def there_or_empty(self, window: Window) -> Window:
        """Return a window that may be empty, unless what was in it is not kept any more."""
        if not self.state.is_kept(window) and window not in self._past:
            raise NotFound(f"{window.key} is no longer kept.", self._what_there_is())
        return window

    def windows(self, kind: str | None = None) -> list[Window]:
        """Return every window there is, smallest size first, oldest first."""
        found = (w for w in self._present | self._past.keys() if kind in (None, w.kind))
        return sorted(found, key=lambda w: (KINDS.index(w.kind), w.start_ms))

    def line(self, window: Window) -> WindowLine:
        """Return a window there is, whether it is complete, and where it is kept."""
        if window in self._present:
            return window_line(window, self.state.is_complete(window), SKETCHES)
        return window_line(window, self._past[window], HISTORY)

    def known(self, window: Window, name: str) -> ListView:
        """Return what is known about a list in a window."""
        return next(iter(self.known_in([window], name)))

    def known_in(self, windows: Sequence[Window], name: str) -> Iterator[ListView]:
        """Yield what is known about a list in each window; one that is empty is an answer, too."""
        present = [window for window in windows if window in self._present]
        found = {known.window: known for known in self._context.known(present, name)}
        for window in windows:
            yield found.get(window) or self._elsewhere(window, name)

    def source_of(self, known: ListView) -> AnswerSource:
        """Return where an answer comes from."""
        if isinstance(known, FromHistory):
            return past_source(known.result(0))
        return live_source(self.state)

    def _elsewhere(self, window: Window, name: str) -> ListView:
        nothing = self._context.nothing(window, name)
        if window in self._present or self._history is None:
            return nothing
        complete = self._past.get(window, False)
        empty = replace(nothing.result(), complete=complete, fence="")
        return FromHistory(self._history.result(window, name) or empty)

    @cached_property
    def _past(self) -> dict[Window, bool]:
        """Return every window of the history, and whether it is complete."""
        return {} if self._history is None else self._history.windows()

    def _what_there_is(self) -> str:
        spans: dict[str, list[str]] = {}
        for window in self.windows():
            spans.setdefault(window.kind, []).append(window.key)
        texts = [
            keys[0] if len(keys) == 1 else f"{keys[0]} to {keys[-1]}" for keys in spans.values()
        ]
        return f"there is {', '.join(texts) or 'none yet'}"


def _instead(wanted: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(wanted, known, n=1)
    listed = ", ".join(known) if known else "nothing yet"
    return f"did you mean {nearest[0]!r}? There is {listed}" if nearest else f"there is {listed}"
