"""Step 1 of the protocol: from a delivery's bytes to an admissible event, or to the reason why not.

Checks run in a fixed order and the first that fails names the reason, so the same bytes always get the same
one. Time is judged by the delivery's append time and by stream time, never by a clock.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from admitone.core.canonical import Refused, canonical_json, parse_strict
from admitone.core.decisions import Reason
from admitone.core.identity import identity_of
from admitone.core.routing import Route
from admitone.core.segments import oldest_live

_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

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


def timestamp_ms(text: object) -> int | None:
    """Return the moment an ISO-8601 timestamp with a zone names, floored to a millisecond."""
    if not isinstance(text, str) or _TIMESTAMP.fullmatch(text) is None:
        return None
    try:
        return (datetime.fromisoformat(text) - _EPOCH) // _MILLISECOND
    except (ValueError, OverflowError):
        return None


def read_envelope(  # noqa: PLR0911, PLR0912 - one check after another is how it reads best
    raw: bytes | None,
    headers: Mapping[str, bytes],
    append_time: int,
    stream_time: int | None,
    rules: EnvelopeRules,
) -> Event | Refusal:
    """Return the event a delivery carries, or the refusal it deserves (ADM-1, ADM-11)."""
    run_id = _header_text(headers, "runId") or rules.run_id
    if raw is None:
        return Refusal(Reason.NOT_JSON, run_id)
    if len(raw) > rules.max_event_bytes:
        return Refusal(Reason.PAYLOAD_TOO_LARGE, run_id)
    try:
        envelope = parse_strict(raw)
    except Refused as refused:
        return Refusal(refused.reason, run_id)
    if not isinstance(envelope, dict):
        return Refusal(Reason.NOT_AN_ENVELOPE, run_id)
    metadata, payload = envelope.get("metadata"), envelope.get("payload")
    if not isinstance(metadata, dict) or not isinstance(payload, dict):
        return Refusal(Reason.NOT_AN_ENVELOPE, run_id)

    event_type = metadata.get("eventType")
    event_id: Any = metadata.get("eventId")
    run_id = _chosen(metadata, headers, "runId", run_id)
    event_class = _chosen(metadata, headers, "eventClass", event_type)
    if not (_is_name(run_id) and _is_name(event_class) and _is_name(event_id)):
        return Refusal(
            Reason.IDENTITY_INVALID,
            run_id if _is_name(run_id) else _header_text(headers, "runId") or rules.run_id,
            event_class if _is_name(event_class) else None,
            event_id if _is_name(event_id) else None,
        )

    def refuse(reason: Reason) -> Refusal:
        return Refusal(reason, run_id, event_class, event_id)

    if not isinstance(metadata.get("source"), str):
        return refuse(Reason.NOT_AN_ENVELOPE)
    versions = rules.schemas.get(event_type) if isinstance(event_type, str) else None
    route_index = rules.route_of_type.get(event_type) if isinstance(event_type, str) else None
    if versions is None or route_index is None:
        return refuse(Reason.UNKNOWN_EVENT_TYPE)
    version = metadata.get("schemaVersion")
    is_valid = versions.get(version) if type(version) is int else None
    if is_valid is None:
        return refuse(Reason.UNKNOWN_SCHEMA_VERSION)
    if not is_valid(payload):
        return refuse(Reason.SCHEMA_VIOLATION)
    event_time = timestamp_ms(metadata.get("timestamp"))
    if event_time is None:
        return refuse(Reason.TIMESTAMP_INVALID)
    if event_time > append_time + rules.future_tolerance_ms:
        return refuse(Reason.TOO_FAR_IN_FUTURE)
    if stream_time is not None and event_time < oldest_live(stream_time, rules.retention_ms):
        return refuse(Reason.TOO_OLD)
    business_key = rules.routes[route_index].business_key(envelope)
    if business_key is None:
        return refuse(Reason.NO_PARTITION_FIELD)
    return Event(
        run_id,
        event_class,
        event_id,
        event_time,
        identity_of(run_id, event_class, event_id),
        hashlib.sha256(canonical_json(payload)).digest(),
        route_index,
        business_key,
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _chosen(metadata: dict[str, Any], headers: Mapping[str, bytes], name: str, default: Any) -> Any:
    """Return the metadata's value, the header's, or the default; a present but wrong one is kept wrong."""
    if name in metadata:
        return metadata[name]
    if name in headers:
        return _header_text(headers, name)
    return default


def _header_text(headers: Mapping[str, bytes], name: str) -> str | None:
    value = headers.get(name)
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
