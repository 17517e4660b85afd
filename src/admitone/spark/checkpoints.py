"""Checkpoint folders: progress of one query run, never truth.

Every start gets a new, empty folder, because the query begins at the marks in the ledger; what earlier runs
left is removed, so that nothing can be resumed from it by accident.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import orjson


def fresh_checkpoint(folder: Path, query: str) -> Path:
    """Return a new folder for a query and remove its older ones."""
    for old in folder.glob(f"{query}-*"):
        shutil.rmtree(old, ignore_errors=True)
    fresh = folder / f"{query}-{uuid.uuid4().hex}"
    fresh.mkdir(parents=True)
    return fresh


def batch_ends(checkpoint: Path, batch_id: int) -> dict[str, dict[int, int]]:
    """Return the next offset after a batch, by topic as its source names it, and partition.

    Spark notes it before it runs the batch. Nothing is known where somebody deleted the folder meanwhile.
    """
    try:
        noted = (checkpoint / "offsets" / str(batch_id)).read_bytes()
    except FileNotFoundError:
        return {}
    return {
        topic: {int(number): end for number, end in ends.items()}
        for topic, ends in orjson.loads(noted.splitlines()[-1]).items()
    }
