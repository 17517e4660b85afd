"""Was any identity admitted twice? Answered by sorting all admissions of a run, not by the ledger's keys.

Rows are identities as they were computed again, with the event's time and its delivery. An identity whose key expired
may be admitted once more: then the two are a retention apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from admitone.infra.spilled_rows import SpilledRows

_IDENTITY: Final = slice(0, 4)
_TIME, _BLOCK, _ORDINAL, _WIDTH = 4, 5, 6, 7
_EXAMPLES: Final = 5
Longs = npt.NDArray[np.int64]


class OnceAudit:
    """Collects the admissions of a run and looks for identities among them that are there twice."""

    def __init__(self) -> None:
        self._rows = SpilledRows(_WIDTH)
        self.repeated = 0
        self.examples: list[str] = []

    @property
    def admissions(self) -> int:
        """Return how many admissions were collected."""
        return self._rows.added

    def add(
        self, identities: Sequence[bytes], event_times: Longs, block_id: int, ordinals: Longs
    ) -> None:
        """Add admissions of a block; one whose identity could not be computed is left out, and found elsewhere."""
        known = np.array([len(identity) == 32 for identity in identities], dtype=bool)
        rows = np.empty((int(known.sum()), _WIDTH), dtype=np.uint64)
        joined = b"".join(identity for identity in identities if len(identity) == 32)
        rows[:, _IDENTITY] = np.frombuffer(joined, ">u8").reshape(-1, 4)
        rows[:, _TIME] = event_times[known].astype(np.uint64)
        rows[:, _BLOCK], rows[:, _ORDINAL] = block_id, ordinals[known]
        self._rows.add(rows[:, 0] >> np.uint64(58), rows)

    def compare(self, retention_ms: int) -> None:
        """Sort what was collected and count what is there more than once."""
        for _, rows in self._rows.buckets():
            for one, other in _pairs(rows, retention_ms):
                self.repeated += 1
                if len(self.examples) < _EXAMPLES:
                    self.examples.append(f"{_delivery(one)} and {_delivery(other)}")
        self._rows.close()


def _pairs(
    rows: npt.NDArray[np.uint64], retention_ms: int
) -> Iterator[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]]:
    times = rows[:, _TIME].astype(np.int64)
    order = np.lexsort((rows[:, _BLOCK], times, *(rows[:, column] for column in range(4))))
    rows, times = rows[order], times[order]
    same = (rows[1:, _IDENTITY] == rows[:-1, _IDENTITY]).all(axis=1)
    near = times[1:] - times[:-1] < retention_ms
    for index in np.flatnonzero(same & near).tolist():
        yield rows[index], rows[index + 1]


def _delivery(row: npt.NDArray[np.uint64]) -> str:
    return f"{int(row[_BLOCK])}-{int(row[_ORDINAL])}"
