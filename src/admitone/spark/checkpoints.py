"""Checkpoint folders: progress of one query run, never truth.

Every start gets a new, empty folder, because the query begins at the marks in the ledger; what earlier runs
left is removed, so that nothing can be resumed from it by accident.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path


def fresh_checkpoint(folder: Path, query: str) -> Path:
    """Return a new folder for a query and remove its older ones."""
    for old in folder.glob(f"{query}-*"):
        shutil.rmtree(old, ignore_errors=True)
    fresh = folder / f"{query}-{uuid.uuid4().hex}"
    fresh.mkdir(parents=True)
    return fresh
