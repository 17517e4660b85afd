"""Who an event is: a hash over an injective encoding of (run, class, event id).

Every field is preceded by its length in characters, so no content of one field can be taken for another's: the triple
("a", "bc", "d") and ("ab", "c", "d") encode differently whatever the letters are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from admitone.core.wire import Header

KEY_BYTES: Final = 16
"""The unique key is the first half of the identity; the whole stands in the block's columns."""


def names_of(
    metadata: Mapping[str, Any], outside: Mapping[str, str | None]
) -> tuple[Any, Any, Any]:
    """Return run, class and event id of an envelope; what its metadata leaves out, headers or settings say.

    What is present but wrong stays wrong; a class that is said nowhere is the event's type.
    """
    return (
        metadata.get(Header.RUN_ID, outside.get(Header.RUN_ID)),
        metadata.get(
            Header.EVENT_CLASS, outside.get(Header.EVENT_CLASS, metadata.get("eventType"))
        ),
        metadata.get("eventId"),
    )


def identity_of(run_id: str, event_class: str, event_id: str) -> bytes:
    """Return the canonical identity of an event (ADM-2)."""
    encoded = (
        f"admitone/identity/1\0{len(run_id)}:{run_id}{len(event_class)}:{event_class}"
        f"{len(event_id)}:{event_id}"
    )
    return hashlib.sha256(encoded.encode()).digest()
