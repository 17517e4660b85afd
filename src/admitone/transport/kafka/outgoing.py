"""What goes to one Kafka topic in an append, and what the broker answered for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, Message

from admitone.transport.headers import Pairs, listed, pairs_of
from admitone.transport.kafka.complaints import FENCED, REFUSED

Report = Callable[[KafkaError | None, Message], None]
Line = tuple[int, bytes | None, bytes | None, Pairs, Report]
_RECORD_OVERHEAD = 100
_HEADER_OVERHEAD = 10
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE})


class Part:
    """The records of one topic, in the order handed over, and where they went."""

    def __init__(self, topic: str, table: pa.Table) -> None:
        self.topic = topic
        self.rows = table.num_rows
        self._table = table
        self._partitions = table["partition"].to_numpy()
        self.errors: list[KafkaError] = []
        """What went wrong with single records: one failure takes the rest of a queue with it."""
        # Reports of one partition come in the order of its records, unless something fails.
        self._delivered: dict[int, list[int | None]] = {}
        self._last: dict[int, Message] = {}
        self._reports = {n: self._report(n) for n in np.unique(self._partitions).tolist()}

    @property
    def failed(self) -> bool:
        """Whether a record was not delivered."""
        return bool(self.errors)

    @property
    def appended_at(self) -> int:
        """Return the log's time of the last record."""
        return max((message.timestamp()[1] for message in self._last.values()), default=0)

    def lines(self, start: int, end: int) -> Iterator[Line]:
        """Yield what to produce, each with the function that takes its delivery report."""
        table = self._table.slice(start, end - start)
        reports = self._reports
        for partition, key, value, headers in zip(
            self._partitions[start:end].tolist(),
            table["key"].to_pylist(),
            table["value"].to_pylist(),
            pairs_of(table),
            strict=True,
        ):
            yield partition, key, value, headers, reports[partition]

    def pieces(self, together: int | None) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows of so many bytes at most, or all rows at once."""
        if together is None:
            yield 0, self.rows
            return
        start, sizes = 0, Sizes(self._table)
        while start < self.rows:
            end = sizes.end(start, together)
            yield start, end
            start = end

    def offsets(self) -> pa.Int64Array:
        """Return where each record went; none where the broker did not say."""
        given = np.empty(self.rows, dtype=object)
        for partition, offsets in self._delivered.items():
            given[self._partitions == partition] = offsets
        return pa.array(given, pa.int64())

    def _report(self, partition: int) -> Report:
        delivered = self._delivered[partition] = []
        note, fail, last = delivered.append, self.errors.append, self._last

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                fail(error)
            else:
                note(message.offset())
                last[partition] = message

        return report


class Sizes:
    """How many bytes the records of a table take as they travel, uncompressed and a little overestimated."""

    def __init__(self, table: pa.Table) -> None:
        headers = listed(table)["headers"].combine_chunks()
        entries = headers.flatten()
        inner = np.zeros(len(entries) + 1, dtype=np.int64)
        for number in (0, 1):
            inner[1:] += np.asarray(pc.binary_length(entries.field(number)).fill_null(0))
        total = np.cumsum(inner + _HEADER_OVERHEAD)
        lengths = np.asarray(headers.value_lengths().fill_null(0))
        edges = np.concatenate([[0], np.cumsum(lengths)])
        sizes = total[edges[1:]] - total[edges[:-1]] + _RECORD_OVERHEAD
        for name in ("key", "value"):
            sizes += np.asarray(pc.binary_length(table[name]).fill_null(0))
        self._up_to = np.concatenate([[0], np.cumsum(sizes)])

    def between(self, start: int, end: int) -> int:
        """Return the bytes of a range of rows."""
        return int(self._up_to[end] - self._up_to[start])

    def end(self, start: int, together: int) -> int:
        """Return where a piece of so many bytes at most ends; what is larger travels alone."""
        within = np.searchsorted(self._up_to, self._up_to[start] + together, side="right") - 1
        return max(start + 1, int(within))


def says_nothing(error: KafkaError) -> bool:
    """Say whether an error only tells that something else has failed."""
    return error.code() in _PURGED


def telling(error: KafkaError) -> int:
    """Return how much an error says about why an append failed; the least number says most."""
    if says_nothing(error):
        return 3
    return 0 if error.code() in FENCED else 1 if error.code() in REFUSED else 2
