"""The items of many events at once: a column for each field that a rule names.

Events are parsed one by one, because one that is malformed must not spoil the others; everything after that is done
by the column. What counts as a value is told in `core.items`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.items import MAX_CHARACTERS, ItemRule, field_of, spelled, weighed
from admitone.core.wire import Longs

_TEXT: Final = frozenset({str, type(None)})
_WHOLE: Final = frozenset({int, type(None)})

_AT_ONCE: Final = 128

Payload = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Items:
    """What one rule finds in a batch."""

    rule: int
    rows: Longs
    """The events that have an item."""
    keys: pa.StringArray
    values: tuple[pa.StringArray, ...]
    """For each attribute the rule groups by; null where an event has none."""
    weights: Longs

    def take(self, chosen: npt.NDArray[np.bool_]) -> Items:
        """Return some of them."""
        if chosen.all():
            return self
        mask = pa.array(chosen)
        return Items(
            self.rule,
            self.rows[chosen],
            self.keys.filter(mask),
            tuple(values.filter(mask) for values in self.values),
            self.weights[chosen],
        )


class ItemReader:
    """Applies all rules to a batch of events."""

    def __init__(self, rules: Sequence[ItemRule]) -> None:
        self._rules: dict[str, list[tuple[int, ItemRule]]] = {}
        for number, rule in enumerate(rules):
            self._rules.setdefault(rule.event_type, []).append((number, rule))

    def read(self, events: Sequence[bytes]) -> tuple[npt.NDArray[np.bool_], list[Items]]:
        """Return which events were understood, and what was found in them."""
        understood = np.zeros(len(events), np.bool_)
        columns: dict[str, _Columns] = {}
        # A few at a time: what was parsed is used while it is still in the processor's cache.
        for first in range(0, len(events), _AT_ONCE):
            payloads = self._sort_out(events[first : first + _AT_ONCE], first, understood)
            for event_type, (rows, found) in payloads.items():
                if event_type not in columns:
                    columns[event_type] = _Columns(self._rules[event_type])
                columns[event_type].add(rows, found)
        return understood, [items for column in columns.values() for items in column.items()]

    def _sort_out(
        self, events: Sequence[bytes], first: int, understood: npt.NDArray[np.bool_]
    ) -> dict[str, tuple[list[int], list[Payload]]]:
        """Return the rows and payloads of each event type that has a rule, and note what can be read."""
        found: dict[str, tuple[list[int], list[Payload]]] = {}
        rules = self._rules
        for row, envelope in enumerate(_parsed(events), first):
            try:
                event_type, payload = envelope["metadata"]["eventType"], envelope["payload"]
                if event_type not in rules:
                    understood[row] = True
                    continue
            except (KeyError, TypeError):
                continue
            if type(payload) is dict:
                place = found.get(event_type)
                if place is None:
                    place = found[event_type] = ([], [])
                place[0].append(row)
                place[1].append(payload)
        for rows, _ in found.values():
            understood[rows] = True
        return found


class _Columns:
    """The raw values of every field that the rules of one event type name."""

    def __init__(self, rules: Sequence[tuple[int, ItemRule]]) -> None:
        self._rules = rules
        self._rows: list[int] = []
        names = {
            name
            for _, rule in rules
            for name in (rule.item, *rule.group_by, *([rule.weight] if rule.weight else []))
        }
        self._fields = {name: field_of(name) for name in names}
        self._values: dict[str, list[Any]] = {name: [] for name in names}

    def add(self, rows: Sequence[int], payloads: Sequence[Payload]) -> None:
        self._rows += rows
        for name, field in self._fields.items():
            self._values[name] += map(field, payloads)

    def items(self) -> Iterator[Items]:
        rows = np.array(self._rows, np.int64)
        for number, rule in self._rules:
            keys = texts(self._values[rule.item])
            values = tuple(texts(self._values[attribute]) for attribute in rule.group_by)
            if rule.weight is None:
                weights = np.ones(len(rows), np.int64)
            else:
                weights = np.array([weighed(w) for w in self._values[rule.weight]], np.int64)
            found = Items(number, rows, keys, values, weights)
            yield found.take(np.asarray(keys.is_valid()))


def texts(values: Sequence[Any]) -> pa.StringArray:
    """Return values as the texts they are counted under, null where there is nothing to count."""
    kinds = set(map(type, values))
    try:
        if kinds <= _TEXT:
            found = pa.array(values, pa.string())
            if (pc.max(pc.utf8_length(found)).as_py() or 0) <= MAX_CHARACTERS:
                return pc.if_else(pc.equal(found, ""), None, found)
        elif kinds <= _WHOLE:
            return pa.array(values, pa.int64()).cast(pa.string())
    except OverflowError:
        pass
    return pa.array([spelled(value) for value in values], pa.string())


def _parsed(events: Sequence[bytes]) -> Iterator[Any]:
    try:
        return iter([orjson.loads(event) for event in events])
    except orjson.JSONDecodeError:
        return map(_parsed_or_none, events)


def _parsed_or_none(event: bytes | None) -> Any:
    try:
        return orjson.loads(event or b"")
    except orjson.JSONDecodeError:
        return None
