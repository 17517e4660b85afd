"""The keys of a store in SQLite: one table for each segment, one of them open.

Called inside a claiming transaction. A unique key cannot span tables, so all inserts go to the one open
segment and the closed ones are only read; the write lock keeps the pointer still meanwhile.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import orjson

from admitone.core.decisions import BlockState
from admitone.core.segments import interval_of, is_droppable, segment_name, segment_of
from admitone.ledger.claims import Holder

_CHUNK = 10_000

_FOUND = """SELECT c.ordinal, k.block_id, k.ordinal, k.payload_hash, k.event_time, b.state, b.refused
FROM temp.candidate c JOIN "{segment}" k ON k.key = c.key JOIN block b ON b.block_id = k.block_id"""


class Segments:
    """One store of keys, within one transaction."""

    def __init__(self, db: sqlite3.Connection, store: str, retention_ms: int) -> None:
        self._db = db
        self._store = store
        self._interval = interval_of(retention_ms)

    def claim(
        self,
        rows: list[tuple[bytes, int, bytes, int]],
        newest_event_time: int,
        rules: int,
        block_id: int,
        decides: Callable[[int, Holder], bool],
    ) -> dict[int, Holder]:
        """Insert (key, ordinal, hash, event time) rows for a block; return the holders that decide.

        A row found elsewhere decides unless it is absent or expired; then the block takes its place.
        """
        open_segment = self._advance(newest_event_time)
        self._db.execute(
            "CREATE TEMP TABLE IF NOT EXISTS candidate"
            " (key BLOB, ordinal INTEGER, payload_hash BLOB, event_time INTEGER)"
        )
        self._db.execute("DELETE FROM temp.candidate")
        self._db.executemany("INSERT INTO temp.candidate VALUES (?, ?, ?, ?)", rows)
        holders: dict[int, Holder] = {}
        for segment in self._names():
            if segment == open_segment:
                continue
            for ordinal, holder in self._found(segment):
                newest = holders.get(ordinal)
                if decides(ordinal, holder) and (
                    newest is None or newest.block_id < holder.block_id
                ):
                    holders[ordinal] = holder
        if holders:
            self._db.executemany(
                "DELETE FROM temp.candidate WHERE ordinal = ?", [(ordinal,) for ordinal in holders]
            )
        # Reading first costs less than inserting and asking which inserts did not happen.
        taken_over = []
        for ordinal, holder in self._found(open_segment):
            if decides(ordinal, holder):
                holders[ordinal] = holder
            else:
                taken_over.append(ordinal)
        if taken_over:
            of_ordinal = {row[1]: row for row in rows}
            self._db.executemany(
                f'UPDATE "{open_segment}" SET payload_hash = ?, rules = {rules:d},'  # noqa: S608
                f" event_time = ?, block_id = {block_id:d}, ordinal = ? WHERE key = ?",
                [
                    (digest, event_time, ordinal, key)
                    for key, ordinal, digest, event_time in map(of_ordinal.__getitem__, taken_over)
                ],
            )
        self._db.execute(
            f'INSERT INTO "{open_segment}" SELECT key, payload_hash, {rules:d}, event_time,'  # noqa: S608
            f" {block_id:d}, ordinal FROM temp.candidate WHERE true ON CONFLICT DO NOTHING"
        )
        return holders

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """Return (block, ordinal) of every row that holds a key, newest first."""
        found = [
            row
            for segment in self._names()
            for row in self._db.execute(
                f'SELECT block_id, ordinal FROM "{segment}" WHERE key = ?',  # noqa: S608
                (key,),
            )
        ]
        return sorted(found, reverse=True)

    def droppable(self, slowest_stream_time: int, retention_ms: int) -> list[str]:
        """Return the closed segments that no source can need any more."""
        (open_segment,) = self._pointer()
        return [
            segment_name(self._store, number, interval)
            for number, interval in self._rows()
            if number != open_segment
            and is_droppable(number, interval, slowest_stream_time, retention_ms)
        ]

    def delete_some(self, segment: str) -> bool:
        """Delete a small part of a closed segment, the table itself once it is empty; tell if it is gone."""
        deleted = self._db.execute(
            f'DELETE FROM "{segment}" WHERE key IN'  # noqa: S608
            f' (SELECT key FROM "{segment}" ORDER BY key LIMIT {_CHUNK})'
        ).rowcount
        if deleted:
            return False
        self._db.execute(f'DROP TABLE "{segment}"')
        start = int(segment.rpartition(".")[2])
        self._db.execute(
            "DELETE FROM segment WHERE store = ? AND segment * interval = ?", (self._store, start)
        )
        return True

    def _pointer(self) -> tuple[int | None]:
        row = self._db.execute(
            "SELECT open_segment FROM store WHERE name = ?", (self._store,)
        ).fetchone()
        return row or (None,)

    def _advance(self, newest_event_time: int) -> str:
        """Open the segment of the store's highest stream time, if it is not open yet; return its name."""
        (open_segment,) = self._pointer()
        wanted = segment_of(newest_event_time, self._interval)
        if open_segment is None or wanted > open_segment:
            name = segment_name(self._store, wanted, self._interval)
            self._db.execute(
                f'CREATE TABLE "{name}" (key BLOB PRIMARY KEY, payload_hash BLOB NOT NULL,'
                " rules INTEGER NOT NULL, event_time INTEGER NOT NULL, block_id INTEGER NOT NULL,"
                " ordinal INTEGER NOT NULL) WITHOUT ROWID"
            )
            self._db.execute(
                "INSERT INTO segment VALUES (?, ?, ?)", (self._store, wanted, self._interval)
            )
            self._db.execute(
                "INSERT INTO store (name, open_segment, stream_time) VALUES (?, ?, ?) ON CONFLICT DO"
                " UPDATE SET open_segment = excluded.open_segment, stream_time = excluded.stream_time",
                (self._store, wanted, newest_event_time),
            )
            return name
        return segment_name(self._store, open_segment, self._interval)

    def _rows(self) -> list[tuple[int, int]]:
        return self._db.execute(
            "SELECT segment, interval FROM segment WHERE store = ? ORDER BY segment", (self._store,)
        ).fetchall()

    def _names(self) -> list[str]:
        return [segment_name(self._store, number, interval) for number, interval in self._rows()]

    def _found(self, segment: str) -> Iterator[tuple[int, Holder]]:
        for row in self._db.execute(_FOUND.format(segment=segment)).fetchall():
            ordinal, block_id, found_ordinal, payload_hash, event_time, state, refused = row
            yield (
                ordinal,
                Holder(
                    block_id,
                    found_ordinal,
                    payload_hash,
                    event_time,
                    BlockState(state),
                    tuple(orjson.loads(refused)) if refused != "[]" else (),
                ),
            )
