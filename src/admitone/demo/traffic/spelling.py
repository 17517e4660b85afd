"""Other spellings of the same value, and other values of the same event."""

from __future__ import annotations

import json
from json.encoder import encode_basestring, encode_basestring_ascii
from random import Random
from typing import Any

SPACES = ("", "", " ", "  ", "\t")


def respell(line: bytes, dice: Random) -> bytes:
    """Return the same envelope with other key order, white space, escapes and numbers."""
    envelope = json.loads(line)
    # The version is part of the envelope, not of the hashed value: its spelling stays.
    version = envelope["metadata"]["schemaVersion"]
    envelope["metadata"]["schemaVersion"] = _Verbatim(str(version))
    return _spell(envelope, dice, dice.choice(SPACES)).encode()


def contradict(line: bytes, item_field: str, dice: Random) -> bytes:
    """Return the same event with another, still valid, payload."""
    envelope = json.loads(line)
    payload = envelope["payload"]
    match dice.randrange(4):
        case 0:
            field = dice.choice([name for name, value in payload.items() if type(value) is int])
            payload[field] += 1
        case 1:
            payload[item_field] += "-other"
        case 2:
            payload["sessionId" if "sessionId" in payload else "requestId"] += " "
        case _:
            payload["addedLater"] = None
    return compact(envelope)


def compact(value: Any) -> bytes:
    """Return the value as JSON without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class _Verbatim(str):
    """Text that is already JSON."""


def _spell(value: Any, dice: Random, space: str) -> str:
    if isinstance(value, dict):
        names = list(value)
        dice.shuffle(names)
        members = [f"{_string(n, dice)}{space}:{_spell(value[n], dice, space)}" for n in names]
        return f"{{{space}{f',{space}'.join(members)}{space}}}"
    if isinstance(value, _Verbatim):
        return value
    if isinstance(value, str):
        return _string(value, dice)
    if type(value) is int:
        return _integer(value, dice)
    return json.dumps(value)


def _string(text: str, dice: Random) -> str:
    luck = dice.random()
    if luck < 0.5:
        return encode_basestring(text)
    if luck < 0.9:
        return encode_basestring_ascii(text)
    if luck < 0.95:
        return encode_basestring_ascii(text).replace("/", "\\/")
    units = text.encode("utf-16-be")
    return (
        '"' + "".join(f"\\u{units[i]:02X}{units[i + 1]:02x}" for i in range(0, len(units), 2)) + '"'
    )


def _integer(number: int, dice: Random) -> str:
    match dice.randrange(5):
        case 0:
            return f"{number}.0"
        case 1:
            return f"{number}e0"
        case 2 if number:
            return f"{number}0E-1"
        case 3 if number and number % 10 == 0:
            return f"{number // 10}e+1"
        case _:
            return str(number)
