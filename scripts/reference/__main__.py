"""Writes what pages of the documentation say about the code and about campaigns: `make docs`, `make report`."""

from __future__ import annotations

import sys

from scripts.reference import made, pages

for page in pages():
    if not sys.argv[1:] or page.name in sys.argv[1:]:
        page.write_text(made(page.read_text("utf-8")), "utf-8")
