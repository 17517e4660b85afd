"""Tables and lists as the pages write them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

_WIDTH = 120


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; a bar in a cell does not end it."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def names(listed: Iterable[str]) -> str:
    """Return names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in listed)


def paragraph(text: str) -> str:
    """Return text in one paragraph of lines of the usual length."""
    return textwrap.fill(" ".join(text.split()), _WIDTH, break_on_hyphens=False)
