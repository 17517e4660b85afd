"""What producers of a history send: events of a few names, as bytes and as the checker knows them."""

from __future__ import annotations

from typing import Any, Final

import orjson

from admitone.core.envelope import timestamp_ms
from admitone.core.moments import iso
from admitone.simulation.observed import Event

RUNS: Final = ("r", "s")
REFUSED: Final = 413
"""The payload of events that the broker refuses to take on an admitted topic."""


def event_of(run: str, name: str, payload: int, moment: int) -> bytes:
    """Return an event as a producer writes it."""
    metadata = {
        "eventId": name, "eventType": "page_view", "source": "shop", "timestamp": iso(moment),
        "partitionKey": name, "schemaVersion": 1, "runId": run,
    }  # fmt: skip
    return orjson.dumps({"metadata": metadata, "payload": {"url": "/a", "loadTimeMs": payload}})


def read_event(value: bytes | None) -> Event | None:
    """Return what a delivery or a record says; None where it is no event."""
    try:
        envelope: dict[str, Any] = orjson.loads(value or b"")
        metadata = envelope["metadata"]
        moment = timestamp_ms(metadata["timestamp"])
        assert moment is not None
        return Event(
            metadata["runId"], metadata["eventId"], orjson.dumps(envelope["payload"]), moment
        )
    except (orjson.JSONDecodeError, KeyError):
        return None


def is_refused(value: bytes | None) -> bool:
    """Tell whether the broker refuses a record."""
    return value is not None and b'"loadTimeMs":%d' % REFUSED in value
