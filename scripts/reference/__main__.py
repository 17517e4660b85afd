"""Writes what pages of the documentation say about the code: `make docs`."""

from __future__ import annotations

from scripts.reference import made, pages

for page in pages():
    page.write_text(made(page.read_text("utf-8")), "utf-8")
