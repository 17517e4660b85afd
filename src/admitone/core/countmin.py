"""Count-Min: how often was this item counted, at most?

How it works. `depth` rows of `width` counters. An item has one cell in every row, chosen by a hash
of its own; adding weight w adds w to each of its cells. Other items can only add to those cells,
so each of them, and therefore the smallest, is at least the item's true count: the estimate is a
*certain* upper bound, never a lower one.

    cell(row, item) = xxh3_64(item as UTF-8, seed = row) mod width

Bytes, little-endian:

    magic      4 bytes   "ACMS"
    version    uint8     1
    bits       uint8     32 or 64: where a counter stops
    depth      uint16
    width      uint32
    form       uint8     0: all counters; 1, 2, 4 or 8: only those above 0, with so many bytes each
    spare      3 bytes   0
    cells      form 0: zstd of depth x width counters, row by row
               else: the positions (uint16, or uint32 where there are more), then the counters

Example, width 4, depth 2. "a" has the cells 1 and 3, "b" the cells 1 and 0. After a x 5 and b x 2
the rows are [0 7 0 0] and [2 0 0 5]: a is at most min(7, 5) = 5, b at most min(7, 2) = 2.

Bound. With width w and depth d the estimate exceeds the truth by more than e/w of the total with a
probability of at most e**-d: 0.27 % of the total and 0.7 % for 1024 x 5. Merging adds cell by
cell, and gives the sketch that one pass over both streams would have given.

Saturation. A counter stops at its largest value and bounds nothing from then on; it reads as the
total, and `saturated` says so.

Cormode, Muthukrishnan: An improved data stream summary: the Count-Min Sketch and its applications
(2005).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from admitone.core.sketch_header import checked_header

_MAGIC: Final = b"ACMS"
_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sBBHIB3x")
_COUNTERS: Final[dict[int, Any]] = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_STOPPED: Final = (1 << 64) - 1
_FEW_CELLS: Final = 160

Cells = npt.NDArray[np.int64]


def cells_of(item: str, width: int, depth: int) -> list[int]:
    """Return the item's cell in every row, counted through all rows."""
    encoded = item.encode()
    digest = xxhash.xxh3_64_intdigest
    return [row * width + digest(encoded, row) % width for row in range(depth)]


class CountMin:
    """Counters that never report too little."""

    __slots__ = ("bits", "cells", "depth", "width")

    def __init__(self, width: int, depth: int, bits: int = 32) -> None:
        self.width = width
        self.depth = depth
        self.bits = bits
        # 64 bits in memory whatever is stored, and one value for "stopped".
        self.cells: npt.NDArray[np.uint64] = np.zeros(width * depth, np.uint64)

    @property
    def saturated(self) -> bool:
        """Tell whether any counter has stopped."""
        return bool(self.cells.max() == _STOPPED)

    def update(self, cells: Cells, weights: Iterable[int]) -> None:
        """Add the weight of every item to its cells, one row of them for each item."""
        added = np.zeros(len(self.cells), np.uint64)
        column = np.fromiter(weights, np.uint64, len(cells))
        np.add.at(added, cells.ravel(), np.repeat(column, self.depth))
        self._add(added)

    def estimate(self, item: str, total: int) -> int:
        """Return the item's certain upper bound; a cell that has stopped reads as the total."""
        return self.estimates([item], total)[0]

    def estimates(self, items: Sequence[str], total: int) -> list[int]:
        """Return the same for many items."""
        if not items:
            return []
        cells = np.array([cells_of(item, self.width, self.depth) for item in items], np.int64)
        # A cell that has stopped holds the largest number there is.
        lowest: list[int] = self.cells[cells].min(axis=1).tolist()
        return [total if count == _STOPPED else count for count in lowest]

    def merge(self, other: CountMin) -> None:
        """Add another sketch of the same shape; its counters may be wider or narrower."""
        if (self.width, self.depth) != (other.width, other.depth):
            raise ValueError(
                f"cannot merge Count-Min {other.width}x{other.depth} into "
                f"{self.width}x{self.depth}: "
                "merge only equal shapes"
            )
        self._add(other.cells)

    def to_bytes(self) -> bytes:
        """Return the versioned, compact form."""
        positions = self.cells.nonzero()[0]
        if len(positions) > _FEW_CELLS:
            form = 0
            stored = np.minimum(self.cells, (1 << self.bits) - 1).astype(_COUNTERS[self.bits // 8])
            body: bytes = pa.Codec("zstd", 1).compress(stored.tobytes(), asbytes=True)
        else:
            counters = np.minimum(self.cells[positions], (1 << self.bits) - 1)
            largest = int(counters.max(initial=0))
            form = next(size for size in _COUNTERS if largest < 1 << 8 * size)
            body = (
                positions.astype(self._position).tobytes()
                + counters.astype(_COUNTERS[form]).tobytes()
            )
        return _HEADER.pack(_MAGIC, _VERSION, self.bits, self.depth, self.width, form) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> CountMin:
        """Read what `to_bytes` wrote, and refuse what a newer release wrote."""
        bits, depth, width, form = checked_header(
            data, _HEADER, _MAGIC, _VERSION, "Count-Min sketch"
        )
        sketch = cls(width, depth, bits)
        if form == 0:
            size = width * depth * bits // 8
            raw = pa.Codec("zstd").decompress(data[_HEADER.size :], size, asbytes=True)
            sketch.cells = np.frombuffer(raw, _COUNTERS[bits // 8]).astype(np.uint64)
        else:
            entry = form + sketch._position.itemsize
            count = (len(data) - _HEADER.size) // entry
            positions = np.frombuffer(data, sketch._position, count, _HEADER.size)
            after = _HEADER.size + positions.nbytes
            sketch.cells[positions] = np.frombuffer(data, _COUNTERS[form], count, after)
        sketch._stop()
        return sketch

    @property
    def _position(self) -> np.dtype[Any]:
        return np.dtype("<u2") if self.width * self.depth <= 1 << 16 else np.dtype("<u4")

    def _add(self, added: npt.NDArray[np.uint64]) -> None:
        total = self.cells + added
        wrapped = total < added
        if wrapped.any():
            total[wrapped] = _STOPPED
        self.cells = total
        self._stop()

    def _stop(self) -> None:
        ceiling = (1 << self.bits) - 1
        if self.cells.max() >= ceiling:
            self.cells[self.cells >= ceiling] = _STOPPED
