"""Deliveries nobody thought of: good envelopes, spoiled at random by a seed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from tests.support.hostile import MOMENT, Headers

LONGEST: Final = 4_000
"""Deliveries are short, so a limit on their size must be as well to be met at all."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.\w]+|[\[\]{}:,]')
_MARK = "@@"

_PAYLOADS: Final[dict[str, dict[str, Any]]] = {
    "page_view": {"url": "/a?b=ü", "deviceType": "mobile", "loadTimeMs": 120, "pageId": 'p"1'},
    "product_view": {"productId": "p-1", "productCategory": "\u200fbooks", "price": "12.50"},
    "api_request": {"endpoint": "/v1/x", "method": "GET", "statusCode": 200, "region": "eu"},
    "search": {"searchQuery": "größe \U0001f600", "resultCount": 7, "category": None},
    "purchase": {"productId": "p-2", "quantity": 2, "unitPrice": "-0.10", "more": {"a": [1.5]}},
}
_METADATA: Final = (
    "eventId", "eventType", "source", "timestamp", "partitionKey", "schemaVersion", "runId", "eventClass",
)  # fmt: skip
_TIMESTAMPS: Final = (
    MOMENT, "2026-01-05T11:30:00+01:30", "2026-01-05T10:00Z", "2025-12-31T23:59:59.999999Z", "2026-01-05T10:59:59.9Z",
    "2026-01-05T11:00:00.001Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59", "1969-12-31T23:59:59.9994Z",
    "2025-09-27T10:00:00.000Z", "2025-09-27T10:00:00.001Z", "2026-01-05T24:00:00Z", "2026-02-30T00:00:00Z",
    "2026-01-05T10:00:00", "2026-01-05T10:00:00+01:99", "",
)  # fmt: skip
_NUMBERS: Final = (
    "0", "-0", "-0.0", "1", "1.0", "1e0", "10E-1", "120e0", "0.1", "1e-7", "1e21", "123456789012345.6", "5e-324",
    "4e-324", "1e308", "1e309", "-1e400", "1e-400", "9007199254740991", "9007199254740992", "9007199254740993",
    "-9007199254740993", "1e23", "100000000000000000000000", "18446744073709551616", "0.30000000000000004",
    "0.1000000000000000055511", "1" + "0" * 308, "1" + "0" * 309, "0e99999", "1e99999", "1." + "0" * 400, "01", "+1",
    ".5", "1.", "1e", "0x1", "NaN", "Infinity", "-Infinity", "1_0", "--1",
)  # fmt: skip
_TEXTS: Final = (
    "", " ", "\0", "a\0b", "\u202e", "\ufeff", "\U0001f600", "é", "e\u0301", "\uffff", "\x7f", "\u2028", "a" * 300, "1",
    '"', "\\", '","eventId":"', "}", "page_view", "search", "default", "../..", "k|k:k",
)  # fmt: skip
_SPELLINGS: Final = (
    '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\/"', '"\\x"', '"\\u00"', '"\n"', '"\t"',
    '"', "'a'", "true", "false", "null", "True", "{}", "[]", "[[]]", '{"":{}}', '{"a":1,"a":1}', '{"a":1,"\\u0061":2}',
    '{"\\ud83d\\ude00":1,"\\ufffd":2,"é":3}', '[{"a":1},{"a":1}]', '"\\u00e9"', "//", "",
)  # fmt: skip
_BYTES: Final = (
    b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xef\xbb\xbf", b"\0", b"\n",
    b'"', b'\\"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b" ", b"\\u", b"\\ud800", b"e", b"-", b"0", b"\xc3\xa9",
)  # fmt: skip
_HEADER_NAMES: Final = ("runId", "runId", "eventClass", "trace", "RunId", "")
_HEADER_VALUES: Final = (
    None, b"", b"r", b"other", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"a\0b", "größe".encode(), b"r" * 300,
)  # fmt: skip


