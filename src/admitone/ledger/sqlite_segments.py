"""The keys of a store in SQLite: one table for each segment, one of them open.

Called inside a claiming transaction. A unique key cannot span tables, so all inserts go to the one open
segment and the closed ones are only read; the write lock keeps the pointer still meanwhile. A segment keeps the
length it was opened with, so a changed retention changes only the segments that come after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence

import orjson

from admitone.core.decisions import AdmissionState, BlockState
from admitone.core.segments import Segment, is_droppable, segment_for, segment_name
from admitone.ledger.claims import Holder, keys_of
from admitone.ledger.stored import NEVER_FORGOTTEN

_SLICE = 4_000
_NEVER = -(1 << 63)

_FOUND = """SELECT c.ordinal, k.block_id, k.ordinal, k.payload_hash, k.event_time, b.state, b.refused
FROM temp.candidate c JOIN "{segment}" k ON k.key = c.key JOIN block b ON b.block_id = k.block_id"""


Row = tuple[bytes, int, bytes, int]
"""Key, ordinal, payload hash and event time of a delivery that asks for its identity."""
KeyRow = tuple[bytes, bytes, int, int, int]
"""Key, payload hash, event time, block and ordinal: a row of a segment."""


def stage(db: sqlite3.Connection, rows: list[Row]) -> None:
    """Lay rows, in key order, where a claim finds them; needs no lock."""
    db.execute(
        "CREATE TEMP TABLE IF NOT EXISTS candidate"
        " (key BLOB, ordinal INTEGER, payload_hash BLOB, event_time INTEGER)"
    )
    db.execute("DELETE FROM temp.candidate")
    db.executemany("INSERT INTO temp.candidate VALUES (?, ?, ?, ?)", rows)


class Segments:
    """One store of keys, within one transaction."""

    def __init__(self, db: sqlite3.Connection, store: str) -> None:
        self._db = db
        self._store = store

    def claim(
        self,
        rows: list[Row],
        newest: int,
        retention_ms: int,
        block_id: int,
        decides: Callable[[int, Holder], bool],
    ) -> dict[int, Holder]:
        """Insert the staged rows (key, ordinal, hash, event time) for a block; return the holders that decide.

        A row found elsewhere decides unless it is absent or expired; then the block takes its place.
        """
        opened = self._advance(newest, retention_ms)
        holders: dict[int, Holder] = {}
        for segment in self._all():
            if segment.start == opened.start:
                continue
            for ordinal, holder in self._found(segment):
                other = holders.get(ordinal)
                if decides(ordinal, holder) and (other is None or holder.block_id < other.block_id):
                    holders[ordinal] = holder
        if holders:
            # One pass over the candidates, however many of them are held: one by one it would be one each.
            self._db.execute(
                "DELETE FROM temp.candidate WHERE ordinal IN (SELECT value FROM json_each(?))",
                (orjson.dumps(list(holders)).decode(),),
            )
        # Reading first costs less than inserting and asking which inserts did not happen.
        taken_over, displaced = [], []
        for ordinal, holder in self._found(opened):
            if decides(ordinal, holder):
                holders[ordinal] = holder
            else:
                taken_over.append(ordinal)
                if holder.admission is AdmissionState.ADMITTED:
                    displaced.append((ordinal, holder))
        table = self.name(opened)
        if taken_over:
            of_ordinal = {row[1]: row for row in rows}
            self._db.executemany(
                f"INSERT INTO displaced VALUES ({block_id:d}, ?, {opened.start:d}, ?, ?, ?, ?, ?)",  # noqa: S608
                [
                    (
                        ordinal,
                        of_ordinal[ordinal][0],
                        holder.payload_hash,
                        holder.event_time,
                        *holder[:2],
                    )
                    for ordinal, holder in displaced
                ],
            )
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

    def put_back(self, block_id: int, ordinals: Collection[int] | None = None) -> None:
        """Put back the rows that a block took over and does not need: all of them, or those of some ordinals.

        They had expired for the block's source, but may be live for one that is behind it.
        """
        rows = self._db.execute(
            "DELETE FROM displaced WHERE block_id = ?"
            " RETURNING ordinal, start, payload_hash, event_time, first_block, first_ordinal, key",
            (block_id,),
        ).fetchall()
        there = {segment.start for segment in self._all()}
        for ordinal, start, *row in rows:
            if start in there and (ordinals is None or ordinal in ordinals):
                self._db.execute(
                    f'UPDATE "{segment_name(self._store, start)}" SET payload_hash = ?,'  # noqa: S608
                    f" event_time = ?, block_id = ?, ordinal = ? WHERE key = ? AND block_id = {block_id:d}",
                    row,
                )

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """Return (block, ordinal) of every row that holds a key, newest first."""
        found = {
            row
            for segment in self._all()
            for row in self._db.execute(
                f'SELECT block_id, ordinal FROM "{self.name(segment)}" WHERE key = ?',  # noqa: S608
                (key,),
            )
        }
        return sorted(found, reverse=True)

    def horizon(self, retention_ms: int) -> int | None:
        """Return a retention before the end of the open segment."""
        row = self._db.execute(
            "SELECT start + length FROM store JOIN segment ON store = name AND start = open_start"
            " WHERE name = ?",
            (self._store,),
        ).fetchone()
        return row[0] - retention_ms if row else None

    def expired(self, slowest_stream_time: int, retention_ms: int) -> list[Segment]:
        """Return the closed segments nobody needs; those that were given up before stay given up."""
        row = self._db.execute(
            "SELECT open_start, retention, coalesce(dropped_before, ?) FROM store WHERE name = ?",
            (_NEVER, self._store),
        ).fetchone()
        if row is None:
            return []
        open_start, longest, dropped_before = row
        retention = max(longest, retention_ms)
        return [
            segment
            for segment in self._all()
            if segment.start != open_start
            and (
                segment.end <= dropped_before
                or is_droppable(segment.end, slowest_stream_time, retention)
            )
        ]

    def unresolved(self, segment: Segment) -> list[KeyRow]:
        """Return the rows of a segment that are never forgotten, found by their blocks' own identities."""
        blocks = self._db.execute(
            f"SELECT block_id, facts FROM block JOIN facts USING (block_id) WHERE state IN ({NEVER_FORGOTTEN})"  # noqa: S608
        )
        query = f'SELECT * FROM "{self.name(segment)}" WHERE key = ? AND block_id = ?'  # noqa: S608
        return [
            row
            for block_id, facts in blocks
            for key in keys_of(facts)
            for row in self._db.execute(query, (key, block_id))
        ]

    def carry(self, rows: Sequence[KeyRow]) -> None:
        """Put rows of a segment that is about to go into the open one as well."""
        (start,) = self._db.execute(
            "SELECT open_start FROM store WHERE name = ?", (self._store,)
        ).fetchone()
        self._db.executemany(
            f'INSERT INTO "{segment_name(self._store, start)}" VALUES (?, ?, ?, ?, ?)'  # noqa: S608
            " ON CONFLICT DO NOTHING",
            rows,
        )

    def give_up(
        self, found: Sequence[Segment], slowest_stream_time: int, retention_ms: int
    ) -> list[Segment]:
        """Note that what segments held is forgotten, if they still are expired; return these.

        From then on events of that time are too old for every source, also for one that has read nothing yet.
        """
        still = self.expired(slowest_stream_time, retention_ms)
        chosen = [segment for segment in found if segment in still]
        for segment in chosen:
            self._db.execute(
                "UPDATE store SET dropped_before = max(coalesce(dropped_before, ?), ?) WHERE name = ?",
                (segment.end, segment.end, self._store),
            )
        return chosen

    def slice_end(self, segment: Segment) -> bytes | None:
        """Return the key before which a small part of a segment lies; None where less is left."""
        if segment not in self._all():
            return None
        row = self._db.execute(
            f'SELECT key FROM "{self.name(segment)}" ORDER BY key LIMIT 1 OFFSET {_SLICE}'  # noqa: S608
        ).fetchone()
        return row[0] if row else None

    def delete(self, segment: Segment, before: bytes | None) -> None:
        """Delete a small part of a given-up segment; with the last one, the segment itself."""
        table = self.name(segment)
        if segment not in self._all():
            return  # Somebody else was faster.
        if before is not None:
            self._db.execute(f'DELETE FROM "{table}" WHERE key < ?', (before,))  # noqa: S608
            return
        self._db.execute(f'DROP TABLE "{table}"')
        self._db.execute(
            "DELETE FROM segment WHERE store = ? AND start = ?", (self._store, segment.start)
        )

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
