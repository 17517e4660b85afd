"""Rows of numbers that may be more than memory holds: kept in buckets on the disk, read back bucket by bucket.

What belongs together has the same bucket, so that each can be sorted and compared by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.uint64]
_HELD_BYTES = 32 << 20


class SpilledRows:
    """Collects rows of unsigned numbers by bucket; beyond a few megabytes they go to files of its own."""

    def __init__(self, width: int, held_bytes: int = _HELD_BYTES) -> None:
        self._width = width
        self._most = max(1, held_bytes // (8 * width))
        self._held: list[tuple[Longs, Longs]] = []
        self._groups: dict[int, Longs] = {}
        self._rows = 0
        self._folder: TemporaryDirectory[str] | None = None
        self.added = 0

    def add(self, buckets: npt.NDArray[np.uint64], rows: Longs) -> None:
        """Add rows, each with the number of its bucket."""
        if not len(rows):
            return
        self._held.append((buckets.astype(np.uint64), rows))
        self._rows += len(rows)
        self.added += len(rows)
        if self._rows >= self._most:
            self._spill()

    def numbers(self) -> list[int]:
        """Return the numbers of all buckets that hold rows, in their order; from now on nothing is added."""
        if self._folder is None:
            self._groups = dict(self._grouped())
            return list(self._groups)
        self._spill()
        return sorted(int(file.name) for file in Path(self._folder.name).iterdir())

    def bucket(self, number: int) -> Longs:
        """Return the rows of a bucket."""
        if self._folder is None:
            return self._groups[number]
        return np.fromfile(self._file(number), np.uint64).reshape(-1, self._width)

    def buckets(self) -> Iterator[tuple[int, Longs]]:
        """Yield the rows of each bucket, in the order of the buckets' numbers."""
        for number in self.numbers():
            yield number, self.bucket(number)

    def close(self) -> None:
        """Forget everything, also what lies on the disk."""
        self._held, self._groups, self._rows = [], {}, 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _grouped(self) -> Iterator[tuple[int, Longs]]:
        if not self._held:
            return
        buckets = np.concatenate([bucket for bucket, _ in self._held])
        rows = np.concatenate([rows for _, rows in self._held])
        order = np.argsort(buckets, kind="stable")
        numbers, starts = np.unique(buckets[order], return_index=True)
        edges = [*starts.tolist(), len(order)]
        for index, number in enumerate(numbers.tolist()):
            yield number, rows[order[edges[index] : edges[index + 1]]]

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="admitone-audit-", ignore_cleanup_errors=True)
        for bucket, rows in self._grouped():
            with self._file(bucket).open("ab") as file:
                rows.tofile(file)
        self._held, self._rows = [], 0

    def _file(self, bucket: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / str(bucket)
