"""What pages say about the code is what the code is: `make docs` writes it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.reference import DOCS, PART, PARTS, made, pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_says_what_the_code_says(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == made(text)


def test_every_part_that_can_be_made_has_one_place() -> None:
    placed = [part[2] for page in pages() for part in PART.finditer(page.read_text("utf-8"))]
    assert sorted(placed) == sorted(PARTS)


def test_a_page_that_says_something_else_is_noticed() -> None:
    page = "before\n<!-- made: verdicts -->\n\n`ADMITTED`\n\n<!-- end -->\nbehind\n"
    assert made(page) != page
    assert made(made(page)) == made(page)
    assert made(page).startswith("before\n")
    assert made(page).endswith("behind\n")
