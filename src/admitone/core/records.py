"""Step 1 of a dedup pipeline: from a record's bytes to its key and its time, or to the reason why not.

Who a record is, is its key and nothing else: no run, no class, no payload. So its payload hash is its identity again,
and a record with a known key is a duplicate whatever else it carries. Two payloads that contradict each other are
the admission boundary's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from admitone.core.canonical import Refused, parse_strict
from admitone.core.decisions import Reason
from admitone.core.envelope import Event, Refusal, timestamp_ms
from admitone.core.keys import KeyRule, KeyStrategy, value_at
from admitone.core.routing import Route
from admitone.core.segment_times import oldest_live
from admitone.core.wire import said_outside

_IDENTITY: Final = "identity@"
_FARTHEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, where ISO-8601 ends too."""


@dataclass(frozen=True, slots=True)
class RecordRules:
    """What a record of a dedup pipeline must look like; made from the configuration once."""

    run_id: str
    """The run its decisions are kept under; it is no part of a key."""
    key: KeyRule
    default_run: str
    """The run of envelopes that name none, where the key is their canonical identity."""
    time_field: str
    """Where a record says its time; empty where the log's own counts."""
    max_event_bytes: int
    future_tolerance_ms: int
    retention_ms: int
    routes: tuple[Route, ...]
    drifted: frozenset[int] = frozenset()
    """Routes whose topic is not as agreed: nothing is admitted to them (RTE-4)."""

    @property
    def label(self) -> str:
        """Return what keys are made by, as it stands in the place of an event class: enough to make them again."""
        return _label(self.key, self.default_run)


def labelled(label: str) -> tuple[KeyRule, str]:
    """Return the rule and the default run behind a label, or raise `ValueError`."""
    if label.startswith(_IDENTITY):
        return KeyRule(KeyStrategy.IDENTITY), label.removeprefix(_IDENTITY)
    return KeyRule.from_label(label), ""


@cache
def _label(key: KeyRule, default_run: str) -> str:
    return _IDENTITY + default_run if key.strategy is KeyStrategy.IDENTITY else key.label


def read_record(  # noqa: PLR0911 - one check after another is how it reads best
    raw: bytes | None,
    headers: Mapping[str, bytes],
    append_time: int,
    stream_time: int | None,
    rules: RecordRules,
    forgotten_before: int | None = None,
) -> Event | Refusal:
    """Return the key and the time of a record, or the refusal it deserves (DED-3, DED-5)."""
    who = (rules.run_id, rules.label)
    if raw is None:
        return Refusal(Reason.NOT_JSON, *who)
    if len(raw) > rules.max_event_bytes:
        return Refusal(Reason.PAYLOAD_TOO_LARGE, *who)
    try:
        document = parse_strict(raw)
    except Refused as refused:
        return Refusal(refused.reason, *who)
    key = rules.key.key_of(document, said_outside(headers, rules.default_run))
    if isinstance(key, Reason):
        return Refusal(key, *who)
    event_time = moment_of(document, rules.time_field) if rules.time_field else append_time
    if event_time is None:
        return Refusal(Reason.TIMESTAMP_INVALID, *who, key.text)
    if event_time > append_time + rules.future_tolerance_ms:
        return Refusal(Reason.TOO_FAR_IN_FUTURE, *who, key.text)
    oldest = None if stream_time is None else oldest_live(stream_time, rules.retention_ms)
    if any(edge is not None and event_time < edge for edge in (oldest, forgotten_before)):
        return Refusal(Reason.TOO_OLD, *who, key.text)
    if rules.drifted:
        return Refusal(Reason.CONTRACT_DRIFT, *who, key.text)
    return Event(*who, key.text, event_time, key.identity, key.identity, 0, "")


def moment_of(document: Any, field: str) -> int | None:
    """Return the moment a field names: an ISO-8601 timestamp with a zone, or whole milliseconds since 1970."""
    value = value_at(document, tuple(field.split(".")))
    if type(value) is int:
        return value if abs(value) <= _FARTHEST_MS else None
    return timestamp_ms(value)
