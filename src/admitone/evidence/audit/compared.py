"""What `verify` says of one thing it compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Comparison:
    """One thing that was compared, and how it differs."""

    what: str
    compared: str
    differences: list[str]
