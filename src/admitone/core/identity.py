"""Who an event is: a hash over an injective encoding of (run, class, event id).

Every field is preceded by its length, so no content of one field can be taken for another's: the triple
("a", "bc", "d") and ("ab", "c", "d") encode differently whatever the letters are.
"""

from __future__ import annotations

import hashlib
from typing import Final

IDENTITY_BYTES: Final = 32
KEY_BYTES: Final = 16
"""The unique key is the first half of the identity; the whole stands in the block's columns."""

_DOMAIN: Final = b"admitone/identity/1\x00"


def identity_of(run_id: str, event_class: str, event_id: str) -> bytes:
    """Return the canonical identity of an event (ADM-2)."""
    run, kind, event = run_id.encode(), event_class.encode(), event_id.encode()
    return hashlib.sha256(
        b"%s%d:%s%d:%s%d:%s" % (_DOMAIN, len(run), run, len(kind), kind, len(event), event)
    ).digest()
