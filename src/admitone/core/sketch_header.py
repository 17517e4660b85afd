"""What the heads of all sketches begin with: four letters, and a version."""

from __future__ import annotations

from struct import Struct
from typing import Any

from admitone.core.errors import IntegrityError


def checked_header(data: bytes, layout: Struct, magic: bytes, version: int, what: str) -> list[Any]:
    """Return the fields of a head behind its version; refuse other bytes, and what a newer release wrote."""
    if len(data) < layout.size or data[:4] != magic:
        raise IntegrityError(f"These bytes are no {what}.", "restore the store")
    _, found, *fields = layout.unpack_from(data)
    if found != version:
        raise IntegrityError(
            f"Expected a {what} of version {version}, got version {found}.",
            "use the release that wrote it, or a newer one",
        )
    return fields
