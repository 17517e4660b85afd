"""Every page of Markdown: its prose wraps, and what it points at is there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDTH = 120


def pages() -> list[str]:
    """Return every page that is or will be tracked."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [page for page in found.split() if (ROOT / page).exists()]


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines that are no table, picture or code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith(("```", "    ", "|", "![")):
            yield number, line


@pytest.mark.parametrize("page", pages())
def test_prose_wraps_at_120(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [(number, line) for number, line in prose(text) if len(line) > WIDTH] == []
