"""JSON without accidents: strict parsing, and one spelling for each value (RFC 8785).

What JSON leaves open is refused by a reason of its own instead of being decided by a parser: duplicate keys,
lone surrogates, NaN, numbers that a double does not carry unchanged. A number is carried unchanged
when the canonical spelling of its double has the very same decimal value; so two different numbers
never share a spelling, and a hash over it changes whenever a value does.

Both directions have a fast path for what nearly all events look like, and a careful one for the rest:

- Parsing: orjson, when the text proves that nothing was lost. A text of flat objects that comes out again byte by byte
  lost nothing. For others, a string takes two quotation marks, so if the text has exactly twice as many as the value
  has strings, no key was given twice. (Escaped ones do not count; where backslashes are escaped too, they
  cannot be told by counting.) Texts with fractions or large numbers are parsed again by jiter, which keeps a number's
  spelling.
- Writing: orjson, where its spelling is RFC 8785's: everything but exotic numbers and keys outside ASCII.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from typing import Any, Final

import jiter
import orjson
import rfc8785

from admitone.core.decisions import Reason

MAX_DEPTH: Final = 64
_EXACT_INTEGERS: Final = (1 << 53) - 1
_CAREFUL: Final = -1
_PLAIN_KINDS: Final = frozenset({str, int, bool, type(None)})
# A string that never ends is passed over whole: looked at again from each of its quotation marks, it takes hours.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)


class Refused(Exception):
    """This input has no canonical value, for the reason given."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class _Number(str):
    """A number as it was spelled, until it is settled."""

    __slots__ = ()


def parse_strict(raw: bytes) -> Any:
    """Return the value of a JSON text, or raise `Refused`."""
    return parse(raw)[0]


def parse(raw: bytes) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether it is plain: certainly spelled by orjson as RFC 8785 does."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parse_carefully(raw), False
    if _is_flat(value) and _spelled(value) == raw:
        return value, raw.isascii() or all(map(str.isascii, _names(value)))
    marks = raw.count(b'"')
    escapes = b"\\" in raw
    if escapes and b"\\\\" not in raw:
        marks -= raw.count(b'\\"')
    if _count_strings(value, 0) * 2 != marks:
        return _parse_carefully(raw), False
    # No fractions, as they were counted as needing care; and no key outside ASCII.
    return value, not escapes and raw.isascii()


def _is_flat(value: Any) -> bool:
    """Tell whether a value is an object of objects without lists, fractions or further objects."""
    if type(value) is not dict:
        return False
    kinds: set[type] = set()
    for member in value.values():
        if type(member) is not dict:
            return False
        kinds.update(map(type, member.values()))
    return kinds <= _PLAIN_KINDS


def _names(value: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the keys of a flat value."""
    return chain(value, *value.values())


def _spelled(value: Any) -> bytes | None:
    """Return how orjson spells a value; nothing where a number is too large."""
    try:
        return orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    except orjson.JSONEncodeError:
        return None


def _count_strings(value: Any, depth: int) -> int:
    """Return how many strings, keys included, a value has; or that it needs care.

    It does when it holds a fraction, a large number or deep nesting.
    """
    kind = type(value)
    if kind is dict:
        count, members = len(value), value.values()
    elif kind is list:
        count, members = 0, value
    else:
        count, members = 0, (value,)
    if depth >= MAX_DEPTH:
        return _CAREFUL
    for member in members:
        kind = type(member)
        if kind is str:
            count += 1
        elif kind is int:
            if not -_EXACT_INTEGERS <= member <= _EXACT_INTEGERS:
                return _CAREFUL
        elif kind is dict or kind is list:
            within = _count_strings(member, depth + 1)
            if within == _CAREFUL:
                return _CAREFUL
            count += within
        elif kind is float:
            return _CAREFUL
    return count


def _parse_carefully(raw: bytes) -> Any:
    try:
        value = jiter.from_json(
            raw, allow_inf_nan=False, catch_duplicate_keys=True, float_mode="lossless-float"
        )
    except ValueError:
        value = _parse_or_diagnose(raw)
    return _settle(value, 0)


def canonical_json(value: Any, plain: bool = False) -> bytes:
    """Return the RFC 8785 spelling of a value that was parsed here; whether it is plain need not be found out twice."""
    if plain or _is_plain(value):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    spelled: bytes = rfc8785.dumps(value)
    return spelled


def _settle(value: Any, depth: int) -> Any:
    """Replace every number by its canonical value: an int where it is whole and small, else a float."""
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        if -_EXACT_INTEGERS <= value <= _EXACT_INTEGERS:
            return value
        return _double_of(str(value)) if value.bit_length() <= 1024 else _refuse_number()
    if kind is dict:
        if depth >= MAX_DEPTH:
            raise Refused(Reason.TOO_DEEP)
        for key, member in value.items():
            if type(member) is not str:
                value[key] = _settle(member, depth + 1)
        return value
    if kind is list:
        if depth >= MAX_DEPTH:
            raise Refused(Reason.TOO_DEEP)
        return [_settle(member, depth + 1) for member in value]
    return _double_of(str(value))


def _double_of(spelling: str) -> int | float:
    number = float(spelling)
    if number in (float("inf"), float("-inf")):
        _refuse_number()
    # A huge exponent would make the comparison below as long as the number it names.
    if number == 0.0 and spelling.lower().partition("e")[0].strip("-0.") != "":
        _refuse_number()
    if number != 0.0 and Decimal(spelling) != Decimal(repr(number)):
        _refuse_number()
    if number.is_integer() and abs(number) <= _EXACT_INTEGERS:
        return int(number)
    return number


def _refuse_number() -> Any:
    raise Refused(Reason.NUMBER_NOT_REPRESENTABLE)


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is bool or kind is int or value is None:
        return True
    if kind is dict:
        for key, member in value.items():
            if not key.isascii() or (type(member) is not str and not _is_plain(member)):
                return False
        return True
    if kind is list:
        return all(map(_is_plain, value))
    return bool(1e-3 <= abs(value) < 1e15)


def _parse_or_diagnose(raw: bytes) -> Any:
    """Return the value of a text that the other parsers refused, or raise why; slow, and hardly ever reached.

    What they refuse and this does not is a number with thousands of digits.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused(Reason.INVALID_UNICODE) from None
    if _depth(raw) > MAX_DEPTH:
        raise Refused(Reason.TOO_DEEP)
    duplicates = False

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any] | list[tuple[str, Any]]:
        nonlocal duplicates
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        duplicates = True
        return pairs

    def refuse_constant(name: str) -> Any:
        raise ValueError(name)

    try:
        value = json.loads(
            text,
            object_pairs_hook=members,
            parse_constant=refuse_constant,
            parse_int=_Number,
            parse_float=_Number,
        )
    except ValueError:
        raise Refused(Reason.NOT_JSON) from None
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(Reason.INVALID_UNICODE) from None
    if duplicates:
        raise Refused(Reason.DUPLICATE_KEY)
    return value


def _depth(raw: bytes) -> int:
    depth = deepest = 0
    for token in _STRUCTURE.finditer(raw):
        character = token[0]
        if character in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif character in (b"]", b"}"):
            depth -= 1
    return deepest