def mutated(seed: int, count: int) -> Iterator[tuple[bytes | None, Headers]]:
    """Yield as many deliveries, always the same ones for a seed."""
    dice = Random(seed)
    sound = [_spell(dice, _sound(dice)) for _ in range(100)]
    for _ in range(count):
        raw = None if dice.random() < 0.001 else _delivery(dice, sound)
        yield raw, _headers(dice)


def _delivery(dice: Random, sound: list[bytes]) -> bytes:
    document = _sound(dice)
    marks: list[str] = []
    for _ in range(dice.choice((0, 1, 1, 1, 2, 3))):
        dice.choice(_CHANGES)(dice, document, marks)
    raw = _spell(dice, document)
    for mark in marks:
        raw = raw.replace(f'"{_MARK}"'.encode(), mark.encode(), 1)
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        raw = dice.choice(_DAMAGES)(dice, raw, sound)
    return raw


def _sound(dice: Random) -> dict[str, Any]:
    event_type = dice.choice(tuple(_PAYLOADS))
    return {
        "metadata": {
            "eventId": f"e{dice.randrange(10**6)}",
            "eventType": event_type,
            "source": "web",
            "timestamp": MOMENT,
            "partitionKey": f"k{dice.randrange(100)}",
            "schemaVersion": 1,
        },
        "payload": dict(_PAYLOADS[event_type]),
    }


def _spell(dice: Random, document: Any) -> bytes:
    spelling = dice.randrange(4)
    text = json.dumps(
        document,
        ensure_ascii=spelling == 0,
        separators=(",", ":") if spelling < 2 else None,
        indent=1 if spelling == 3 else None,
    )
    return text.encode()


def _headers(dice: Random) -> Headers:
    if dice.random() < 0.8:
        return ()
    return tuple(
        (dice.choice(_HEADER_NAMES), dice.choice(_HEADER_VALUES))
        for _ in range(dice.randrange(1, 4))
    )


# Changes of the value, before it is spelled


def _section(dice: Random, document: dict[str, Any]) -> dict[str, Any]:
    found = document.get(dice.choice(("metadata", "metadata", "payload")))
    return found if isinstance(found, dict) else document


def _name(dice: Random, section: dict[str, Any]) -> str:
    names = (*section, *_METADATA) if dice.random() < 0.5 else tuple(section)
    return dice.choice(names or _TEXTS)


def _other_text(dice: Random, document: dict[str, Any], _: list[str]) -> None:
    section = _section(dice, document)
    section[_name(dice, section)] = dice.choice(_TEXTS)


def _other_key(dice: Random, document: dict[str, Any], _: list[str]) -> None:
    _section(dice, document)[dice.choice(_TEXTS)] = dice.choice(_TEXTS)


def _other_type(dice: Random, document: dict[str, Any], _: list[str]) -> None:
    section = _section(dice, document)
    value = dice.choice((None, True, False, 0, 1, -1, 99, 1.5, 1e300, [], {}, [1], {"a": None}))
    section[_name(dice, section)] = value


def _other_spelling(dice: Random, document: dict[str, Any], marks: list[str]) -> None:
    section = _section(dice, document)
    marks.append(dice.choice(dice.choice((_NUMBERS, _SPELLINGS))))
    section[_name(dice, section)] = _MARK


def _further_spelling(dice: Random, document: dict[str, Any], marks: list[str]) -> None:
    marks.append(dice.choice(dice.choice((_NUMBERS, _SPELLINGS))))
    _section(dice, document)[f"more{len(marks)}"] = _MARK


def _other_time(dice: Random, document: dict[str, Any], _: list[str]) -> None:
    if isinstance(document.get("metadata"), dict):
        document["metadata"]["timestamp"] = dice.choice(_TIMESTAMPS)


def _without(dice: Random, document: dict[str, Any], _: list[str]) -> None:
    section = _section(dice, document)
    section.pop(_name(dice, section), None)


