"""Where an admitted event goes: its topic by event type, its partition by a pinned hash or by its source.

The hash is named `sha256/8`: the first eight bytes of SHA-256 over the key's UTF-8, as an unsigned big-endian
number, modulo the partition count. It is ours, so a key's partition never changes with a client library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from admitone.core.keys import value_at


@dataclass(frozen=True, slots=True)
class Route:
    """One destination topic and its partition profile."""

    topic: str
    partitions: int
    key_fields: tuple[tuple[str, ...], ...]
    by_source: bool = False
    """The source partition chooses the partition, not the business key (RPL-4)."""
    business_keyed: bool = False
    """The record's key is the business key; the stream metadata travels in a header (RPL-8)."""
    keeps_record: bool = False
    """The record keeps the key and the headers it came with; the stream metadata travels in a header."""

    @property
    def needs_key(self) -> bool:
        """Tell whether an event without any of the key fields has nowhere to go."""
        return self.business_keyed or not self.by_source

    def business_key(self, envelope: Mapping[str, Any]) -> str | None:
        """Return the first key-precedence field that is present, or None (RTE-2)."""
        for path in self.key_fields:
            value = value_at(envelope, path)
            if type(value) is str and value:
                return value
            if type(value) is int:
                return str(value)
        return None


def partition_for(route: Route, business_key: str, source_partition: int) -> int:
    """Return the partition of a route that an event of a source partition goes to."""
    if route.by_source:
        return source_partition % route.partitions
    return partition_of(business_key, route.partitions)


def partition_of(business_key: str, partitions: int) -> int:
    """Return the partition a business key belongs to (RTE-3)."""
    head = hashlib.sha256(business_key.encode()).digest()[:8]
    return int.from_bytes(head, "big") % partitions
