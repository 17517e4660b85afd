"""Who an event is: a hash over an injective encoding of (run, class, event id).

Every field is preceded by its length in characters, so no content of one field can be taken for another's: the triple
("a", "bc", "d") and ("ab", "c", "d") encode differently whatever the letters are.
"""

from __future__ import annotations

import hashlib
from typing import Final

KEY_BYTES: Final = 16
"""The unique key is the first half of the identity; the whole stands in the block's columns."""


def identity_of(run_id: str, event_class: str, event_id: str) -> bytes:
    """Return the canonical identity of an event (ADM-2)."""
    encoded = (
        f"admitone/identity/1\0{len(run_id)}:{run_id}{len(event_class)}:{event_class}"
        f"{len(event_id)}:{event_id}"
    )
    return hashlib.sha256(encoded.encode()).digest()
