"""In what two envelopes differ, as JSON pointers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NotRequired

import orjson
from typing_extensions import TypedDict

_ABSENT: Final = object()
_MOST: Final = 200


class Change(TypedDict):
    """One place where two envelopes differ; what one of them does not have is left out."""

    path: str
    kind: Literal["added", "removed", "changed"]
    first: NotRequired[Any]
    delivered: NotRequired[Any]


def difference(first: str | None, delivered: str | None) -> list[Change] | None:
    """Return the places where two envelopes differ; None where one of them is missing or no JSON."""
    try:
        before, after = (orjson.loads(text) for text in (first or "", delivered or ""))
    except orjson.JSONDecodeError:
        return None
    return [change for change, _ in zip(_changes("", before, after), range(_MOST), strict=False)]


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            here = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
            yield from _changes(here, before.get(name, _ABSENT), after.get(name, _ABSENT))
    elif isinstance(before, list) and isinstance(after, list):
        for number in range(max(len(before), len(after))):
            pair = (side[number] if number < len(side) else _ABSENT for side in (before, after))
            yield from _changes(f"{path}/{number}", *pair)
    elif type(before) is not type(after) or before != after:
        if before is _ABSENT:
            yield {"path": path, "kind": "added", "delivered": after}
        elif after is _ABSENT:
            yield {"path": path, "kind": "removed", "first": before}
        else:
            yield {"path": path, "kind": "changed", "first": before, "delivered": after}
