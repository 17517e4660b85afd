"""Stream metadata: where a record comes from, in twenty bytes.

Layout, big-endian, so that byte order is offset order within a producer and partition:

    producer id   int64    8 bytes   who wrote it and from which incarnation of which topic
    partition     int32    4 bytes   the source partition
    offset        int64    8 bytes   the source offset

Example: producer 1, partition 2, offset 3 is 0000000000000001 00000002 0000000000000003.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

_LAYOUT = struct.Struct(">qiq")
KEY_BYTES = _LAYOUT.size


class StreamMetadata(NamedTuple):
    """A source position that a record carries as its key."""

    producer_id: int
    partition: int
    offset: int

    def to_bytes(self) -> bytes:
        """Return the 20-byte record key."""
        return _LAYOUT.pack(*self)

    @classmethod
    def from_bytes(cls, key: bytes | None) -> StreamMetadata | None:
        """Return the metadata a key holds, or None when the key is something else."""
        if key is None or len(key) != KEY_BYTES:
            return None
        found = cls(*_LAYOUT.unpack(key))
        return None if found.partition < 0 or found.offset < 0 else found


def producer_id(pipeline: str, stream: str, cluster: str, topic_id: str) -> int:
    """Return the stable id of a producer reading one incarnation of one topic.

    The topic's identity is part of it, so a topic that was deleted and recreated starts a new
    producer instead of being taken for a replay of the old one.
    """
    digest = hashlib.sha256()
    for part in (pipeline, stream, cluster, topic_id):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


def destination_partition(source_partition: int, destination_count: int) -> int:
    """Return where the source-partition partitioner sends a record."""
    return source_partition % destination_count
