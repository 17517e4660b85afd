"""Evidence that the ledger does not know is set aside, never deleted: it may be a ledger that was restored.

set-aside/<path>                    what was under that path
set-aside/<path>~<hash of bytes>    the same, where other bytes of that path were set aside before
"""

from __future__ import annotations

import hashlib
from typing import Final

from admitone.core.errors import NotFound
from admitone.evidence.evidence_store import EvidenceStore

SET_ASIDE: Final = "set-aside"
_RUNS: Final = "runs"


def set_aside(store: EvidenceStore, path: str) -> str | None:
    """Move an object out of the way; return where it is now, None where there is none."""
    data = _bytes(store, path)
    if data is None:
        return None
    place = f"{SET_ASIDE}/{path}"
    if _bytes(store, place) not in (None, data):
        place += f"~{hashlib.sha256(data).hexdigest()[:16]}"
    # Durable there before it goes from here: an interruption in between leaves it twice.
    store.write(place, data)
    store.delete(path)
    return place


def write_beside(store: EvidenceStore, path: str, data: bytes) -> str | None:
    """Write an object; set aside what was under its path with other bytes, and return where that is now."""
    found = _bytes(store, path)
    place = set_aside(store, path) if found not in (None, data) else None
    store.write(path, data)
    return place


def every_file(store: EvidenceStore) -> list[str]:
    """Return the paths of all evidence of runs, also of what was set aside."""
    return store.list(_RUNS) + store.list(f"{SET_ASIDE}/{_RUNS}")


def _bytes(store: EvidenceStore, path: str) -> bytes | None:
    try:
        return store.read(path)
    except NotFound:
        return None
