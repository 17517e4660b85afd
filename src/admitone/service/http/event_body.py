"""From the body of a request to the bytes of each event in it, untouched.

An event is judged by its own bytes: a parser would drop a key that is there twice and spell numbers its own way. So an
array is only cut where its commas are.
"""

from __future__ import annotations

import re
from typing import Final

# A string that is never closed is taken to the end, so that no byte is looked at twice.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
_SPACE: Final = b" \t\r\n"
_NEST: Final = {b"[": 1, b"{": 1, b"]": -1, b"}": -1}


class NotAnArray(ValueError):
    """A body that cannot be cut into events."""


def events_in(body: bytes, *, lines: bool) -> list[bytes]:
    """Return the events of a body: one for each line, the elements of an array, or a single object."""
    if lines:
        return [line for line in (line.strip(_SPACE) for line in body.split(b"\n")) if line]
    body = body.strip(_SPACE)
    if body.startswith(b"{"):
        return [body]
    return _elements(body)


def _elements(body: bytes) -> list[bytes]:
    if not body.startswith(b"["):
        raise NotAnArray("expected an array of events, or one event")
    found: list[bytes] = []
    depth, start = 0, 1
    for token in _TOKEN.finditer(body):
        text = token.group()
        if text[:1] == b'"':
            if len(text) < 2 or not text.endswith(b'"'):
                raise NotAnArray("a string is never closed")
            continue
        depth += _NEST.get(text, 0)
        ends = depth == 0 or (depth == 1 and text == b",")
        if not ends:
            continue
        found.append(body[start : token.start()].strip(_SPACE))
        start = token.end()
        if depth == 0:
            break
    if depth or body[start:].strip(_SPACE):
        raise NotAnArray("the array does not end where the body does")
    if found == [b""]:
        return []
    if b"" in found:
        raise NotAnArray("there is nothing between two commas")
    return found
