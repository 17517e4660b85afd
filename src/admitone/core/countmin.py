"""Count-Min: how often was this item counted, at most?

How it works. `depth` rows of `width` counters. An item has one cell in every row, chosen by a hash of its own; adding
weight w adds w to each of its cells. Other items can only add to those cells, so each of them, and therefore the
smallest, is at least the item's true count: the estimate is a *certain* upper bound, never a lower one.

    cell(row, item) = xxh3_64(item as UTF-8, seed = row) mod width

Bytes, little-endian:

    magic      4 bytes   "ACMS"
    version    uint8     1
    bits       uint8     32 or 64
    depth      uint16
    width      uint32
    cells      zstd of depth x width counters, row by row

Example, width 4, depth 2. "a" has the cells 1 and 3, "b" the cells 1 and 0. After a x 5 and b x 2 the rows are
[0 7 0 0] and [2 0 0 5]: a is at most min(7, 5) = 5, b at most min(7, 2) = 2.

Bound. With width w and depth d the estimate exceeds the truth by more than e/w of the total with a probability of at
most e**-d: 0.27 % of the total and 0.7 % for 1024 x 5. Merging adds cell by cell, and gives the sketch that one pass
over both streams would have given.

Saturation. A counter stops at its largest value and bounds nothing from then on; it reads as the total, and
`saturated` says so.

Cormode, Muthukrishnan: An improved data stream summary: the Count-Min Sketch and its applications (2005).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from admitone.core.errors import IntegrityError

_MAGIC: Final = b"ACMS"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sBBHI")
_TYPES: Final[dict[int, Any]] = {32: np.dtype("<u4"), 64: np.dtype("<u8")}

Cells = npt.NDArray[np.int64]


def cells_of(item: str, width: int, depth: int) -> list[int]:
    """Return the item's cell in every row, counted through all rows."""
    encoded = item.encode()
    digest = xxhash.xxh3_64_intdigest
    return [row * width + digest(encoded, row) % width for row in range(depth)]


class CountMin:
    """Counters that never report too little."""

    __slots__ = ("bits", "cells", "depth", "width")

    def __init__(self, width: int, depth: int, bits: int = 32, cells: Any = None) -> None:
        self.width = width
        self.depth = depth
        self.bits = bits
        self.cells: npt.NDArray[Any] = (
            np.zeros(width * depth, _TYPES[bits]) if cells is None else cells
        )

    @property
    def ceiling(self) -> int:
        """Return the value at which a counter stops."""
        return (1 << self.bits) - 1

    @property
    def saturated(self) -> bool:
        """Tell whether any counter has stopped."""
        return bool((self.cells == self.ceiling).any())

    def update(self, items: Sequence[str], weights: Iterable[int]) -> None:
        """Add the weight of every item to its cells."""
        if items:
            cells = np.array([cells_of(item, self.width, self.depth) for item in items], np.int64)
            self.update_cells(cells, weights)

    def update_cells(self, cells: Cells, weights: Iterable[int]) -> None:
        """Add weights to items whose cells (one row each) are known."""
        added = np.zeros(len(self.cells), np.uint64)
        column = np.fromiter(weights, np.uint64, len(cells))
        np.add.at(added, cells.ravel(), np.repeat(column, self.depth))
        self._add(added)

    def estimate(self, item: str, total: int) -> int:
        """Return the item's certain upper bound; a cell that has stopped reads as the total."""
        counts = self.cells[cells_of(item, self.width, self.depth)].tolist()
        return min(total if count == self.ceiling else count for count in counts)

    def merge(self, other: CountMin) -> None:
        """Add another sketch of the same shape; the narrower counters are widened."""
        if (self.width, self.depth) != (other.width, other.depth):
            raise ValueError(
                f"cannot merge Count-Min {other.width}x{other.depth} into {self.width}x{self.depth}: "
                "merge only equal shapes"
            )
        if self.bits < other.bits:
            self.cells, self.bits = self._widened(), other.bits
        self._add(other._widened())

    def to_bytes(self) -> bytes:
        """Return the versioned, compressed form."""
        header = _HEADER.pack(_MAGIC, _VERSION, self.bits, self.depth, self.width)
        compressed: bytes = pa.Codec("zstd", 1).compress(self.cells.tobytes(), asbytes=True)
        return header + compressed

    @classmethod
    def from_bytes(cls, data: bytes) -> CountMin:
        """Read what `to_bytes` wrote, and refuse what a newer release wrote."""
        if len(data) < _HEADER.size or data[:4] != _MAGIC:
            raise IntegrityError("These bytes are no Count-Min sketch.", "restore the store")
        _, version, bits, depth, width = _HEADER.unpack_from(data)
        if version != _VERSION or bits not in _TYPES:
            raise IntegrityError(
                f"Expected a Count-Min sketch of version {_VERSION}, got version {version}.",
                "use the release that wrote it, or a newer one",
            )
        size = width * depth * bits // 8
        raw = pa.Codec("zstd").decompress(data[_HEADER.size :], size, asbytes=True)
        return cls(width, depth, bits, np.frombuffer(raw, _TYPES[bits]))

    def _widened(self) -> npt.NDArray[np.uint64]:
        wide = self.cells.astype(np.uint64)
        if self.bits == 32 and self.saturated:
            # What had stopped at 32 bits must not start counting again at 64.
            wide[self.cells == self.ceiling] = (1 << 64) - 1
        return wide

    def _add(self, added: npt.NDArray[np.uint64]) -> None:
        total = self._widened()
        total += added
        total[total < added] = (1 << 64) - 1
        if self.bits == 32:
            np.minimum(total, self.ceiling, out=total)
        self.cells = total.astype(_TYPES[self.bits])
