"""The heaviest items with bounds, and how many different items there are.

How it works. The items: a Misra-Gries / Space-Saving class summary (DataSketches' frequent items).
It counts items in a table; when the table is full, the median count is subtracted from all and
what falls to zero is dropped. The sum of what was ever subtracted is the *offset*: for an item
with count c in the table, c <= true <= c + offset; for one that is not, true <= offset. While
nothing was dropped the offset is 0 and every count is exact. Merging adds the offsets, so bounds
hold for any tree of merges. A table that lost all its items at once still has an offset, which the
binding drops when it writes or merges such a table; so we carry that part ourselves, as
*forgotten*. The different items: HyperLogLog, fed with a 64-bit hash of each item because the
binding ignores the empty string.

Bytes, little-endian:

    magic      4 bytes   "ASUM"
    version    uint8     1
    form       uint8     0: zstd, 1: as it is
    spare      2 bytes   0
    items      uint32    length of the items' part
    distinct   uint32    length of the distinct part
    forgotten  uint64    what emptied tables had subtracted
    parts      both, one after the other, in DataSketches' own portable forms

Example. Table of 3; the stream a a a b b c d. At d the table is full, the median 2 is subtracted:
a = 1, offset 2. So 1 <= a <= 3 (true 3), and everything else is at most 2.

Bound. The table holds 0.75 x 2**lg items and the offset stays below 3.5 / 2**lg of the total: 0.17
% for K = 100 (lg 11). HyperLogLog with 2**12 registers has a relative standard error of 1.6 %.

Anderson et al.: A high-performance algorithm for identifying frequent items in data streams
(2017). Flajolet et al.: HyperLogLog (2007).

The binding reports sketches that outlive the interpreter's modules as leaks: keep none in module
globals or caches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import datasketches
import pyarrow as pa
import xxhash

from admitone.core.sketch_header import checked_header

_MAGIC: Final = b"ASUM"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sBB2xIIQ")
_LG_REGISTERS: Final = 12
_SMALL_BYTES: Final = 512


class Bounds(NamedTuple):
    """What is known of one item's count: lower <= true <= upper."""

    lower: int
    upper: int


def lg_size_for(k: int) -> int:
    """Return the smallest table that holds eight times K items."""
    lg = 3
    while 0.75 * (1 << lg) < 8 * k:
        lg += 1
    return lg


def distinct_hash(item: str) -> int:
    """Return the signed 64-bit hash under which an item is counted once."""
    return xxhash.xxh3_64_intdigest(item.encode()) - (1 << 63)


class Summary:
    """Top items and distinct count of one stream of items."""

    __slots__ = ("_distinct", "_forgotten", "_items")

    def __init__(self, k: int) -> None:
        self._items: Any = datasketches.frequent_strings_sketch(lg_size_for(k))
        self._distinct: Any = datasketches.hll_union(_LG_REGISTERS)
        self._forgotten = 0

    @property
    def offset(self) -> int:
        """Return how much an item may have been counted beyond what the table says; 0 is exact."""
        # Any item shows it: its bounds lie one offset apart, in the table or not.
        within: int = self._items.get_upper_bound("") - self._items.get_lower_bound("")
        return within + self._forgotten

    def update(self, counts: Mapping[str, int], hashes: Iterable[int]) -> None:
        """Add items with their weights; the hashes are what `distinct_hash` says of each."""
        add, count = self._items.update, self._distinct.update
        for item, weight in counts.items():
            add(item, weight)
        for digest in hashes:
            count(digest)

    def merge(self, other: Summary) -> None:
        """Add another summary; its offset adds to ours."""
        if other._items.num_active_items:
            self._items.merge(other._items)
            self._forgotten += other._forgotten
        else:
            self._forgotten += other.offset
        self._distinct.update(other._registers())

    def bounds(self, item: str) -> Bounds:
        """Return what the table knows about an item."""
        lower = self._items.get_lower_bound(item)
        return Bounds(lower, lower + self.offset)

    def entries(self) -> list[tuple[str, Bounds]]:
        """Return every item of the table."""
        every = datasketches.frequent_items_error_type.NO_FALSE_NEGATIVES
        offset = self.offset
        return [
            (item, Bounds(lower, lower + offset))
            for item, _, lower, _ in self._items.get_frequent_items(every, 0)
        ]

    def distinct(self) -> int:
        """Return how many different items there are: exact while nothing was dropped."""
        active: int = self._items.num_active_items
        return active if self.offset == 0 else max(active, round(self._distinct.get_estimate()))

    def to_bytes(self) -> bytes:
        """Return the versioned, compressed form."""
        items = self._items.serialize()
        distinct = self._registers().serialize_compact()
        forgotten = self._forgotten if self._items.num_active_items else self.offset
        parts: bytes = items + distinct
        small = len(parts) <= _SMALL_BYTES
        header = _HEADER.pack(_MAGIC, _VERSION, small, len(items), len(distinct), forgotten)
        return header + (parts if small else pa.Codec("zstd", 1).compress(parts, asbytes=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> Summary:
        """Read what `to_bytes` wrote, and refuse what a newer release wrote."""
        small, items, distinct, forgotten = checked_header(
            data, _HEADER, _MAGIC, _VERSION, "top-K summary"
        )
        parts = data[_HEADER.size :]
        if not small:
            parts = pa.Codec("zstd").decompress(parts, items + distinct, asbytes=True)
        summary = cls.__new__(cls)
        summary._items = datasketches.frequent_strings_sketch.deserialize(parts[:items])
        summary._distinct = datasketches.hll_union(_LG_REGISTERS)
        summary._distinct.update(datasketches.hll_sketch.deserialize(parts[items:]))
        summary._forgotten = forgotten
        return summary

    def _registers(self) -> Any:
        return self._distinct.get_result(datasketches.tgt_hll_type.HLL_4)
