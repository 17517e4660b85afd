"""From an event to the items it is counted under (TOP-2, TOP-3).

A rule names the payload field whose value is the item, and the attributes its lists are grouped
by. One event feeds the list of the dimension and one grouped list for each attribute it carries:

    page_view {"url": "/shoes", "deviceType": "mobile"}
        -> url                      /shoes  weight 1
        -> url|deviceType=mobile    /shoes  weight 1

What counts as a value: a non-empty string as it is, a number as JSON spells it, `true` or `false`.
Anything else (absent, null, empty, a list, an object) is no value: no item without its field, no
grouped list without its attribute. A weight that is absent or no positive integer counts as 1; one
above 2**31 - 1 counts as that much, so that sums stay inside 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

import xxhash

OTHER: Final = "*other"
"""The value under which everything beyond the kept values of an attribute is counted."""

MAX_WEIGHT: Final = (1 << 31) - 1
MAX_CHARACTERS: Final = 512


@dataclass(frozen=True, slots=True)
class ItemRule:
    """How one event type becomes a countable item."""

    event_type: str
    dimension: str
    item: str
    item_type: str
    group_by: tuple[str, ...] = ()
    weight: str | None = None


def list_name(dimension: str, attribute: str, value: str) -> str:
    """Return the name of a grouped list."""
    return f"{dimension}|{attribute}={value}"


def split_list(name: str) -> tuple[str, str | None, str | None]:
    """Return dimension, attribute and value of a list; an ungrouped one has only the first."""
    dimension, bar, grouped = name.partition("|")
    if not bar:
        return dimension, None, None
    attribute, _, value = grouped.partition("=")
    return dimension, attribute, value


def spelled(value: Any) -> str | None:
    """Return a value as the text it is counted under, or None when there is nothing to count."""
    if isinstance(value, str):
        if len(value) <= MAX_CHARACTERS:
            return value or None
        return _shortened(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return None


def weighed(value: Any) -> int:
    """Return how much an item counts."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return min(value, MAX_WEIGHT)
    return 1


def _shortened(value: str) -> str:
    # A summary keeps its items in memory, so a megabyte of text must not become one.
    return f"{value[: MAX_CHARACTERS - 18]}…#{xxhash.xxh3_64_hexdigest(value.encode())}"


def field_of(path: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return the function that finds a field in a payload; dots lead deeper."""
    if "." not in path:
        return methodcaller("get", path)
    parts = path.split(".")

    def walk(payload: Mapping[str, Any]) -> Any:
        found: Any = payload
        for part in parts:
            if not isinstance(found, Mapping):
                return None
            found = found.get(part)
        return found

    return walk
