"""Step 1 of the protocol: from a delivery's bytes to an admissible event, or to the reason why not.

Checks run in a fixed order and the first that fails names the reason, so the same bytes always get the same
one. Time is judged by the delivery's append time and by stream time, never by a clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from admitone.core.canonical import Refused, canonical_json, parse
from admitone.core.decisions import Reason
from admitone.core.identity import identity_of, names_of
from admitone.core.moments import milliseconds
from admitone.core.routing import Route
from admitone.core.segment_times import oldest_live
from admitone.core.wire import Header, header_text, said_outside

# Hours and minutes are bounded here: what fromisoformat takes beyond them depends on Python's version.
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
    r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)",
    re.ASCII,
)
_SECONDS_KEPT: Final = 100_000

IsValid = Callable[[Any], bool]


class Event(NamedTuple):
    """An admissible event and everything that is decided from its bytes alone."""

    run_id: str
    event_class: str
    event_id: str
    event_time: int
    identity: bytes
    payload_hash: bytes
    route: int
    business_key: str


class Refusal(NamedTuple):
    """Why a delivery is not admissible, with as much of its identity as could be read."""

    reason: Reason
    run_id: str
    event_class: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class EnvelopeRules:
    """What an envelope must look like; made from the configuration once."""

    run_id: str
    max_event_bytes: int
    future_tolerance_ms: int
    retention_ms: int
    routes: tuple[Route, ...]
    route_of_type: Mapping[str, int]
    schemas: Mapping[str, Mapping[int, IsValid]]
    drifted: frozenset[int] = frozenset()
    """Routes whose topic is not as agreed: nothing is admitted to them (RTE-4)."""


_seconds: dict[str, int] = {}
_FRACTIONS: Final = {f".{number:03}Z": number for number in range(1_000)}


def timestamp_ms(text: object) -> int | None:
    """Return the moment an ISO-8601 timestamp with a zone names, floored to a millisecond."""
    # Most producers write 2025-06-01T05:30:45.123Z, and many events share a second.
    if type(text) is not str:
        return None
    fraction = _FRACTIONS.get(text[19:])
    if fraction is None:
        return _parse_timestamp(text)
    second = _seconds.get(text[:19])
    if second is None:
        second = _parse_timestamp(text[:19] + "Z")
        if second is None:
            return None
        if len(_seconds) >= _SECONDS_KEPT:
            _seconds.clear()
        _seconds[text[:19]] = second
    return second + fraction


def _parse_timestamp(text: str) -> int | None:
    if _TIMESTAMP.fullmatch(text) is None:
        return None
    try:
        return milliseconds(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return None


def read_envelope(  # noqa: PLR0911, PLR0912 - one check after another is how it reads best
    raw: bytes | None,
    headers: Mapping[str, bytes],
    append_time: int,
    stream_time: int | None,
    rules: EnvelopeRules,
    forgotten_before: int | None = None,
) -> Event | Refusal:
    """Return the event a delivery carries, or the refusal it deserves (ADM-1, ADM-11)."""
    fallback_run = run_outside(headers, rules.run_id)
    if raw is None:
        return Refusal(Reason.NOT_JSON, fallback_run)
    if len(raw) > rules.max_event_bytes:
        return Refusal(Reason.PAYLOAD_TOO_LARGE, fallback_run)
    try:
        envelope, plain = parse(raw)
    except Refused as refused:
        return Refusal(refused.reason, fallback_run)
    if type(envelope) is not dict:
        return Refusal(Reason.NOT_AN_ENVELOPE, fallback_run)
    metadata, payload = envelope.get("metadata"), envelope.get("payload")
    if type(metadata) is not dict or type(payload) is not dict:
        return Refusal(Reason.NOT_AN_ENVELOPE, fallback_run)

    event_type: Any = metadata.get("eventType")
    outside = said_outside(headers, rules.run_id) if headers else {Header.RUN_ID: rules.run_id}
    who = run_id, event_class, event_id = names_of(metadata, outside)
    if not (type(run_id) is type(event_class) is type(event_id) is str and all(who)):
        return Refusal(
            Reason.IDENTITY_INVALID,
            run_id if _is_name(run_id) else fallback_run,
            event_class if _is_name(event_class) else None,
            event_id if _is_name(event_id) else None,
        )

    if type(metadata.get("source")) is not str:
        return Refusal(Reason.NOT_AN_ENVELOPE, *who)
    versions = rules.schemas.get(event_type) if type(event_type) is str else None
    route_index = rules.route_of_type.get(event_type) if versions is not None else None
    if versions is None or route_index is None:
        return Refusal(Reason.UNKNOWN_EVENT_TYPE, *who)
    version = metadata.get("schemaVersion")
    is_valid = versions.get(version) if type(version) is int else None
    if is_valid is None:
        return Refusal(Reason.UNKNOWN_SCHEMA_VERSION, *who)
    if not is_valid(payload):
        return Refusal(Reason.SCHEMA_VIOLATION, *who)
    event_time = timestamp_ms(metadata.get("timestamp"))
    if event_time is None:
        return Refusal(Reason.TIMESTAMP_INVALID, *who)
    if event_time > append_time + rules.future_tolerance_ms:
        return Refusal(Reason.TOO_FAR_IN_FUTURE, *who)
    if stream_time is not None and event_time < oldest_live(stream_time, rules.retention_ms):
        return Refusal(Reason.TOO_OLD, *who)
    if forgotten_before is not None and event_time < forgotten_before:
        return Refusal(Reason.TOO_OLD, *who)
    route = rules.routes[route_index]
    business_key = route.business_key(envelope)
    if business_key is None and route.needs_key:
        return Refusal(Reason.NO_PARTITION_FIELD, *who)
    if route_index in rules.drifted:
        # The last of all checks: what is refused for its own sake is so whatever the topics are like.
        return Refusal(Reason.CONTRACT_DRIFT, *who)
    digest = hashlib.sha256(canonical_json(payload, plain)).digest()
    # Half the price of calling it.
    return Event._make(
        (*who, event_time, identity_of(*who), digest, route_index, business_key or "")
    )


def run_outside(headers: Mapping[str, bytes], run_id: str) -> str:
    """Return the run of a delivery whose envelope cannot be read, or need not be."""
    return header_text(headers.get(Header.RUN_ID, b"")) or run_id


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""
