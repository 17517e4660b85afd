"""A log in memory that behaves as Kafka does where that is harder than a folder.

An append is a transaction of two requests: its records get offsets first and become readable with the commit. In
between the transaction is open and hides what other producers commit behind it. Who takes a producer's name over
aborts what the last holder left open; what was aborted stays where it is, for those who read uncommitted records.
Commits and aborts take an offset themselves, so that offsets have gaps.

A request to end a transaction names a producer and its epoch, as below Kafka's transaction version 2. One that arrives
late ends whichever transaction of them is open then, with as much of it as the broker has by that time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from admitone.core.contract import Keeping
from admitone.core.errors import (
    Fenced,
    IntegrityError,
    NotFound,
    NotWritten,
    RecordsRefused,
    ServiceUnreachable,
    Unreadable,
)
from admitone.infra.clock import Clock, wall_clock
from admitone.simulation.stored_records import PartitionRecords, Piece, TopicRecords
from admitone.transport.port import (
    KEPT_FOR_GOOD,
    Appended,
    Topic,
    TopicState,
)
from admitone.transport.topic_contract import gone, same_incarnation, with_partitions

Readers = Callable[[Topic, int, list[int], pa.Table], None]
"""Is told what became readable: the records of one partition, with their offsets."""
Refuses = Callable[[str, bytes | None], bool]
"""Tells whether the broker refuses a record of a topic."""


@dataclass(slots=True)
class Transaction:
    """What one append wrote, until it is committed or aborted."""

    name: str
    epoch: int
    appended: Appended
    pieces: list[Piece]
    refused: dict[str, list[int]]
    """What the broker took nothing of, by topic and row; then the rest is to be aborted."""
    committed: bool | None = None
    """None while it is open."""

    def must_be_whole(self) -> None:
        """Raise where the broker refused some of its records."""
        if self.refused:
            count = sum(map(len, self.refused.values()))
            raise RecordsRefused(f"The broker refuses {count} records.", self.refused)


class SimulatedLog:
    """A `Transport` in memory; what is shared between threads stands behind a lock."""

    offset_kind = "simulated"

    def __init__(
        self,
        clock: Clock = wall_clock,
        readers: Readers | None = None,
        refuses: Refuses | None = None,
    ) -> None:
        self.cluster = "simulated"
        self._clock = clock
        self._readers = readers
        self._refuses = refuses
        self._topics: dict[str, TopicRecords] = {}
        self._created = 0
        self._epochs: dict[str, int] = {}
        self._open: dict[str, Transaction] = {}
        self._timed_out: set[tuple[str, int]] = set()
        self._owners: dict[tuple[str, str], str] = {}
        self._lock = threading.RLock()

    def create_topic(self, name: str, partitions: int, keeping: Keeping = KEPT_FOR_GOOD) -> Topic:
        """Create the topic, or return it when it is there with as many partitions."""
        with self._lock:
            if name not in self._topics:
                self._created += 1
                topic = Topic(name, f"{name}-{self._created}", partitions)
                empty = [PartitionRecords() for _ in range(partitions)]
                self._topics[name] = TopicRecords(topic, keeping, empty)
            return with_partitions(self._topics[name].topic, partitions)

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        """Return those of the topics that exist, as they are now."""
        found = [self._topics[name] for name in names if name in self._topics]
        return {each.topic.name: TopicState(each.topic, each.keeping) for each in found}

    def topic(self, name: str) -> Topic:
        """Return the topic's present incarnation, or raise `NotFound`."""
        if name not in self._topics:
            raise NotFound(f"There is no topic {name!r}.", "admitone topics create")
        return self._topics[name].topic

    def starts(self, topic: Topic) -> list[int]:
        """Return the first readable offset of each partition."""
        return [each.start for each in self._records(topic).partitions]

    def ends(self, topic: Topic, *, readable: bool = False) -> list[int]:
        """Return the offset after the last one given out, or the first of an open transaction."""
        return [
            each.readable_end if readable else each.next_offset
            for each in self._records(topic).partitions
        ]

    def next_record(self, topic: Topic, partition: int, start: int, end: int) -> int:
        """Return the offset of the first committed record with start <= offset < end, or the end."""
        for batch in self.read(topic, partition, start, end):
            return int(batch.column("offset")[0].as_py())
        return end

    def init_producer(self, name: str) -> int:
        """Fence every earlier holder of the name, abort what it left open, and return the new epoch."""
        with self._lock:
            self._epochs[name] = self._epochs.get(name, 0) + 1
            if name in self._open:
                self._end(self._open[name], committed=False)
            return self._epochs[name]

    def last_epoch(self, name: str) -> int:
        """Return the last epoch that was given to a name, 0 where none was."""
        return self._epochs.get(name, 0)

    def append(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Appended:
        """Append to several topics in one transaction."""
        transaction = self.write(name, epoch, records)
        if transaction.refused:
            self.abort(transaction)
        transaction.must_be_whole()
        return self.commit(transaction)

    def write(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Transaction:
        """Send the records of a transaction: they get their offsets, and nobody can read them yet."""
        with self._lock:
            self._must_hold(name, epoch)
            for missing in records.keys() - self._topics.keys():
                raise NotWritten(f"Topic {missing!r} is gone.", "admitone topics check")
            pieces: list[Piece] = []
            refused = self._refused(records)
            given = {
                topic: self._place(self._topics[topic], _without(table, refused.get(topic)), pieces)
                for topic, table in records.items()
            }
            moment = max((piece.append_time for piece in pieces), default=self._clock())
            for piece in pieces:
                records_there = piece.topic.partitions[piece.partition]
                records_there.open_at.setdefault(name, int(piece.offsets[0]))
            transaction = Transaction(name, epoch, Appended(given, moment), pieces, refused)
            self._open[name] = transaction
            return transaction

    def commit(self, transaction: Transaction) -> Appended:
        """Make a transaction readable, unless its producer was fenced."""
        with self._lock:
            self._asked_to_end(transaction, committed=True)
            return transaction.appended

    def abort(self, transaction: Transaction) -> None:
        """Take a transaction back, unless its producer was fenced."""
        with self._lock:
            self._asked_to_end(transaction, committed=False)

    def read(
        self, topic: Topic, partition: int, start: int, end: int, *, committed: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield committed records with start <= offset < end, in offset order; if asked to, all there are."""
        with self._lock:
            found = self._records(topic).partitions[partition]
            if start < found.start and start < end:
                raise IntegrityError(
                    f"Partition {partition} of {topic.name!r} has no records at offset {start} any more.",
                    "restore them; reading on without them would lose deliveries",
                )
            readable = found.readable_end if committed else found.next_offset
            batches = [
                batch
                for piece in found.pieces
                if piece.committed or not committed
                for batch in piece.between(start, min(end, readable))
            ]
        yield from batches
        if readable < end and readable < found.next_offset:
            raise Unreadable(
                f"Partition {partition} of {topic.name!r} is readable up to offset {readable}, not up to {end}:"
                " a transaction is open there.",
                "wait until it is committed or aborted, then try again",
            )

    def owners(self, pipeline: str, topics: Sequence[str]) -> dict[str, str]:
        """Return the ledger that each of these topics was claimed for under a pipeline's name."""
        with self._lock:
            ids = {
                name: self._topics[name].topic.topic_id for name in topics if name in self._topics
            }
            return {
                name: self._owners[pipeline, topic_id]
                for name, topic_id in ids.items()
                if (pipeline, topic_id) in self._owners
            }

    def claim(
        self, pipeline: str, topics: Sequence[str], ledger: str, *, adopt: bool = False
    ) -> dict[str, str]:
        """Claim those of the topics that are there and not claimed; return the ledger that each belongs to now."""
        with self._lock:
            held = {} if adopt else self.owners(pipeline, topics)
            for name in topics:
                if name in self._topics and name not in held:
                    self._owners[pipeline, self._topics[name].topic.topic_id] = ledger
            return self.owners(pipeline, topics)

    def close(self) -> None:
        """Do nothing: others that use the log go on."""

    # What happens to a log behind the back of its clients.

    def time_out(self) -> None:
        """Abort whatever is open, as a broker does after a while, and fence the producer that left it so."""
        with self._lock:
            for transaction in list(self._open.values()):
                self._timed_out.add((transaction.name, transaction.epoch))
                self._end(transaction, committed=False)

    def delete_topic(self, name: str) -> None:
        """Delete a topic; created again it is another one."""
        with self._lock:
            for transaction in list(self._open.values()):
                transaction.pieces = [p for p in transaction.pieces if p.topic.topic.name != name]
            del self._topics[name]

    def truncate(self, topic: Topic, partition: int, before: int) -> None:
        """Drop what lies before an offset, as a broker's retention does."""
        with self._lock:
            found = self._records(topic).partitions[partition]
            found.start = min(max(found.start, before), found.readable_end)
            kept = [
                piece.keep(piece.offsets >= found.start)
                for piece in found.pieces
                if piece.committed
            ]
            uncommitted = [piece for piece in found.pieces if not piece.committed]
            found.pieces = [piece for piece in kept if len(piece.offsets)] + uncommitted

    def compact(self, topic: Topic) -> None:
        """Compact a topic from now on: of records with the same key only the last one is kept."""
        with self._lock:
            records = self._records(topic)
            records.keeping = replace(records.keeping, cleanup_policy="compact")
            for found in records.partitions:
                seen: set[bytes] = set()
                pieces: list[Piece] = []
                for piece in reversed(found.pieces):
                    if not piece.committed or piece.offsets[0] >= found.readable_end:
                        pieces.append(piece)
                        continue
                    keys = piece.rows["key"].to_pylist()
                    later = {key: row for row, key in enumerate(keys)}
                    kept = [
                        key is None or (later[key] == row and key not in seen)
                        for row, key in enumerate(keys)
                    ]
                    seen.update(key for key in keys if key is not None)
                    if any(kept):
                        pieces.append(piece.keep(np.array(kept)))
                found.pieces = pieces[::-1]

    def _records(self, topic: Topic) -> TopicRecords:
        found = self._topics.get(topic.name)
        if found is None or not same_incarnation(found.topic, topic.topic_id):
            raise gone(topic)
        return found

    def _must_hold(self, name: str, epoch: int) -> None:
        held = self._epochs.get(name)
        if held != epoch or (name, epoch) in self._timed_out:
            raise Fenced(f"Producer {name!r} was fenced: it holds epoch {epoch}, the log {held}.")

    def _refused(self, records: dict[str, pa.Table]) -> dict[str, list[int]]:
        if self._refuses is None:
            return {}
        found = {
            topic: [
                row
                for row, value in enumerate(table["value"].to_pylist())
                if self._refuses(topic, value)
            ]
            for topic, table in records.items()
        }
        return {topic: rows for topic, rows in found.items() if rows}

    def _asked_to_end(self, asked: Transaction, *, committed: bool) -> None:
        """End what is open of a producer and its epoch, whichever transaction that is by now."""
        self._must_hold(asked.name, asked.epoch)
        opened = self._open.get(asked.name)
        if opened is asked:
            self._end(asked, committed=committed)
        elif opened is not None:
            self._end_the_half_of(opened, committed=committed)
        elif asked.committed is not committed:
            raise ServiceUnreachable(
                f"Producer {asked.name!r} has no transaction that could be ended so.", "look for it"
            )

    def _end_the_half_of(self, opened: Transaction, *, committed: bool) -> None:
        """End what had arrived of a transaction when another one's end did; what follows is another again."""
        if not opened.pieces:
            return
        first, *others = opened.pieces
        if not others and len(first.offsets) > 1:
            half = np.arange(len(first.offsets)) < len(first.offsets) // 2
            found = first.topic.partitions[first.partition]
            place = found.pieces.index(first)
            first, other = first.keep(half), first.keep(~half)
            found.pieces[place : place + 1] = [first, other]
            others = [other]
        arrived = replace(opened, pieces=[first])
        self._end(arrived, committed=committed)
        opened.pieces = others
        if not others:
            opened.committed = committed
            return
        self._open[opened.name] = opened
        for piece in others:
            there = piece.topic.partitions[piece.partition]
            there.open_at.setdefault(opened.name, int(piece.offsets[0]))

    def _place(self, topic: TopicRecords, table: pa.Table, pieces: list[Piece]) -> pa.Int64Array:
        """Give out offsets for records of one topic, in the order they were handed over."""
        numbers = table["partition"].to_numpy()
        given = np.empty(len(numbers), dtype=np.int64)
        for number in np.unique(numbers).tolist():
            lines = np.flatnonzero(numbers == number)
            found = topic.partitions[number]
            offsets = found.next_offset + np.arange(len(lines))
            found.append_time = max(found.append_time, self._clock())
            found.next_offset += len(lines)
            rows = table if len(lines) == len(numbers) else table.take(pa.array(lines))
            piece = Piece(topic, number, offsets, rows, found.append_time)
            found.pieces.append(piece)
            pieces.append(piece)
            given[lines] = offsets
        return pa.array(given)

    def _end(self, transaction: Transaction, *, committed: bool) -> None:
        """Commit or abort; either leaves a mark that takes an offset."""
        self._open.pop(transaction.name, None)
        transaction.committed = committed
        for piece in transaction.pieces:
            found = piece.topic.partitions[piece.partition]
            found.open_at.pop(transaction.name, None)
            found.next_offset += 1
            piece.committed = committed
            if committed and self._readers is not None:
                self._readers(
                    piece.topic.topic, piece.partition, piece.offsets.tolist(), piece.rows
                )


def _without(table: pa.Table, refused: list[int] | None) -> pa.Table:
    if not refused:
        return table
    taken = np.ones(table.num_rows, dtype=bool)
    taken[refused] = False
    return table.filter(pa.array(taken))
