"""How the ledger's values are spelled in PostgreSQL, where text cannot hold every string."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import astuple
from uuid import UUID

from psycopg.types.json import Jsonb

from admitone.ledger.model import Destination

_ESCAPED = re.compile(r"\\(.)")


def stored_name(name: str) -> str:
    r"""Return a name as it is stored: a NUL, which no text can hold, becomes \0 and a backslash two."""
    return name.replace("\\", "\\\\").replace("\0", "\\0")


def loaded_name(text: str) -> str:
    """Return the name that was stored."""
    if "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], text)


def key_of_run(run_id: str) -> UUID:
    """Return the key of a run, whose name may be too long for an index."""
    return UUID(bytes=hashlib.sha256(run_id.encode()).digest()[:16])


def stored_destinations(destinations: Iterable[Destination]) -> Jsonb:
    """Return destinations as they are stored."""
    return Jsonb([astuple(destination) for destination in destinations])


def stored_runs(runs: dict[str, int]) -> Jsonb:
    """Return how many deliveries of each run there are, as it is stored."""
    return Jsonb({stored_name(run): deliveries for run, deliveries in runs.items()})


def loaded_runs(runs: dict[str, int]) -> dict[str, int]:
    """Return how many deliveries of each run were stored."""
    return {loaded_name(run): deliveries for run, deliveries in runs.items()}
