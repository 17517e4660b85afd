"""What pages of the documentation say about the code, made from the code, and about campaigns, from their last runs.

In a page, everything between `<!-- made: NAME -->` and `<!-- end -->` is made by the function of that name.
`make docs` writes it, and `tests/docs/test_reference.py` compares it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from scripts.reference import campaigns, commands, configuration, decisions, http, python, topics

DOCS: Final = Path(__file__).parents[2] / "docs"
PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "verdicts": decisions.verdicts,
    "reasons": decisions.reasons,
    "states of a block": decisions.states,
    "judgements": decisions.judgements,
    "families": topics.families,
    "hash vectors": topics.hash_vectors,
    "configuration": configuration.sections,
    "commands": commands.commands,
    "exit codes": commands.exit_codes,
    "python": python.surface,
    "endpoints": http.endpoints,
    "metrics": http.metrics,
    "campaign results": campaigns.results,
    "campaigns not run": campaigns.not_run,
}
PART: Final = re.compile(r"(<!-- made: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the pages that have a part made from the code."""
    return [page for page in sorted(DOCS.rglob("*.md")) if PART.search(page.read_text("utf-8"))]


def made(page: str) -> str:
    """Return a page with its parts as the code is now."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[3]}", page)
