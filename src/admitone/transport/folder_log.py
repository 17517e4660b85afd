"""The folder log: Parquet files that exist only when the manifest lists them.

An append writes its files first, under names nobody knows, then lists them in one transaction of the manifest
that also checks the producer's epoch and gives out the offsets. What a crash leaves behind is an
unlisted file, which is no part of the log.

    manifest.db                    topics, partitions and where they begin, producers, files, whose the topics are
    <topic id>/<partition>/<name>.parquet   key, value, headers of consecutive records
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from admitone.core.contract import Keeping
from admitone.core.errors import Fenced, IntegrityError, NotFound, NotWritten
from admitone.infra.clock import wall_clock
from admitone.infra.durable_files import make_durable
from admitone.infra.sqlite import Database
from admitone.transport.headers import listed
from admitone.transport.port import (
    KEPT_FOR_GOOD,
    LOG_APPEND_TIME,
    RECORD_SCHEMA,
    Appended,
    Topic,
    TopicState,
)
from admitone.transport.topic_contract import gone, with_partitions

_MIGRATIONS = (
    """CREATE TABLE log (cluster TEXT NOT NULL);

CREATE TABLE topic (
    topic_id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL
);

CREATE TABLE partition (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    next_offset INTEGER NOT NULL DEFAULT 0,
    append_time INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID;

CREATE TABLE producer (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE file (
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    base_offset INTEGER NOT NULL,
    records INTEGER NOT NULL,
    append_time INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (topic_id, partition, base_offset)
) WITHOUT ROWID;

INSERT INTO log VALUES (lower(hex(randomblob(16))))""",
    """CREATE TABLE owner (
    pipeline TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    ledger TEXT NOT NULL,
    PRIMARY KEY (pipeline, topic_id)
) WITHOUT ROWID""",
    """ALTER TABLE partition ADD COLUMN start_offset INTEGER NOT NULL DEFAULT 0;

UPDATE partition SET start_offset = coalesce((
    SELECT min(base_offset) FROM file WHERE file.topic_id = partition.topic_id
    AND file.partition = partition.partition
), next_offset)""",
)
_FILE_SCHEMA = pa.schema([RECORD_SCHEMA.field(name) for name in ("key", "value", "headers")])
_ROWS_AT_ONCE = 10_000


class FolderLog:
    """A `Transport` in a folder; several processes may read and write it at once."""

    offset_kind = "folder"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._manifest = Database(path / "manifest.db", _MIGRATIONS)
        with self._manifest.snapshot() as db:
            (self.cluster,) = db.execute("SELECT cluster FROM log").fetchone()

    def create_topic(self, name: str, partitions: int, keeping: Keeping = KEPT_FOR_GOOD) -> Topic:
        """Create the topic, or return it when it is there with as many partitions."""
        with self._manifest.transaction() as db:
            found = _topic(db, name)
            if found is None:
                found = Topic(name, uuid.uuid4().hex, partitions)
                db.execute("INSERT INTO topic VALUES (?, ?, ?)", (found.topic_id, name, partitions))
                db.executemany(
                    "INSERT INTO partition (topic_id, partition) VALUES (?, ?)",
                    [(found.topic_id, number) for number in range(partitions)],
                )
        return with_partitions(found, partitions)

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        """Return those of the topics that exist; whatever they were created with, everything is kept."""
        with self._manifest.snapshot() as db:
            found = [_topic(db, name) for name in names]
        return {topic.name: TopicState(topic, None) for topic in found if topic}

    def topic(self, name: str) -> Topic:
        """Return the topic's present incarnation, or raise `NotFound`."""
        with self._manifest.snapshot() as db:
            found = _topic(db, name)
        if found is None:
            raise NotFound(
                f"There is no topic {name!r}.", "admitone ingest FILE creates the raw topic"
            )
        return found

    def starts(self, topic: Topic) -> list[int]:
        """Return the first readable offset of each partition."""
        return self._of_partitions("start_offset", topic)

    def ends(self, topic: Topic, *, readable: bool = False) -> list[int]:
        """Return the offset after the last record of each partition."""
        return self._of_partitions("next_offset", topic)

    def next_record(self, topic: Topic, partition: int, start: int, end: int) -> int:
        """Return the offset of the first record with start <= offset < end, or the end."""
        return max(start, min(self.starts(topic)[partition], end)) if start < end else end

    def init_producer(self, name: str) -> int:
        """Fence every earlier holder of the name and return the new epoch."""
        with self._manifest.transaction() as db:
            (epoch,) = db.execute(
                "INSERT INTO producer VALUES (?, 1) ON CONFLICT DO UPDATE SET epoch = epoch + 1"
                " RETURNING epoch",
                (name,),
            ).fetchone()
        return int(epoch)

    def last_epoch(self, name: str) -> int:
        """Return the last epoch that was given to a name, 0 where none was."""
        with self._manifest.snapshot() as db:
            held = db.execute("SELECT epoch FROM producer WHERE name = ?", (name,)).fetchone()
        return int(held[0]) if held else 0

    def append(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Appended:
        """Append to several topics in one transaction."""
        topics = self.describe(list(records))
        for missing in records.keys() - topics.keys():
            raise _not_written(missing)
        pieces = [
            (topic, partition, order, self._write_file(topics[topic].topic, partition, rows))
            for topic, table in records.items()
            for partition, order, rows in _by_partition(listed(table))
        ]
        offsets = {
            topic: np.empty(table.num_rows, dtype=np.int64) for topic, table in records.items()
        }
        with self._manifest.transaction() as db:
            held = db.execute("SELECT epoch FROM producer WHERE name = ?", (name,)).fetchone()
            if held is None or held[0] != epoch:
                for *_, file in pieces:
                    (self.path / file).unlink(missing_ok=True)
                raise Fenced(
                    f"Producer {name!r} was fenced: it holds epoch {epoch}, the log {held}."
                )
            now = wall_clock()
            for topic, partition, order, file in pieces:
                base, now = _list_file(db, topic, partition, len(order), now, file)
                offsets[topic][order] = base + np.arange(len(order))
        return Appended({topic: pa.array(given) for topic, given in offsets.items()}, now)

    def read(
        self, topic: Topic, partition: int, start: int, end: int, *, committed: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield records with start <= offset < end, in offset order; all that are listed are committed."""
        with self._manifest.snapshot() as db:
            files = db.execute(
                "SELECT base_offset, append_time, name, records FROM file WHERE topic_id = ? AND partition = ?"
                " AND base_offset < ? AND base_offset + records > ? ORDER BY base_offset",
                (topic.topic_id, partition, end, start),
            ).fetchall()
        self._refuse_gaps(topic, partition, start, end, files)
        for base, append_time, name, _ in files:
            first = base
            for batch in self._batches(name):
                yield from _cut(topic.name, partition, first, append_time, batch, start, end)
                first += batch.num_rows

    def owners(self, pipeline: str, topics: Sequence[str]) -> dict[str, str]:
        """Return the ledger that each of these topics was claimed for under a pipeline's name."""
        with self._manifest.snapshot() as db:
            return _owners(db, pipeline, topics)

    def claim(
        self, pipeline: str, topics: Sequence[str], ledger: str, *, adopt: bool = False
    ) -> dict[str, str]:
        """Claim those of the topics that are there and not claimed; return the ledger that each belongs to now."""
        clash = "UPDATE SET ledger = excluded.ledger" if adopt else "NOTHING"
        with self._manifest.transaction() as db:
            db.executemany(
                "INSERT INTO owner SELECT ?, topic_id, ? FROM topic WHERE name = ?"  # noqa: S608
                f" ON CONFLICT DO {clash}",
                [(pipeline, ledger, name) for name in topics],
            )
            return _owners(db, pipeline, topics)

    def close(self) -> None:
        """Close the manifest in this thread."""
        self._manifest.close()

    def _of_partitions(self, what: str, topic: Topic) -> list[int]:
        """Return a number of each partition of a topic that is there."""
        with self._manifest.snapshot() as db:
            rows = db.execute(
                f"SELECT {what} FROM partition p WHERE topic_id = ? ORDER BY partition",  # noqa: S608
                (topic.topic_id,),
            ).fetchall()
        if not rows:
            raise gone(topic)
        return [offset for (offset,) in rows]

    def _refuse_gaps(
        self,
        topic: Topic,
        partition: int,
        start: int,
        end: int,
        files: list[tuple[int, int, str, int]],
    ) -> None:
        """Raise when a part of what is asked for was removed; passing over it would lose it silently."""
        reached = start
        for base, _, _, records in files:
            if base > reached:
                break
            reached = base + records
        if reached < min(end, self.ends(topic)[partition]):
            raise IntegrityError(
                f"Partition {partition} of {topic.name!r} has no records at offset {reached} any more, although"
                f" {start} to {end} are needed.",
                "restore the log's files; reading on without them would lose deliveries",
            )

    def _batches(self, name: str) -> Iterator[pa.RecordBatch]:
        try:
            with pq.ParquetFile(self.path / name) as file:
                yield from file.iter_batches(_ROWS_AT_ONCE)
        except (OSError, pa.ArrowInvalid) as error:
            raise IntegrityError(
                f"The log lists {name}, but it cannot be read: {error}.", "restore it from a backup"
            ) from error

    def _write_file(self, topic: Topic, partition: int, rows: pa.Table) -> str:
        folder = self.path / topic.topic_id / str(partition)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.parquet"
        pq.write_table(
            rows, path, row_group_size=_ROWS_AT_ONCE, compression="lz4", write_statistics=False,
            use_dictionary=["headers.list.element.key"],
        )  # fmt: skip
        make_durable(path)
        make_durable(folder)
        return str(path.relative_to(self.path))


def _topic(db: sqlite3.Connection, name: str) -> Topic | None:
    row = db.execute(
        "SELECT name, topic_id, partitions FROM topic WHERE name = ?", (name,)
    ).fetchone()
    return Topic(*row) if row else None


def _owners(db: sqlite3.Connection, pipeline: str, topics: Sequence[str]) -> dict[str, str]:
    rows = db.execute(
        "SELECT name, ledger FROM owner JOIN topic USING (topic_id) WHERE pipeline = ?", (pipeline,)
    )
    return {name: ledger for name, ledger in rows if name in topics}


def _not_written(topic: str) -> NotWritten:
    return NotWritten(
        f"Topic {topic!r} is gone, or has fewer partitions than records were made for.",
        "admitone topics check",
    )


def _list_file(
    db: sqlite3.Connection, topic: str, partition: int, records: int, now: int, file: str
) -> tuple[int, int]:
    topic_id = file.split(os.sep, 1)[0]
    held = db.execute(
        "SELECT next_offset, append_time FROM partition WHERE topic_id = ? AND partition = ?",
        (topic_id, partition),
    ).fetchone()
    if held is None:
        raise _not_written(topic)
    base, append_time = held
    # Don't let append time go backwards when the clock does.
    now = max(now, append_time)
    db.execute(
        "UPDATE partition SET next_offset = ?, append_time = ? WHERE topic_id = ? AND partition = ?",
        (base + records, now, topic_id, partition),
    )
    db.execute(
        "INSERT INTO file VALUES (?, ?, ?, ?, ?, ?)",
        (topic_id, partition, base, records, now, file),
    )
    return base, now


def _by_partition(table: pa.Table) -> Iterator[tuple[int, np.ndarray, pa.Table]]:
    partitions = table["partition"].to_numpy()
    order = np.argsort(partitions, kind="stable")
    edges = np.flatnonzero(np.diff(partitions[order])) + 1
    for rows in np.split(order, edges):
        if len(rows):
            yield int(partitions[rows[0]]), rows, table.select(_FILE_SCHEMA.names).take(rows)


def _cut(
    topic: str,
    partition: int,
    base: int,
    append_time: int,
    batch: pa.RecordBatch,
    start: int,
    end: int,
) -> Iterator[pa.RecordBatch]:
    first, last = max(start - base, 0), min(end - base, batch.num_rows)
    if first >= last:
        return
    kept, rows = batch.slice(first, last - first), last - first
    yield pa.RecordBatch.from_arrays(
        [
            kept.column("key"),
            kept.column("value"),
            pa.repeat(pa.scalar(topic), rows),
            pa.repeat(pa.scalar(partition, pa.int32()), rows),
            pa.array(np.arange(base + first, base + last, dtype=np.int64)),
            pa.repeat(pa.scalar(append_time * 1_000, pa.timestamp("us", tz="UTC")), rows),
            pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), rows),
            kept.column("headers"),
        ],
        schema=RECORD_SCHEMA,
    )
