"""Checkpoint folders: progress of one query run, never truth.

Every start gets a new, empty folder, because the query begins at the marks in the ledger; what earlier runs
left is removed, so that nothing can be resumed from it by accident.

Only deduplication on engine state keeps its folder: what it remembers is nowhere else.
"""

from __future__ import annotations

import hashlib
import shutil
import uuid
from pathlib import Path

import orjson
from typing_extensions import TypedDict

from admitone.settings import Settings
from admitone.transport.port import Topic

_FIGURES = "figures.json"


def fresh_checkpoint(folder: Path, query: str) -> Path:
    """Return a new folder for a query and remove its older ones."""
    for old in folder.glob(f"{query}-*"):
        shutil.rmtree(old, ignore_errors=True)
    fresh = folder / f"{query}-{uuid.uuid4().hex}"
    fresh.mkdir(parents=True)
    return fresh


def batch_ends(checkpoint: Path, batch_id: int) -> dict[str, dict[int, int]]:
    """Return the next offset after a batch, by topic as its source names it, and partition.

    Spark notes it before it runs the batch. Nothing is known where an operator deleted the folder meanwhile.
    """
    try:
        noted = (checkpoint / "offsets" / str(batch_id)).read_bytes()
    except FileNotFoundError:
        return {}
    return {
        topic: {int(number): end for number, end in ends.items()}
        for topic, ends in orjson.loads(noted.splitlines()[-1]).items()
    }


def state_checkpoint(settings: Settings, topic: Topic) -> Path:
    """Return the folder of the dedup pipeline on engine state for one incarnation of its source."""
    # A topic's id may hold a slash.
    incarnation = hashlib.sha256(topic.topic_id.encode()).hexdigest()[:16]
    return settings.resolve(settings.spark.checkpoints) / f"deduplicate-{incarnation}"


def committed_ends(checkpoint: Path) -> dict[str, dict[int, int]] | None:
    """Return the next offset after the last batch that is done; None where no query ever began."""
    if not checkpoint.exists():
        return None
    done = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
    return batch_ends(checkpoint, max(done)) if done else {}


def write_figures(checkpoint: Path, figures: dict[str, int]) -> None:
    """Leave what a query says about itself where others find it."""
    fresh = checkpoint / f"{_FIGURES}.new"
    fresh.write_bytes(orjson.dumps(figures))
    fresh.replace(checkpoint / _FIGURES)


class StateFigures(TypedDict, total=False):
    """What engine state says about itself, once it ran (DED-9)."""

    kept: int
    late: int
    rows: int
    bytes_in_memory: int
    bytes_on_disk: int
    dropped_duplicates: int
    dropped_late: int
    evicted: int
    eviction_ms: int
    commit_ms: int
    bytes_copied: int


def read_figures(checkpoint: Path) -> StateFigures:
    """Return what a query said last about itself."""
    try:
        figures: StateFigures = orjson.loads((checkpoint / _FIGURES).read_bytes())
    except FileNotFoundError:
        return {}
    return figures
