"""Every page of Markdown: its prose wraps, and what it points at is there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.repository import PACKAGE, ROOT

WIDTH = 120
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
FILE = re.compile(
    r"`([\w.*/-]+/[\w.*-]+\.(?:py|js|md|sh|toml|svg)|(?:src|tests|docs|scripts)/[\w/]*)`"
)
HISTORY = "CHANGELOG.md"


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


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [
        link for link in LINK.findall(text) if not (ROOT / page).parent.joinpath(link).exists()
    ] == []


@pytest.mark.parametrize("page", [page for page in pages() if page != HISTORY])
def test_every_file_of_the_project_that_is_named_is_there(page: str) -> None:
    """A name is that of a file below the root of the project or below the package."""
    named = FILE.findall((ROOT / page).read_text(encoding="utf-8"))
    assert [name for name in named if not any(any(top.glob(name)) for top in (ROOT, PACKAGE))] == []
