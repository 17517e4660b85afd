"""Deliveries that break exactly one rule, and the reason each must be refused for."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import NamedTuple

from admitone.demo.traffic.spelling import compact

DAY_MS = 86_400_000
TOO_LARGE_BYTES = 900_000

# In the order in which they are tried; of the first ones nobody can be sure of the event id.
NAMELESS_REASONS = (
    "PAYLOAD_TOO_LARGE",
    "INVALID_UNICODE",
    "NOT_JSON",
    "DUPLICATE_KEY",
    "TOO_DEEP",
    "NUMBER_NOT_REPRESENTABLE",
    "NOT_AN_ENVELOPE",
    "IDENTITY_INVALID",
)
NAMED_REASONS = (
    "UNKNOWN_EVENT_TYPE",
    "UNKNOWN_SCHEMA_VERSION",
    "SCHEMA_VIOLATION",
    "TIMESTAMP_INVALID",
    "TOO_FAR_IN_FUTURE",
    "TOO_OLD",
    "NO_PARTITION_FIELD",
)
MALFORMED_REASONS = NAMELESS_REASONS + NAMED_REASONS


class Sound(NamedTuple):
    """A good event that nobody has seen, about to be spoiled."""

    line: str
    item_field: str
    newest_ms: int
    dice: Random


def spoil(sound: Sound, reason: str) -> bytes:
    """Return the event's line, broken so that it is refused for this reason and no other."""
    return _SPOILERS[reason](sound)


def iso(timestamp_ms: int) -> str:
    """Return the moment as ISO-8601 with milliseconds, in UTC."""
    seconds, rest = divmod(timestamp_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


def _not_json(sound: Sound) -> bytes:
    line = sound.line
    match sound.dice.randrange(5):
        case 0:
            # Cut the text, not the bytes: half a character would be another reason.
            broken = line[: sound.dice.randrange(20, len(line) - 1)]
        case 1:
            return _with_reading(line, sound.dice.choice(["NaN", "Infinity", "-Infinity"]))
        case 2:
            broken = line.replace('"source":"', '"source":"' + sound.dice.choice("\x01\t\x1f"), 1)
        case 3:
            broken = line[:-1] + ",}"
        case _:
            broken = f"user {sound.dice.randrange(10**9)} viewed a page"
    return broken.encode()


def _invalid_unicode(sound: Sound) -> bytes:
    match sound.dice.randrange(3):
        case 0:
            raw = sound.dice.choice([b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82"])
            return _with_reading(sound.line, '"@"').replace(b'"@"', b'"' + raw + b'"', 1)
        case 1:
            return _with_reading(sound.line, '"\\ud83d alone"')
        case _:
            return _with_reading(sound.line, '{"\\udc00":1}')


def _duplicate_key(sound: Sound) -> bytes:
    line, field = sound.line, sound.item_field
    match sound.dice.randrange(4):
        case 0:
            broken = line.replace('"payload":{', f'"payload":{{"{field}":"first",', 1)
        case 1:
            escaped = f"\\u{ord(field[0]):04x}{field[1:]}"
            broken = line.replace('"payload":{', f'"payload":{{"{escaped}":"first",', 1)
        case 2:
            broken = line.replace('"schemaVersion":1', '"schemaVersion":1,"schemaVersion":1', 1)
        case _:
            return _with_reading(line, '{"a":1,"a":1}')
    return broken.encode()


def _too_deep(sound: Sound) -> bytes:
    depth = sound.dice.randrange(200, 400)
    opening, closing = sound.dice.choice([("[", "]"), ('{"a":', "}")])
    return _with_reading(sound.line, f"{opening * depth}1{closing * depth}")


def _number_not_representable(sound: Sound) -> bytes:
    numbers = ["9007199254740993", "-9007199254740993", "1e400", "0.1000000000000000055511"]
    return _with_reading(sound.line, sound.dice.choice(numbers))


def _not_an_envelope(sound: Sound) -> bytes:
    envelope = json.loads(sound.line)
    match sound.dice.randrange(4):
        case 0:
            return compact([envelope])
        case 1:
            del envelope["payload"]
        case 2:
            envelope["metadata"] = "none"
        case _:
            del envelope["metadata"]["source"]
    return compact(envelope)


def _timestamp_invalid(sound: Sound) -> bytes:
    moment = iso(sound.newest_ms)
    wrong = [_ABSENT, moment[:-1], "yesterday", f"{moment[:5]}13-45{moment[10:]}"]
    return _with(sound, "metadata", "timestamp", *wrong)


def _too_old(sound: Sound) -> bytes:
    age_ms = sound.dice.randrange(200 * DAY_MS, 400 * DAY_MS)
    return _with(sound, "metadata", "timestamp", iso(sound.newest_ms - age_ms))


_ABSENT = object()


def _with_reading(line: str, text: str) -> bytes:
    """Return the line with one more payload field, which no schema knows, spelled like this."""
    return f'{line[:-2]},"reading":{text}}}}}'.encode()


def _with(sound: Sound, part: str, field: str, *values: object) -> bytes:
    """Return the event with one of these values in a field of its metadata or payload."""
    envelope = json.loads(sound.line)
    value = sound.dice.choice(values) if len(values) > 1 else values[0]
    if value is _ABSENT:
        del envelope[part][field]
    else:
        envelope[part][field] = value
    return compact(envelope)


_SPOILERS: dict[str, Callable[[Sound], bytes]] = {
    "PAYLOAD_TOO_LARGE": lambda one: _with_reading(one.line, f'"{"x" * (TOO_LARGE_BYTES + 1)}"'),
    "INVALID_UNICODE": _invalid_unicode,
    "NOT_JSON": _not_json,
    "DUPLICATE_KEY": _duplicate_key,
    "TOO_DEEP": _too_deep,
    "NUMBER_NOT_REPRESENTABLE": _number_not_representable,
    "NOT_AN_ENVELOPE": _not_an_envelope,
    "IDENTITY_INVALID": lambda one: _with(one, "metadata", "eventId", _ABSENT, "", 12345, None),
    "UNKNOWN_EVENT_TYPE": lambda one: _with(one, "metadata", "eventType", "mouse_wiggle"),
    "UNKNOWN_SCHEMA_VERSION": lambda one: _with(one, "metadata", "schemaVersion", 99),
    "SCHEMA_VIOLATION": lambda one: _with(
        one, "payload", one.item_field, _ABSENT, 12345, None, ["a"]
    ),
    "TIMESTAMP_INVALID": _timestamp_invalid,
    "TOO_FAR_IN_FUTURE": lambda one: _with(
        one, "metadata", "timestamp", iso(one.newest_ms + 3_653 * DAY_MS)
    ),
    "TOO_OLD": _too_old,
    "NO_PARTITION_FIELD": lambda one: _with(one, "metadata", "partitionKey", _ABSENT, ""),
}
