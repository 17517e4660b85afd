"""What makes two records the same in a dedup pipeline: four ways to take a key from a record (DED-5).

    identity   the canonical identity: run, class and event id of an envelope
    field      one field of a JSON document, by its path: payload.orderId
    business   several fields together
    content    a hash over the canonical JSON of one part of it, the payload unless another is named

A key is made of JSON values, not of their spelling: 7 and 7.0 are one key, and "7" is another, however it is escaped.
Its text, at most 64 characters long, has one of three forms; none can be taken for another:

    order-7                a string stands for itself, unless it begins like one of the other two
    json:["m1",7]          anything else, and such a string, as canonical JSON (RFC 8785)
    sha256:OfR6...         what would be longer than 64 characters: SHA-256 over that, base64url without padding

Its identity, what a ledger stores, is a hash over the strategy, its paths and the unshortened text, each preceded by
its length; the canonical identity is the boundary's own. A record without its field has no key, but a reason.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple

from admitone.core.canonical import Refused, canonical_json, parse_strict
from admitone.core.decisions import Reason
from admitone.core.identity import identity_of, names_of

LONGEST_TEXT: Final = 64
_JSON, _HASHED = "json:", "sha256:"
_NOTHING_ELSE: Final[Mapping[str, str | None]] = {}


class KeyStrategy(StrEnum):
    """Where a key comes from."""

    IDENTITY = "identity"
    FIELD = "field"
    BUSINESS = "business"
    CONTENT = "content"


_PATHS: Final = {
    KeyStrategy.IDENTITY: (0, 0, "no key_fields"),
    KeyStrategy.FIELD: (1, 1, "one of key_fields"),
    KeyStrategy.BUSINESS: (1, 32, "1 to 32 key_fields"),
    KeyStrategy.CONTENT: (0, 1, "one of key_fields at most"),
}


class Key(NamedTuple):
    """A record's key as it is shown and kept in engine state, and as a ledger keeps it."""

    text: str
    identity: bytes


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How a record's key is made; made from the configuration once."""

    strategy: KeyStrategy
    paths: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, strategy: str, fields: Sequence[str] = ()) -> KeyRule:
        """Return the rule that a strategy and its dotted paths name, or raise `ValueError`."""
        chosen = KeyStrategy(strategy)
        fewest, most, expected = _PATHS[chosen]
        paths = tuple(tuple(field.split(".")) for field in fields)
        if not fewest <= len(paths) <= most:
            raise ValueError(f"key {strategy!r} takes {expected}, got {len(paths)}")
        if len(set(paths)) < len(paths):
            raise ValueError("key_fields names a field twice")
        for field, path in zip(fields, paths, strict=True):
            if "" in path:
                raise ValueError(f"expected a path such as payload.orderId, got {field!r}")
        return cls(chosen, paths)

    def read(
        self, raw: bytes | None, outside: Mapping[str, str | None] = _NOTHING_ELSE
    ) -> Key | Reason:
        """Return the key of a record's bytes, or why it has none."""
        if raw is None:
            return Reason.NOT_JSON
        try:
            return self.key_of(parse_strict(raw), outside)
        except Refused as refused:
            return refused.reason

    def key_of(
        self, document: Any, outside: Mapping[str, str | None] = _NOTHING_ELSE
    ) -> Key | Reason:
        """Return the key of a document that `parse_strict` returned, or why it has none.

        What an envelope may leave out of its identity comes from outside: headers, settings.
        """
        if type(document) is not dict:
            return Reason.NOT_AN_ENVELOPE
        if self.strategy is KeyStrategy.IDENTITY:
            return _canonical(document, outside)
        if self.strategy is KeyStrategy.CONTENT:
            content = value_at(document, self.paths[0] if self.paths else ("payload",))
            if content is None:
                return Reason.IDENTITY_INVALID
            return self._made(_HASHED + _digest(canonical_json(content)))
        values = [value_at(document, path) for path in self.paths]
        if not all(map(_names_something, values)):
            return Reason.IDENTITY_INVALID
        return self._made(spelled(values[0] if self.strategy is KeyStrategy.FIELD else values))

    @property
    def label(self) -> str:
        """Return the rule as one text: `identity`, `field["payload.orderId"]`."""
        return _label(self.strategy, self.paths)

    @classmethod
    def from_label(cls, label: str) -> KeyRule:
        """Return the rule behind a label, or raise `ValueError`."""
        strategy, found, fields = label.partition("[")
        return cls.of(strategy, json.loads(found + fields) if found else ())

    def identity_of_text(self, text: str) -> bytes | None:
        """Return the identity behind a key's text; None where the text was shortened."""
        if self.strategy is KeyStrategy.IDENTITY:
            return identity_of(*json.loads(text[len(_JSON) :])) if text.startswith(_JSON) else None
        if text.startswith(_HASHED) and self.strategy is not KeyStrategy.CONTENT:
            return None
        return self._made(text).identity

    def _made(self, text: str) -> Key:
        encoded = f"{_encoded_rule(self.strategy, self.paths)}{len(text)}:{text}"
        return Key(shortened(text), hashlib.sha256(encoded.encode()).digest())


def spelled(value: Any) -> str:
    """Return the text of a JSON value; two different values never share one."""
    if type(value) is str and not value.startswith((_JSON, _HASHED)):
        return value
    return _JSON + canonical_json(value).decode()


def shortened(text: str) -> str:
    """Return the text, or its hash where it is longer than 64 characters."""
    return text if len(text) <= LONGEST_TEXT else _HASHED + _digest(text.encode())


@cache
def _label(strategy: str, paths: tuple[tuple[str, ...], ...]) -> str:
    fields = [".".join(path) for path in paths]
    return str(strategy) + (canonical_json(fields).decode() if fields else "")


@cache
def _encoded_rule(strategy: str, paths: tuple[tuple[str, ...], ...]) -> str:
    parts = [strategy, str(len(paths))]
    for path in paths:
        parts += [str(len(path)), *path]
    return "admitone/key/1\0" + "".join(f"{len(part)}:{part}" for part in parts)


def _canonical(document: Mapping[str, Any], outside: Mapping[str, str | None]) -> Key | Reason:
    metadata = document.get("metadata")
    if type(metadata) is not dict:
        return Reason.NOT_AN_ENVELOPE
    who = [*names_of(metadata, outside)]
    for name in who:
        if type(name) is not str or not name:
            return Reason.IDENTITY_INVALID
    return Key(shortened(spelled(who)), identity_of(*who))


def value_at(document: Any, path: tuple[str, ...]) -> Any:
    """Return the value at a path; None where there is none."""
    for name in path:
        document = document.get(name) if type(document) is dict else None
    return document


def _names_something(value: Any) -> bool:
    """Tell whether a value can be part of a key: not if it is absent, null, empty, a list or an object."""
    return value is not None and value != "" and type(value) not in (dict, list)


def _digest(data: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
