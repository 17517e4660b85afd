"""The log that carries records between the steps, and what every implementation guarantees.

- *Fencing.* `init_producer(name)` gives the name a new epoch; an append under an older one fails with
  `Fenced` and leaves nothing behind, however long its process was asleep.
- *Atomic appends.* The records of one `append` become readable together or not at all, in the order given
  within each partition.
- *Offsets.* They grow within a partition and are never given twice, not even to a recreated topic, which is
  another topic with another id.
- *Append time.* Every record carries the log's own time, which never goes back within a partition.
- *Owners.* For each pipeline's name a topic belongs to one ledger: of two that claim it at once one gets it.

Readers see only what was committed. On a log whose producers leave traces of their transactions behind, offsets have
gaps: nothing may take consecutive offsets for granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from admitone.core.contract import Keeping

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

OUTGOING_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
"""What a producer hands over: one table for each destination topic; see `headers.py` for another form of headers."""

RECORD_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)
"""What a reader gets: the columns of Spark's Kafka source."""

LOG_APPEND_TIME = 1


@dataclass(frozen=True, slots=True)
class Topic:
    """One incarnation of a topic."""

    name: str
    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is now."""

    topic: Topic
    keeping: Keeping | None
    """None where the log knows no such thing: it keeps everything on one machine."""
    append_time: bool = True
    """Whether records carry the log's own time rather than their producer's."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Where the records of an append went: offsets by topic, in the order they were handed over."""

    offsets: dict[str, pa.Int64Array]
    published_at: int


KEPT_FOR_GOOD: Final = Keeping()


class Transport(Protocol):
    """A partitioned, append-only log with fenced producers."""

    offset_kind: str

    @property
    def cluster(self) -> str:
        """Return the id of the cluster, or of the folder, that holds the log."""

    def create_topic(self, name: str, partitions: int, keeping: Keeping = KEPT_FOR_GOOD) -> Topic:
        """Create the topic, or return it when it is there with as many partitions."""

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        """Return those of the topics that exist, as they are now."""

    def topic(self, name: str) -> Topic:
        """Return the topic's present incarnation, or raise `NotFound`."""

    def starts(self, topic: Topic) -> list[int]:
        """Return the first readable offset of each partition."""

    def ends(self, topic: Topic, *, readable: bool = False) -> list[int]:
        """Return the offset after the last one given out, committed or not, for each partition.

        Readable ends stop before the first transaction that is still open.
        """

    def next_record(self, topic: Topic, partition: int, start: int, end: int) -> int:
        """Return the offset of the first committed record with start <= offset < end, or the end."""

    def init_producer(self, name: str) -> int:
        """Fence every earlier holder of the name and return the new epoch."""

    def last_epoch(self, name: str) -> int:
        """Return the last epoch that was given to a name, 0 where none was or the log tells nobody."""

    def append(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Appended:
        """Append to several topics in one transaction; tables follow `OUTGOING_SCHEMA`.

        `RecordsRefused` and `NotWritten` say for certain that nothing was written. `NeedsFence`, one of the latter,
        asks for `init_producer` before another try: what an earlier append asked the log for may still be on its
        way. After `Fenced` it is for the successor to find out, where there is one: brokers also fence a client that
        they did not hear from for long. After any other error it is not known.
        """

    def read(
        self, topic: Topic, partition: int, start: int, end: int, *, committed: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield committed records with start <= offset < end, in offset order.

        `Unreadable` when what is committed cannot be told within the time allowed: another producer's open
        transaction may hide it. Where it need not be committed, records of open and of aborted transactions are
        among what is read, and nothing is hidden.
        """

    def owners(self, pipeline: str, topics: Sequence[str]) -> dict[str, str]:
        """Return the ledger that each of these topics was claimed for under a pipeline's name.

        Left out are topics that are not there, and those that were never claimed, or whose claim the log has forgotten.
        """

    def claim(
        self, pipeline: str, topics: Sequence[str], ledger: str, *, adopt: bool = False
    ) -> dict[str, str]:
        """Claim those of the topics that are there and not claimed; return the ledger that each belongs to now.

        With `adopt` those are taken, too, that belong to another ledger.
        """

    def close(self) -> None:
        """Release what is open."""
