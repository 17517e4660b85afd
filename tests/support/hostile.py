"""Hostile deliveries, and what each must end in: the one reason that fits, or None where it is legal.

The legal ones are here because they look as if they were not. All were made for a source whose stream time is `MOMENT`.
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from admitone.core.decisions import Reason

MOMENT: Final = "2026-01-05T10:00:00.000Z"
MEGABYTE: Final = 1_000_000
DEPTH: Final = 10_000
ENDLESS: Final = 100_000
ABSENT: Final = object()

_numbers = itertools.count(1)

Headers = tuple[tuple[str, bytes | None], ...]


class Hostile(NamedTuple):
    """One delivery and the reason it must be refused for; None when it must be admitted."""

    name: str
    raw: bytes | None
    reason: Reason | None
    headers: Headers = ()


def envelope(
    metadata: Mapping[str, Any] | None = None, payload: Any = None, **others: Any
) -> dict[str, Any]:
    """Return a page view with an event id of its own, changed as told."""
    fields = {
        "eventId": f"hostile-{next(_numbers)}",
        "eventType": "page_view",
        "source": "web",
        "timestamp": MOMENT,
        "partitionKey": "k",
        "schemaVersion": 1,
        **(metadata or {}),
    }
    return {
        "metadata": {name: value for name, value in fields.items() if value is not ABSENT},
        "payload": {"url": "/a"} if payload is None else payload,
        **others,
    }


def line(metadata: Mapping[str, Any] | None = None, payload: Any = None, **others: Any) -> bytes:
    return json.dumps(envelope(metadata, payload, **others)).encode()


def reading(text: str | bytes) -> bytes:
    """Return a page view whose payload has one more field, spelled like this."""
    return _spelled("payload", "reading", text)


def metadata(name: str, text: str | bytes) -> bytes:
    """Return a page view with a field of its metadata spelled like this."""
    return _spelled("metadata", name, text)


def _spelled(section: str, name: str, text: str | bytes) -> bytes:
    document = envelope()
    document[section][name] = "@@"
    spelling = text.encode() if isinstance(text, str) else text
    return json.dumps(document).encode().replace(b'"@@"', spelling, 1)


def every_separator() -> str:
    """Return every control character, space, line end, format mark and ASCII sign that could end a field."""
    signs = "".join(map(chr, range(0x21, 0x7F)))
    categories = {"Cc", "Cf", "Zs", "Zl", "Zp"}
    every = map(chr, range(sys.maxunicode + 1))
    return signs + "".join(sign for sign in every if unicodedata.category(sign) in categories)


def hostile_deliveries() -> list[Hostile]:
    """Return the whole table, in an order that does not matter."""
    found = []
    for reason, cases in _TABLE:
        for name, raw, *headers in cases():
            found.append(Hostile(name, raw, reason, *headers))
    return found


Cases = Iterator[tuple[Any, ...]]


def _legal() -> Cases:
    names = {
        "every separator": every_separator(),
        "nothing but NUL": "\0",
        "NUL in the middle": "a\0b",
        "a space": " ",
        "quotes and line ends": "\"'`\\\r\n\t\v\f",
        "marks that turn the direction": "\u202eabc\u202c\u200f\u2067x\u2069",
        "a byte order mark": "\ufeff",
        "noncharacters": "\uffff\ufdd0\U0010ffff",
        "astral characters": "\U0001f600\U00010000",
        "another triple's encoding": "1:a1:b7:default",
        "a path": "../../../../etc/passwd",
        "dots": "..",
        "a query": "'; DROP TABLE block; --",
        "a format": "%s%n{0}${HOME}",
        "a page": "<script>alert(1)</script>",
    }
    for name, text in names.items():
        yield f"id: {name}", line({"eventId": text})
        yield (
            f"id, spelled without escapes where possible: {name}",
            json.dumps(envelope({"eventId": f"{text} "}), ensure_ascii=False).encode(),
        )
        yield f"class: {name}", line({"eventClass": text})
        yield f"run: {name}", line({"runId": text})
        yield f"run in the header: {name}", line(), (("runId", text.encode()),)
        yield f"business key: {name}", line({"partitionKey": text})
        yield f"value: {name}", line(payload={"url": text})
        yield f"key: {name}", line(payload={"url": "/a", text: 1})
    yield "an id of 800 kB", line({"eventId": "i" * 800_000})
    yield "a run of 100 kB", line({"runId": "r" * 100_000})
    yield "a value of 850 kB", line(payload={"url": "u" * 850_000})
    yield "800 kB of white space", b" " * 400_000 + line() + b"\n" * 400_000
    yield "line ends between tokens", json.dumps(envelope(), indent="\r\n\t").encode()
    yield "a DEL character", reading('"\x7f"')
    yield "an escaped solidus", reading('"\\/"')
    yield "a surrogate pair, escaped", reading('"\\ud83d\\ude00"')
    yield (
        "keys that UTF-8 and UTF-16 order differently",
        reading('{"\\ud83d\\ude00":1,"\\ufffd":2}'),
    )
    yield "keys that look the same in two normal forms", reading('{"\\u00e9":1,"e\\u0301":2}')
    yield "the same key on two levels", reading('{"reading":{"reading":1}}')
    yield "the same key in two elements", reading('[{"a":1},{"a":1}]')
    yield "an empty key", reading('{"":1}')
    yield "a key that scripts stumble over", reading('{"__proto__":{"constructor":1}}')
    yield "a text that spells a duplicate key", reading('"{\\"a\\":1,\\"a\\":2}"')
    yield "a text that spells a number out of range", reading('"1e400 NaN"')
    yield "a text full of brackets", reading(f'"{"[{" * DEPTH}"')
    yield "a text full of backslashes", reading('"' + "\\\\" * DEPTH + '"')
    yield "the deepest nesting there may be", reading("[" * 62 + "]" * 62)
    yield "50,000 keys", reading(json.dumps({str(number): number for number in range(50_000)}))
    yield "50,000 elements", reading(json.dumps([[]] * 50_000))
    for name, spelling in {
        "negative zero": "-0",
        "negative zero with a fraction": "-0.0e-400",
        "zero with a large exponent": "0e99999999999999999999",
        "zero with an endless exponent": "0e" + "9" * ENDLESS,
        "one with an endless fraction": "1." + "0" * ENDLESS,
        "one with endless digits": "1" + "0" * ENDLESS + f"e-{ENDLESS}",
        "one after endless zeros": "0." + "0" * ENDLESS + f"1e{ENDLESS + 1}",
        "ten with an endless exponent": "1e" + "0" * ENDLESS + "1",
        "the smallest number": "5e-324",
        "the largest number": "1.7976931348623157e308",
        "the largest exact integer": "9007199254740991",
        "a large integer that a double has": "9007199254740992",
        "a power of ten that is no power of two": "1e23",
    }.items():
        yield name, reading(spelling)
    yield "a version with a fraction of nothing", metadata("schemaVersion", "1.000")
    yield "a version with an exponent", metadata("schemaVersion", "10e-1")
    yield "a number as business key", line({"partitionKey": 7})
    yield "an empty source", line({"source": ""})
    yield "fields nobody knows", line({"more": [1]}, more={"metadata": 1})
    yield (
        "a timestamp with an endless fraction",
        line({"timestamp": f"{MOMENT[:-1]}{'9' * ENDLESS}Z"}),
    )
    yield "a timestamp without seconds", line({"timestamp": "2026-01-05T10:00Z"})
    yield "a timestamp far from Greenwich", line({"timestamp": "2026-01-06T09:59:00+23:59"})
    yield "another header's bad text", line(), (("trace", b"\xff"), ("RunId", b""), ("trace", None))
    yield "an envelope's own run over a bad header", line({"runId": "own"}), (("runId", b"\xff"),)
    yield "a header given twice", line(), (("runId", b"\xff"), ("runId", b"last"))


def _not_json() -> Cases:
    whole = line()
    yield "no value at all", None
    yield "nothing", b""
    yield "white space", b" \t\r\n"
    yield "words", b"user 7 viewed a page"
    yield "a byte order mark", b"\xef\xbb\xbf" + line()
    yield "UTF-16 without a mark", line().decode().encode("utf-16-le")
    yield "a NUL byte", b"\0"
    yield "a NUL byte at the end", line() + b"\0"
    yield "a no-break space before it", b"\xc2\xa0" + line()
    yield "a form feed before it", b"\f" + line()
    yield "the half of it", whole[: len(whole) // 2]
    yield "all but the last bracket", whole[:-1]
    yield "a bracket too many", line() + b"}"
    yield "something after it", line() + b" x"
    yield "two of them", line() + line()
    yield "two of them on two lines", line() + b"\n" + line()
    yield "a comment", line() + b"// fine"
    yield "a trailing comma", whole[:-1] + b",}"
    yield "a comma of its own", b"[,]"
    yield "single quotes", b"{'metadata': {}, 'payload': {}}"
    yield "keys without quotes", b"{metadata: {}, payload: {}}"
    yield "a key that is no text", b'{1: {}, "payload": {}}'
    yield "a duplicate key in broken text", b'{"a": 1, "a": 2, }'
    yield "800 kB of escaped quotes outside a text", b'\\"' * 400_000
    yield "800 kB of quotes", b'"' * 800_001
    yield "a text of 800 kB that never ends", whole[:-3] + b"x" * 800_000
    for code in range(0x20):
        yield f"control character {code:#04x} in a text", reading(f'"a{chr(code)}b"')
    yield "a raw NUL in the event id", metadata("eventId", '"a\0b"')
    yield "a raw line end in a key", reading('{"a\nb":1}')
    for text in (
        "NaN", "Infinity", "-Infinity", "nan", "inf", "True", "None", "undefined", "01", "-01", "+1", ".5", "1.",
        "-", "1e", "1e+", "0x1F", "1_000", "1,5", "1.5.5", "--1", "\u0661", "1e5.0", "tru", "nulll",
    ):  # fmt: skip
        yield f"the value {text}", reading(text)
    for text in ("\\x41", "\\u12", "\\u12G4", "\\U00000041", "\\'", "\\0", "\\"):
        yield f"the escape {text}", reading(f'"{text}"')


def _invalid_unicode() -> Cases:
    for name, escaped in {
        "a high surrogate": "\\ud800",
        "a low surrogate": "\\udfff",
        "a pair the wrong way round": "\\ude00\\ud83d",
        "a high surrogate before a letter": "\\ud83d\\u0041",
        "a high surrogate before a pair": "\\ud83d\\ud83d\\ude00",
        "a surrogate in capitals": "\\uDBFF",
    }.items():
        yield f"{name} in a value", reading(f'"{escaped}"')
        yield f"{name} in a key", reading(f'{{"{escaped}":1}}')
        yield f"{name} in the event id", metadata("eventId", f'"{escaped}"')
        yield f"{name} in a field nobody reads", metadata("more", f'["{escaped}"]')
    yield "a surrogate under a key given again", reading('{"a":"\\ud800","a":1}')
    yield "a surrogate in a key given twice", reading('{"\\ud800":1,"\\ud800":2}')
    for name, raw in {
        "a byte that never occurs": b"\xff",
        "a continuation without a start": b"\x80",
        "a start without a continuation": b"\xe2\x82",
        "an overlong solidus of two bytes": b"\xc0\xaf",
        "an overlong solidus of three bytes": b"\xe0\x80\xaf",
        "an overlong solidus of four bytes": b"\xf0\x80\x80\xaf",
        "an overlong NUL": b"\xc0\x80",
        "a surrogate in three bytes": b"\xed\xa0\x80",
        "a surrogate pair in six bytes": b"\xed\xa0\xbd\xed\xb8\x80",
        "a number beyond the last character": b"\xf4\x90\x80\x80",
        "a character of five bytes": b"\xf8\x88\x80\x80\x80",
    }.items():
        yield f"{name} in a value", reading(b'"' + raw + b'"')
        yield f"{name} in the event id", metadata("eventId", b'"' + raw + b'"')
        yield f"{name} outside of any text", line() + raw
    yield "UTF-16 with its mark", line().decode().encode("utf-16")
    yield "a compressed event", gzip.compress(line(), mtime=0)
    yield "random bytes", bytes(range(256))


def _duplicate_key() -> Cases:
    whole = line().decode()
    yield "metadata twice", whole.replace('"payload"', '"metadata": {}, "payload"').encode()
    yield "payload twice", whole.replace('"payload"', '"payload": {}, "payload"').encode()
    yield (
        "payload twice, once escaped",
        whole.replace('"payload"', '"\\u0070ayload": {}, "payload"').encode(),
    )
    yield "the event id twice", metadata("more", '1, "eventId": "other"')
    yield "the event id twice, the same", metadata("eventId", '"a", "eventId": "a"')
    yield "the version twice", metadata("schemaVersion", '1, "schemaVersion": 1')
    yield "a field of the payload twice", reading('1, "reading": 1')
    yield "a field nobody reads twice", metadata("more", '{"a":1,"a":1}')
    yield "not even an envelope", b'{"a":1,"a":2}'
    for depth in (1, 10, 60):
        opening, closing = '{"a":' * depth, "}" * depth
        yield f"{depth} objects down", reading(f'{opening}{{"b":1,"b":1}}{closing}')
        yield f"{depth} lists down", reading(f'{"[" * depth}{{"b":1,"b":1}}{"]" * depth}')
    for name, one, other in (
        ("a letter", "b", "\\u0062"),
        ("an escape in capitals", "\\u00E9", "\\u00e9"),
        ("a character and its escape", "é", "\\u00e9"),
        ("a solidus", "/", "\\/"),
        ("a quote", '\\"', "\\u0022"),
        ("a line end", "\\n", "\\u000a"),
        ("an astral character", "\U0001f600", "\\ud83d\\ude00"),
        ("NUL", "\\u0000", "\\u0000"),
        ("nothing", "", ""),
    ):
        yield f"a key spelled in two ways: {name}", reading(f'{{"{one}":1,"{other}":2}}')
    keys = ",".join(f'"{number}":1' for number in range(50_000))
    yield "the first of 50,000 keys again", reading(f'{{{keys},"0":1}}')
    yield "a number out of range under a key given twice", reading('{"a":1e400,"a":1}')


def _too_deep() -> Cases:
    shapes = {
        "lists": ("[", "]"),
        "objects": ('{"a":', "}"),
        "both in turn": ('[{"a":', "}]"),
        "lists with neighbours": ("[0,", ",0]"),
        "objects with neighbours": ('{"a":0,"b":', "}"),
    }
    for name, (opening, closing) in shapes.items():
        yield f"{DEPTH:,} {name}", reading(f"{opening * DEPTH}1{closing * DEPTH}")
        yield (
            f"{DEPTH:,} {name} in the metadata",
            metadata("more", f"{opening * DEPTH}1{closing * DEPTH}"),
        )
        yield f"{DEPTH:,} {name} and nothing else", f"{opening * DEPTH}1{closing * DEPTH}".encode()
        yield f"{DEPTH:,} {name} that nobody closes", reading(opening * DEPTH)
    yield "one more than allowed", reading("[" * 63 + "]" * 63)
    yield "one object more than allowed", reading('{"a":' * 62 + "{}" + "}" * 62)
    yield "as deep as a parser of its own may go", reading("[" * 198 + "]" * 198)
    yield "a duplicate key far down", reading("[" * 100 + '{"a":1,"a":1}' + "]" * 100)
    yield "800 kB of brackets", b"[" * 800_000


def _number_not_representable() -> Cases:
    for spelling in (
        "1e400", "-1e400", "1e-400", "1E+309", "1.7976931348623159e308", "4e-324", "1e99999999999999999999",
        "-1e-99999999999999999999", "9007199254740993", "-9007199254740993", "18446744073709551615",
        "1152921504606846976", "0.1000000000000000055511151231257827", "3.14159265358979323846",
        "9007199254740992.5",
    ):  # fmt: skip
        yield f"the number {spelling}", reading(spelling)
    for name, spelling in {
        "an endless integer": "7" * ENDLESS,
        "an endless negative integer": "-" + "7" * ENDLESS,
        "an endless power of ten": "1" + "0" * ENDLESS,
        "an endless fraction": "0." + "3" * ENDLESS,
        "an endless exponent": "1e" + "9" * ENDLESS,
        "an endless negative exponent": "1e-" + "9" * ENDLESS,
        "800 kB of digits": "7" * 800_000,
        "800 kB of digits that come to nothing": "7" * 400_000 + "." + "7" * 400_000 + "e-800000",
    }.items():
        yield name, reading(spelling)
    yield "deep inside", reading('{"a":[{"b":[1e400]}]}')
    yield "as a version", metadata("schemaVersion", "1e400")
    yield "as the event id", metadata("eventId", "9007199254740993")
    yield "in a field nobody reads", metadata("more", "1e400")
    yield "not even an envelope", b"1e400"


def _not_an_envelope() -> Cases:
    for text in (
        "[]",
        "{}",
        '""',
        '"text"',
        "null",
        "true",
        "0",
        "-0",
        "1.5",
        '{"metadata":{}}',
        '{"payload":{}}',
    ):
        yield f"the value {text}", text.encode()
    yield "a list of one envelope", json.dumps([envelope()]).encode()
    yield "an envelope in a text", json.dumps(json.dumps(envelope())).encode()
    yield "keys in capitals", line().replace(b'"metadata"', b'"Metadata"')
    for value in (None, [], "", 0, False, [{}]):
        yield f"metadata is {value!r}", json.dumps({**envelope(), "metadata": value}).encode()
        yield f"payload is {value!r}", json.dumps({**envelope(), "payload": value}).encode()
    for value in (ABSENT, None, 3, [], {}, True):
        yield f"source is {_show(value)}", line({"source": value})


def _identity_invalid() -> Cases:
    for value in (ABSENT, "", None, 0, 7, 1.5, True, [], {}, ["a"]):
        yield f"event id is {_show(value)}", line({"eventId": value})
        yield f"event type is {_show(value)}", line({"eventType": value})
        if value is not ABSENT:
            yield f"run is {_show(value)}", line({"runId": value})
            yield f"class is {_show(value)}", line({"eventClass": value})
    for name in ("runId", "eventClass"):
        for header in (b"", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", None):
            yield f"header {name} is {header!r}", line(), ((name, header),)
        yield f"header {name} is good, then bad", line(), ((name, b"good"), (name, b"\xff"))


def _unknown_event_type() -> Cases:
    for text in (
        "dance",
        "PAGE_VIEW",
        "page_view ",
        "page_view\0",
        "page-view",
        "__class__",
        "p" * ENDLESS,
    ):
        yield f"event type is {text[:20]!r}", line({"eventType": text})
    for value in (ABSENT, None, 5, "", [], {}, True):
        yield (
            f"event type is {_show(value)} beside a class",
            line({"eventType": value, "eventClass": "c"}),
        )


def _unknown_schema_version() -> Cases:
    for value in (ABSENT, None, 0, -1, 2, 99, 1.5, 1e20, "1", "", True, [1], {"1": 1}):
        yield f"version is {_show(value)}", line({"schemaVersion": value})


def _schema_violation() -> Cases:
    yield "an empty payload", line(payload={})
    for value in (None, "", 0, True, [], {}, ["/a"]):
        yield f"url is {value!r}", line(payload={"url": value})
    for value in ("12", 1.5, None, True, [1], 1e-7):
        yield f"load time is {value!r}", line(payload={"url": "/a", "loadTimeMs": value})
    for price in ("1\n", "1e5", "٣", "1.", "NaN", "", " 1", "1" * ENDLESS + "x", 1, 1.5, None):
        yield (
            f"price is {str(price)[:20]!r} ({type(price).__name__})",
            line({"eventType": "purchase"}, {"productId": "p", "unitPrice": price}),
        )


def _timestamp_invalid() -> Cases:
    for value in (
        ABSENT, None, 0, 1767607200000, True, [], {}, [MOMENT], "", "now", "0", "2026-01-05", "2026-01-05T10:00:00",
        "2026-01-05T10:00:00.000", "2026-01-05 10:00:00Z", "2026-01-05t10:00:00z", "20260105T100000Z",
        "2026-13-05T10:00:00Z", "2026-02-29T10:00:00Z", "2026-00-05T10:00:00Z", "2026-01-05T24:00:00Z",
        "2026-01-05T24:00:00.000Z", "2026-01-05T10:60:00Z", "2026-01-05T10:00:60Z", "2026-01-05T23:59:60.000Z",
        "2026-01-05T10:00:00+24:00", "2026-01-05T10:00:00+01:60", "2026-01-05T10:00:00+0199", "2026-01-05T10:00:00+1",
        "2026-01-05T10:00:00,000Z", "2026-01-05T10:00:00.Z", "2026-01-05T10:00:00 Z", " " + MOMENT, MOMENT + "\n",
        MOMENT + "\0", "2026-W02-1T10:00:00Z", "2026-005T10:00:00Z", "0000-01-01T00:00:00Z", "12026-01-05T10:00:00Z",
        "-2026-01-05T10:00:00Z", "٢٠٢٦-01-05T10:00:00Z", "2026-01-05T10:00:00.٠٠٠Z", "2026-01-05T10:00:00Z[UTC]",
        "2026-01-05T10:00:00\u221201:00", MOMENT * 2, "9" * ENDLESS,
    ):  # fmt: skip
        yield f"timestamp is {_show(value)}", line({"timestamp": value})


def _too_far_in_future() -> Cases:
    for text in ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59-23:59", "9000-01-01T00:00+00"):
        yield f"timestamp is {text}", line({"timestamp": text})


def _too_old() -> Cases:
    for text in (
        "0001-01-01T00:00:00.000Z",
        "0001-01-01T00:00:00+23:59",
        "1969-12-31T23:59:59.999Z",
    ):
        yield f"timestamp is {text}", line({"timestamp": text})


def _payload_too_large() -> Cases:
    yield "a text of a megabyte", line(payload={"url": "u" * MEGABYTE})
    yield "an id of a megabyte", line({"eventId": "i" * MEGABYTE})
    yield "a run of a megabyte", line({"runId": "r" * MEGABYTE})
    yield "a key of a megabyte", line(payload={"url": "/a", "k" * MEGABYTE: 1})
    yield "a megabyte of escapes", line(payload={"url": "é" * (MEGABYTE // 6 + 1)})
    yield "a megabyte of digits", reading("7" * MEGABYTE)
    yield "a megabyte of white space", line() + b" " * MEGABYTE
    yield "a megabyte of brackets", b"[" * MEGABYTE
    yield "a megabyte of nothing", b"\0" * MEGABYTE
    yield "a megabyte of bad bytes", b"\xff" * MEGABYTE


def _no_partition_field() -> Cases:
    for value in (ABSENT, None, "", 1.5, True, [], {}, ["k"], 1e20):
        yield f"partition key is {_show(value)}", line({"partitionKey": value})


def _show(value: object) -> str:
    return "absent" if value is ABSENT else ascii(value)[:40]


_TABLE: Final = (
    (None, _legal),
    (Reason.NOT_JSON, _not_json),
    (Reason.INVALID_UNICODE, _invalid_unicode),
    (Reason.DUPLICATE_KEY, _duplicate_key),
    (Reason.TOO_DEEP, _too_deep),
    (Reason.NUMBER_NOT_REPRESENTABLE, _number_not_representable),
    (Reason.NOT_AN_ENVELOPE, _not_an_envelope),
    (Reason.IDENTITY_INVALID, _identity_invalid),
    (Reason.UNKNOWN_EVENT_TYPE, _unknown_event_type),
    (Reason.UNKNOWN_SCHEMA_VERSION, _unknown_schema_version),
    (Reason.SCHEMA_VIOLATION, _schema_violation),
    (Reason.TIMESTAMP_INVALID, _timestamp_invalid),
    (Reason.TOO_FAR_IN_FUTURE, _too_far_in_future),
    (Reason.TOO_OLD, _too_old),
    (Reason.PAYLOAD_TOO_LARGE, _payload_too_large),
    (Reason.NO_PARTITION_FIELD, _no_partition_field),
)
