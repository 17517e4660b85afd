"""Lists in pages: a page ends with the id to go on after, which stays good whatever is added meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any


def page(rows: Iterable[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Return the first rows, and the cursor that goes on after them where there are more."""
    found = list(islice(rows, limit + 1))
    more = len(found) > limit
    return found[:limit], found[limit - 1]["id"] if more else None