def _other_section(dice: Random, document: dict[str, Any], _: list[str]) -> None:
    name = dice.choice(("metadata", "payload", "more"))
    document[name] = dice.choice(
        (None, [], {}, "", 0, [document.get(name)], document.get("payload"))
    )


def _nested(dice: Random, document: dict[str, Any], marks: list[str]) -> None:
    depth = dice.choice((1, 2, 10, 60, 61, 62, 63, 64, 65, 100, 198, 199, 250, 400))
    opening, closing = dice.choice((("[", "]"), ('{"a":', "}"), ("[0,", "]")))
    marks.append(opening * depth + dice.choice(_NUMBERS) + closing * depth)
    _section(dice, document)["nested"] = _MARK


def _longer(dice: Random, document: dict[str, Any], _: list[str]) -> None:
    _section(dice, document)["long"] = dice.choice("aé\0") * dice.randrange(LONGEST)


_CHANGES: Final[tuple[Callable[[Random, dict[str, Any], list[str]], None], ...]] = (
    _other_text, _other_text, _other_key, _other_type, _other_type, _other_spelling, _other_spelling,
    _further_spelling, _further_spelling, _other_time, _other_time, _without, _other_section, _nested, _longer,
)  # fmt: skip


# Damage to the bytes, after it was spelled


def _flipped(dice: Random, raw: bytes, _: list[bytes]) -> bytes:
    found = bytearray(raw)
    for _flip in range(dice.randrange(1, 4)):
        if found:
            found[dice.randrange(len(found))] ^= 1 << dice.randrange(8)
    return bytes(found)


def _truncated(dice: Random, raw: bytes, _: list[bytes]) -> bytes:
    return raw[: dice.randrange(len(raw) + 1)]


def _spliced(dice: Random, raw: bytes, sound: list[bytes]) -> bytes:
    other = dice.choice(sound)
    return raw[: dice.randrange(len(raw) + 1)] + other[dice.randrange(len(other)) :]


def _inserted(dice: Random, raw: bytes, _: list[bytes]) -> bytes:
    at = dice.randrange(len(raw) + 1)
    return raw[:at] + dice.choice(_BYTES) * dice.choice((1, 1, 1, 2, 70)) + raw[at:]


def _swapped_tokens(dice: Random, raw: bytes, _: list[bytes]) -> bytes:
    tokens = [match.span() for match in _TOKEN.finditer(raw)]
    if len(tokens) < 2:
        return raw
    (a, b), (c, d) = sorted(dice.sample(tokens, 2))
    return raw[:a] + raw[c:d] + raw[b:c] + raw[a:b] + raw[d:]


def _repeated_member(dice: Random, raw: bytes, _: list[bytes]) -> bytes:
    starts = [match.start() for match in re.finditer(rb'"[^"\\]*":', raw)]
    if not starts:
        return raw
    at = dice.choice(starts)
    name = raw[at : raw.index(b":", at)]
    if dice.random() < 0.3 and len(name) > 2:
        name = b'"\\u%04x' % name[1] + name[2:]
    return raw[:at] + name + b":" + dice.choice((b"1", b"null", b'"x"', b"{}")) + b"," + raw[at:]


def _extended(dice: Random, raw: bytes, sound: list[bytes]) -> bytes:
    return raw + dice.choice((b" ", b"\n", b"\0", b"x", b",", b"}", b"{}", dice.choice(sound)))


def _wrapped(dice: Random, raw: bytes, _: list[bytes]) -> bytes:
    depth = dice.choice((1, 2, 63, 70))
    return b"[" * depth + raw + b"]" * depth


_DAMAGES: Final[tuple[Callable[[Random, bytes, list[bytes]], bytes], ...]] = (
    _flipped, _flipped, _truncated, _spliced, _inserted, _inserted, _swapped_tokens, _swapped_tokens,
    _repeated_member, _repeated_member, _extended, _wrapped,
)  # fmt: skip
