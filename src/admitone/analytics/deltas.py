"""From sums to one delta per minute and list, where the rows of `counting.count_batches` were brought together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from admitone.analytics.counting import rows_to_batch
from admitone.core.countmin import Cells
from admitone.core.sketches import SketchParameters, WindowSketch

DELTA_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("minute", pa.int64()),
        ("sketch", pa.binary()),
        ("summary", pa.binary()),
        ("meta", pa.binary()),
    ]
)

_ROWS_PER_BATCH: Final = 500


def build_deltas(
    parameters: SketchParameters, counted_at: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sum equal items and build one sketch per minute and list; progress rows pass through."""
    sums: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    late: dict[tuple[str, int], int] = defaultdict(int)
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        for kind, name, minute, payload in zip(
            *(c.to_pylist() for c in batch.columns), strict=True
        ):
            if kind == "count":
                sums[name, minute].append(payload)
            elif kind == "late":
                late[name, minute] += orjson.loads(payload)
            else:
                rows.append((kind, name, minute, b"", b"", payload))
    cells = _CellTable(parameters)
    for place in sums.keys() | late.keys():
        sketch = WindowSketch(parameters)
        counts = _summed(sums.get(place, ()))
        sketch.update(counts, *cells.of(counts))
        sketch.late = late.get(place, 0)
        sketch.updated_at = counted_at
        rows.append(("delta", *place, *sketch.to_bytes()))
        if len(rows) >= _ROWS_PER_BATCH:
            yield rows_to_batch(rows, DELTA_SCHEMA)
            rows = []
    yield rows_to_batch(rows, DELTA_SCHEMA)


class _CellTable:
    """Cells and hash of every item of a task, computed once however many lists it is in."""

    def __init__(self, parameters: SketchParameters) -> None:
        self._width = parameters.width
        self._depth = parameters.depth
        self._rows: dict[str, int] = {}
        self._cells: Cells = np.zeros((1024, parameters.depth), np.int64)
        self._hashes: list[int] = []

    def of(self, items: Iterable[str]) -> tuple[Cells, list[int]]:
        """Return the cells (one row each) and the distinct hashes of some items."""
        known = self._rows
        rows = [known[item] if item in known else self._learn(item) for item in items]
        return self._cells[rows], [self._hashes[row] for row in rows]

    def _learn(self, item: str) -> int:
        row = self._rows[item] = len(self._hashes)
        if row == len(self._cells):
            self._cells = np.concatenate([self._cells, np.zeros_like(self._cells)])
        encoded = item.encode()
        digests = [xxhash.xxh3_64_intdigest(encoded, seed) for seed in range(self._depth)]
        self._cells[row] = [seed * self._width + d % self._width for seed, d in enumerate(digests)]
        # The first row's seed is 0, which is also what the distinct count hashes with.
        self._hashes.append(digests[0] - (1 << 63))
        return row


def _summed(payloads: Iterable[bytes]) -> dict[str, int]:
    total: dict[str, int] = {}
    for payload in payloads:
        counts = orjson.loads(payload)
        if len(counts) > len(total):
            total, counts = counts, total
        for item, weight in counts.items():
            total[item] = total.get(item, 0) + weight
    return total
