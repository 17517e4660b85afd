"""The keys of a store in SQLite: one table for each segment, one of them open.

Called inside a claiming transaction. A unique key cannot span tables, so all inserts go to the one open
segment and the closed ones are only read; the write lock keeps the pointer still meanwhile. A segment keeps the
length it was opened with, so a changed retention changes only the segments that come after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

import orjson

from admitone.core.decisions import BlockState
from admitone.core.segments import Segment, is_droppable, segment_for, segment_name
from admitone.ledger.claims import Holder

_CHUNK = 10_000
_NEVER_FORGOTTEN = (BlockState.IN_FLIGHT, BlockState.AMBIGUOUS, BlockState.RETRACTED)

_FOUND = """SELECT c.ordinal, k.block_id, k.ordinal, k.payload_hash, k.event_time, b.state, b.refused
FROM temp.candidate c JOIN "{segment}" k ON k.key = c.key JOIN block b ON b.block_id = k.block_id"""


Row = tuple[bytes, int, bytes, int]
"""Key, ordinal, payload hash and event time of a delivery that asks for its identity."""


class Segments:
    """One store of keys, within one transaction."""

    def __init__(self, db: sqlite3.Connection, store: str) -> None:
        self._db = db
        self._store = store

    def stage(self, rows: list[Row]) -> None:
        """Lay rows, in key order, where a claim finds them; needs no lock."""
        self._db.execute(
            "CREATE TEMP TABLE IF NOT EXISTS candidate"
            " (key BLOB, ordinal INTEGER, payload_hash BLOB, event_time INTEGER)"
        )
        self._db.execute("DELETE FROM temp.candidate")
        self._db.executemany("INSERT INTO temp.candidate VALUES (?, ?, ?, ?)", rows)

    def claim(
        self,
        rows: list[Row],
        retention_ms: int,
        block_id: int,
        decides: Callable[[int, Holder], bool],
    ) -> dict[int, Holder]:
        """Insert the staged rows (key, ordinal, hash, event time) for a block; return the holders that decide.

        A row found elsewhere decides unless it is absent or expired; then the block takes its place.
        """
        opened = self._advance(max(row[3] for row in rows), retention_ms)
        holders: dict[int, Holder] = {}
        for segment in self._all():
            if segment.start == opened.start:
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
        for ordinal, holder in self._found(opened):
            if decides(ordinal, holder):
                holders[ordinal] = holder
            else:
                taken_over.append(ordinal)
        table = self.name(opened)
        if taken_over:
            of_ordinal = {row[1]: row for row in rows}
            self._db.executemany(
                f'UPDATE "{table}" SET payload_hash = ?,'  # noqa: S608
                f" event_time = ?, block_id = {block_id:d}, ordinal = ? WHERE key = ?",
                [
                    (digest, event_time, ordinal, key)
                    for key, ordinal, digest, event_time in map(of_ordinal.__getitem__, taken_over)
                ],
            )
        self._db.execute(
            f'INSERT INTO "{table}" SELECT key, payload_hash, event_time,'  # noqa: S608
            f" {block_id:d}, ordinal FROM temp.candidate WHERE true ON CONFLICT DO NOTHING"
        )
        return holders

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """Return (block, ordinal) of every row that holds a key, newest first."""
        found = [
            row
            for segment in self._all()
            for row in self._db.execute(
                f'SELECT block_id, ordinal FROM "{self.name(segment)}" WHERE key = ?',  # noqa: S608
                (key,),
            )
        ]
        return sorted(found, reverse=True)

    def dropped_before(self) -> int | None:
        """Return the moment before which keys may have been forgotten."""
        row = self._db.execute(
            "SELECT dropped_before FROM store WHERE name = ?", (self._store,)
        ).fetchone()
        return row[0] if row else None

    def some_expired(self, slowest_stream_time: int) -> bool:
        """Tell, without the write lock, whether it may be worth giving segments up."""
        row = self._db.execute(
            "SELECT retention, (SELECT min(start + length) FROM segment WHERE store = name)"
            " FROM store WHERE name = ? AND open_start IS NOT NULL",
            (self._store,),
        ).fetchone()
        return row is not None and is_droppable(row[1], slowest_stream_time, row[0])

    def give_up(self, slowest_stream_time: int, retention_ms: int) -> list[Segment]:
        """Choose the closed segments nobody needs, and note that what they held is forgotten.

        From then on events of that time are too old for every source, also for one that has read nothing yet.
        """
        row = self._db.execute(
            "SELECT open_start, retention FROM store WHERE name = ?", (self._store,)
        ).fetchone()
        if row is None:
            return []
        open_start, longest = row
        retention = max(longest, retention_ms)
        chosen = [
            segment
            for segment in self._all()
            if segment.start != open_start
            and is_droppable(segment.end, slowest_stream_time, retention)
            and not self._unresolved(segment)
        ]
        if chosen:
            self._db.execute(
                "UPDATE store SET dropped_before = max(coalesce(dropped_before, ?), ?) WHERE name = ?",
                (chosen[-1].end, chosen[-1].end, self._store),
            )
        return chosen

    def delete_some(self, segment: Segment) -> bool:
        """Delete a small part of a given-up segment, the table itself once it is empty; tell if it is gone."""
        table = self.name(segment)
        deleted = self._db.execute(
            f'DELETE FROM "{table}" WHERE key IN'  # noqa: S608
            f' (SELECT key FROM "{table}" ORDER BY key LIMIT {_CHUNK})'
        ).rowcount
        if deleted:
            return False
        self._db.execute(f'DROP TABLE "{table}"')
        self._db.execute(
            "DELETE FROM segment WHERE store = ? AND start = ?", (self._store, segment.start)
        )
        return True

    def name(self, segment: Segment) -> str:
        """Return a segment's table: the store and the moment it begins."""
        return segment_name(self._store, segment.start)

    def _advance(self, newest_event_time: int, retention_ms: int) -> Segment:
        """Open the segment of the store's highest stream time, if it is not open yet, and return it."""
        wanted = segment_for(newest_event_time, retention_ms)
        self._db.execute(
            "INSERT INTO store (name, retention) VALUES (?, ?) ON CONFLICT DO UPDATE SET"
            " retention = max(retention, excluded.retention)",
            (self._store, retention_ms),
        )
        row = self._db.execute(
            "SELECT start, length FROM store JOIN segment ON store = name AND start = open_start"
            " WHERE name = ?",
            (self._store,),
        ).fetchone()
        if row is not None and wanted.start <= row[0]:
            opened = Segment(*row)
            if newest_event_time >= opened.end:
                opened = Segment(opened.start, newest_event_time - opened.start + 1)
                self._db.execute(
                    "UPDATE segment SET length = ? WHERE store = ? AND start = ?",
                    (opened.length, self._store, opened.start),
                )
            return opened
        self._db.execute(
            f'CREATE TABLE "{self.name(wanted)}" (key BLOB PRIMARY KEY, payload_hash BLOB NOT NULL,'
            " event_time INTEGER NOT NULL, block_id INTEGER NOT NULL,"
            " ordinal INTEGER NOT NULL) WITHOUT ROWID"
        )
        self._db.execute("INSERT INTO segment VALUES (?, ?, ?)", (self._store, *wanted))
        self._db.execute(
            "UPDATE store SET open_start = ? WHERE name = ?", (wanted.start, self._store)
        )
        return wanted

    def _unresolved(self, segment: Segment) -> bool:
        """Tell whether a segment holds identities whose fate is open or was given up: never forgotten."""
        states = ", ".join(repr(str(state)) for state in _NEVER_FORGOTTEN)
        blocks = self._db.execute(
            f"SELECT block_id FROM block WHERE state IN ({states})"  # noqa: S608
        ).fetchall()
        if not blocks:
            return False
        numbers = orjson.dumps([number for (number,) in blocks]).decode()
        found = self._db.execute(
            f'SELECT 1 FROM "{self.name(segment)}" WHERE block_id IN'  # noqa: S608
            " (SELECT value FROM json_each(?)) LIMIT 1",
            (numbers,),
        ).fetchone()
        return found is not None

    def _all(self) -> list[Segment]:
        rows = self._db.execute(
            "SELECT start, length FROM segment WHERE store = ? ORDER BY start", (self._store,)
        ).fetchall()
        return [Segment(*row) for row in rows]

    def _found(self, segment: Segment) -> Iterator[tuple[int, Holder]]:
        for row in self._db.execute(_FOUND.format(segment=self.name(segment))).fetchall():
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
