"""Where the repository and its package lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


PACKAGE = ROOT / "src/admitone"
