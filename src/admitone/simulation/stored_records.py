"""What a simulated log holds: pieces of appended records, in the partitions of topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from admitone.core.contract import Keeping
from admitone.transport.headers import listed
from admitone.transport.port import LOG_APPEND_TIME, RECORD_SCHEMA, Topic


@dataclass(eq=False)
class Piece:
    """Records of one append in one partition."""

    topic: TopicRecords
    partition: int
    offsets: np.ndarray
    rows: pa.Table
    append_time: int
    committed: bool = False

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """Return the records as a reader gets them."""
        size, rows = len(self.offsets), listed(self.rows).combine_chunks()
        columns = [
            rows["key"].combine_chunks(), rows["value"].combine_chunks(),
            pa.repeat(self.topic.topic.name, size), pa.repeat(pa.scalar(self.partition, pa.int32()), size),
            pa.array(self.offsets),
            pa.repeat(pa.scalar(self.append_time * 1_000, pa.timestamp("us", tz="UTC")), size),
            pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), size),
            rows["headers"].combine_chunks(),
        ]  # fmt: skip
        return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)

    def keep(self, chosen: np.ndarray) -> Piece:
        """Return the piece with some of its records."""
        rows = self.rows.filter(pa.array(chosen))
        return Piece(
            self.topic, self.partition, self.offsets[chosen], rows, self.append_time, self.committed
        )

    def between(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield what it holds of a range."""
        low, high = np.searchsorted(self.offsets, [start, end]).tolist()
        if low < high:
            yield self.batch.slice(low, high - low)


@dataclass(eq=False)
class PartitionRecords:
    """A partition: where it begins, where it ends, what it holds."""

    start: int = 0
    next_offset: int = 0
    append_time: int = 0
    pieces: list[Piece] = field(default_factory=list)
    open_at: dict[str, int] = field(default_factory=dict)
    """The first offset of each producer's open transaction."""

    @property
    def readable_end(self) -> int:
        """Return the first offset of an open transaction, or the end."""
        return min(self.open_at.values(), default=self.next_offset)


@dataclass(eq=False)
class TopicRecords:
    """An incarnation of a topic."""

    topic: Topic
    keeping: Keeping
    partitions: list[PartitionRecords]
