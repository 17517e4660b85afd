"""The keys of a store in PostgreSQL: one table for each segment, one of them open.

A unique key cannot span tables, so all inserts go to the one open segment and the closed ones are only read. Every
claim holds the store's pointer row shared; opening a segment and giving segments up take it exclusively, in
transactions of their own. Whatever a claim may have to wait for it asks for in key order: first its inserts, then the
rows it takes over, so that two claims never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from psycopg import sql
from psycopg.errors import UndefinedTable

from admitone.core.decisions import AdmissionState, BlockState
from admitone.core.segments import Segment, is_droppable, segment_for, segment_name
from admitone.ledger.claims import Deliveries, Holder, keys_of
from admitone.ledger.postgres_copy import CANDIDATE_COLUMNS, copied_candidates
from admitone.ledger.stored import NEVER_FORGOTTEN
from admitone.postgres import Connection

# The candidates are looked up one by one in key order. The planner, knowing nothing about a temporary table,
# might rather read a whole segment.
_CANDIDATES = (
    f"CREATE TEMPORARY TABLE IF NOT EXISTS candidate ({CANDIDATE_COLUMNS}) ON COMMIT DELETE ROWS;"
    " SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;"
    " SELECT pg_relation_size('pg_temp.candidate')"
)

_CREATE = sql.SQL(
    "CREATE TABLE {segment} (key uuid PRIMARY KEY, payload_hash uuid NOT NULL, event_time bigint NOT NULL,"
    " block_id bigint NOT NULL, ordinal integer NOT NULL)"
)
_FOUND = sql.SQL(
    "SELECT c.ordinal, k.block_id, k.ordinal, uuid_send(k.payload_hash), k.event_time, b.state, b.refused"
    " FROM candidate c JOIN {segment} k ON k.key = c.key JOIN block b ON b.block_id = k.block_id"
    " WHERE %(only)s::integer[] IS NULL OR c.ordinal = ANY(%(only)s)"
)
_INSERT = sql.SQL(
    "WITH inserted AS (INSERT INTO {segment} (key, payload_hash, event_time, block_id, ordinal)"
    " SELECT key, payload_hash, event_time, %s, ordinal FROM candidate ORDER BY key"
    " ON CONFLICT DO NOTHING RETURNING ordinal)"
    " SELECT array_agg(ordinal) FROM inserted"
)
_LOCK = sql.SQL(
    "SELECT c.ordinal, k.block_id, k.ordinal FROM candidate c JOIN {segment} k ON k.key = c.key"
    " WHERE c.ordinal = ANY(%s) ORDER BY c.key FOR UPDATE OF k"
)
_TAKE_OVER = sql.SQL(
    "UPDATE {segment} k SET payload_hash = c.payload_hash, event_time = c.event_time, block_id = %s,"
    " ordinal = c.ordinal FROM candidate c WHERE k.key = c.key AND c.ordinal = ANY(%s)"
)

_DISPLACE = sql.SQL(
    "INSERT INTO displaced SELECT %s, c.ordinal, %s, k.key, k.payload_hash, k.event_time, k.block_id, k.ordinal"
    " FROM candidate c JOIN {segment} k ON k.key = c.key WHERE c.ordinal = ANY(%s)"
)
_PUT_BACK = sql.SQL(
    "UPDATE {segment} k SET payload_hash = d.payload_hash, event_time = d.event_time, block_id = d.first_block,"
    " ordinal = d.first_ordinal FROM displaced d WHERE d.block_id = %s AND d.ordinal = ANY(%s)"
    " AND k.key = d.key AND k.block_id = d.block_id"
)
_CARRY = sql.SQL(
    "INSERT INTO {opened} SELECT * FROM {segment} WHERE key = ANY(%s) AND block_id = %s ORDER BY key"
    " ON CONFLICT DO NOTHING"
)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a store stands."""

    retention: int
    opened: Segment | None
    closed: tuple[Segment, ...]
    dropped_before: int | None

    def takes(self, newest_event_time: int, retention_ms: int) -> bool:
        """Tell whether the open segment can take such keys."""
        return (
            self.opened is not None
            and retention_ms <= self.retention
            and segment_for(newest_event_time, retention_ms).start <= self.opened.start
            and newest_event_time < self.opened.end
        )

    def horizon(self, retention_ms: int) -> int | None:
        """Return a retention before the end of the open segment."""
        return self.opened.end - retention_ms if self.opened else None


class Segments:
    """One store of keys, within one transaction."""

    def __init__(self, db: Connection, store: str) -> None:
        self._db = db
        self._store = store

    def pointer(self, lock: str = "") -> Pointer | None:
        """Return where the store stands, kept still when it is locked."""
        row = self._db.execute(
            "SELECT retention, open_start, dropped_before FROM store WHERE name = %s" + lock,  # noqa: S608
            (self._store,),
        ).fetchone()
        if row is None:
            return None
        retention, open_start, dropped_before = row
        rows = self._db.execute(
            "SELECT start, length FROM segment WHERE store = %s ORDER BY start", (self._store,)
        ).fetchall()
        segments = [Segment(*found) for found in rows]
        return Pointer(
            retention,
            next((segment for segment in segments if segment.start == open_start), None),
            tuple(segment for segment in segments if segment.start != open_start),
            dropped_before,
        )

    def claim(
        self,
        deliveries: Deliveries,
        ordinals: np.ndarray,
        pointer: Pointer,
        block_id: int,
        decides: Callable[[int, Holder], bool],
    ) -> dict[int, Holder]:
        """Insert the keys of deliveries for a block; return the holders that decide instead.

        A row found elsewhere decides unless it is absent or expired; then the block takes its place.
        """
        assert pointer.opened is not None
        self._empty_candidates()
        with self._db.cursor().copy("COPY candidate FROM STDIN (FORMAT binary)") as copy:
            copy.write(copied_candidates(deliveries, ordinals))
        waiting = set(ordinals.tolist())
        holders: dict[int, Holder] = {}
        for segment in pointer.closed:
            for ordinal, holder in self._found(segment):
                other = holders.get(ordinal)
                if decides(ordinal, holder) and (other is None or holder.block_id < other.block_id):
                    holders[ordinal] = holder
        if holders:
            waiting -= holders.keys()
            self._db.execute("DELETE FROM candidate WHERE ordinal = ANY(%s)", (list(holders),))
        while waiting:
            waiting -= self._insert(pointer.opened, block_id)
            if not waiting:
                break
            # A statement of its own: the one that inserts does not see what others committed meanwhile.
            absent = {}
            for ordinal, holder in self._found(pointer.opened, waiting):
                if decides(ordinal, holder):
                    holders[ordinal] = holder
                else:
                    absent[ordinal] = holder
            waiting -= holders.keys()
            if absent:
                waiting -= self._take_over(pointer.opened, block_id, absent)
        return holders

    def put_back(self, block_id: int, ordinals: Collection[int] | None = None) -> None:
        """Put back the rows that a block took over and does not need: all of them, or those of some ordinals.

        They had expired for the block's source, but may be live for one that is behind it.
        """
        displaced = self._db.execute(
            "SELECT ordinal, start FROM displaced WHERE block_id = %s", (block_id,)
        ).fetchall()
        if not displaced:
            return
        pointer = self.pointer(" FOR SHARE")
        assert pointer is not None
        for segment in (*pointer.closed, pointer.opened):
            wanted = [
                ordinal
                for ordinal, start in displaced
                if segment is not None
                and start == segment.start
                and (ordinals is None or ordinal in ordinals)
            ]
            if segment is not None and wanted:
                self._db.execute(self._of(_PUT_BACK, segment), (block_id, wanted))
        self._db.execute("DELETE FROM displaced WHERE block_id = %s", (block_id,))

    def find(self, key: bytes) -> list[tuple[int, int]]:
        """Return (block, ordinal) of every row that holds a key, newest first."""
        pointer = self.pointer()
        found: set[tuple[int, int]] = set()
        for segment in (*pointer.closed, pointer.opened) if pointer else ():
            if segment is None:
                continue
            query = sql.SQL("SELECT block_id, ordinal FROM {segment} WHERE key = %s")
            try:
                with self._db.transaction():
                    rows = self._db.execute(self._of(query, segment), (UUID(bytes=key),)).fetchall()
            except UndefinedTable:
                continue  # dropped since this snapshot began
            found |= {(block_id, ordinal) for block_id, ordinal in rows}
        return sorted(found, reverse=True)

    def advance(self, newest_event_time: int, retention_ms: int) -> None:
        """Open the segment of the store's highest stream time, unless the open one can take its keys."""
        self._db.execute(
            "INSERT INTO store (name, retention) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (self._store, retention_ms),
        )
        pointer = self.pointer(" FOR UPDATE")
        assert pointer is not None
        self._db.execute(
            "UPDATE store SET retention = greatest(retention, %s) WHERE name = %s",
            (retention_ms, self._store),
        )
        opened, wanted = pointer.opened, segment_for(newest_event_time, retention_ms)
        if opened is None or opened.start < wanted.start:
            self._db.execute(self._of(_CREATE, wanted))
            self._db.execute("INSERT INTO segment VALUES (%s, %s, %s)", (self._store, *wanted))
            self._db.execute(
                "UPDATE store SET open_start = %s WHERE name = %s", (wanted.start, self._store)
            )
        elif opened.end <= newest_event_time:
            self._db.execute(
                "UPDATE segment SET length = %s WHERE store = %s AND start = %s",
                (newest_event_time - opened.start + 1, self._store, opened.start),
            )

    def expired(self, slowest_stream_time: int, retention_ms: int, lock: str = "") -> list[Segment]:
        """Return the closed segments nobody needs; those that were given up before stay given up."""
        pointer = self.pointer(lock)
        if pointer is None:
            return []
        retention = max(pointer.retention, retention_ms)
        return [
            segment
            for segment in pointer.closed
            if (pointer.dropped_before is not None and segment.end <= pointer.dropped_before)
            or is_droppable(segment.end, slowest_stream_time, retention)
        ]

    def carry_unresolved(self, segment: Segment) -> None:
        """Put what is never forgotten of a segment that is about to go into the open one as well.

        Such rows are found by their blocks' own identities. A closed segment takes nothing more, so none is missed; the
        pointer is held as in a claim.
        """
        pointer = self.pointer(" FOR SHARE")
        assert pointer is not None
        assert pointer.opened is not None
        query = _CARRY.format(
            opened=sql.Identifier(self.name(pointer.opened)),
            segment=sql.Identifier(self.name(segment)),
        )
        blocks = self._db.execute(
            f"SELECT block_id, facts FROM block JOIN facts USING (block_id) WHERE state IN ({NEVER_FORGOTTEN})",  # noqa: S608
            binary=True,
        )
        for block_id, facts in blocks.fetchall():
            keys = [UUID(bytes=key) for key in keys_of(facts)]
            self._db.execute(query, (keys, block_id))

    def give_up(
        self, found: Iterable[Segment], slowest_stream_time: int, retention_ms: int
    ) -> list[Segment]:
        """Note that what segments held is forgotten, if they still are expired; return these.

        From then on events of that time are too old for every source, also for one that has read nothing yet.
        """
        still = self.expired(slowest_stream_time, retention_ms, " FOR UPDATE")
        chosen = [segment for segment in found if segment in still]
        if chosen:
            self._db.execute(
                "UPDATE store SET dropped_before = greatest(dropped_before, %s) WHERE name = %s",
                (max(segment.end for segment in chosen), self._store),
            )
        return chosen

    def drop(self, segment: Segment) -> None:
        """Drop a segment that was given up, unless somebody still reads it: claims must not wait for that.

        The pointer comes first, as in a claim, so that no claim looks for a table that is gone.
        """
        self.pointer(" FOR UPDATE")
        self._db.execute("SET LOCAL lock_timeout = '500ms'")
        self._db.execute(self._of(sql.SQL("DROP TABLE IF EXISTS {segment}"), segment))
        self._db.execute(
            "DELETE FROM segment WHERE store = %s AND start = %s", (self._store, segment.start)
        )

    def name(self, segment: Segment) -> str:
        """Return a segment's table: the store and the moment it begins."""
        return segment_name(self._store, segment.start)

    def _empty_candidates(self) -> None:
        found = self._db.execute(_CANDIDATES)
        while found.nextset():
            pass
        # A commit empties the table; a claim that was rolled back leaves its dead rows to be read over.
        if found.fetchone() != (0,):
            self._db.execute("TRUNCATE pg_temp.candidate")

    def _insert(self, segment: Segment, block_id: int) -> set[int]:
        """Insert what is not there; return the ordinals that were inserted."""
        query = self._of(_INSERT, segment)
        row = self._db.execute(query, (block_id,), binary=True).fetchone()
        assert row is not None
        return set(row[0] or ())

    def _take_over(self, segment: Segment, block_id: int, absent: dict[int, Holder]) -> set[int]:
        """Put the block in the place of rows that are still what was read; return their ordinals."""
        locked = self._db.execute(self._of(_LOCK, segment), (list(absent),)).fetchall()
        same = [ordinal for ordinal, *place in locked if tuple(place) == absent[ordinal][:2]]
        expired = [o for o in same if absent[o].admission is AdmissionState.ADMITTED]
        if expired:
            self._db.execute(self._of(_DISPLACE, segment), (block_id, segment.start, expired))
        self._db.execute(self._of(_TAKE_OVER, segment), (block_id, same))
        return set(same)

    def _found(
        self, segment: Segment, only: set[int] | None = None
    ) -> Iterator[tuple[int, Holder]]:
        chosen = {"only": None if only is None else list(only)}
        rows = self._db.execute(self._of(_FOUND, segment), chosen, binary=True)
        for ordinal, block_id, found_ordinal, payload_hash, event_time, state, refused in rows:
            yield (
                ordinal,
                Holder(
                    block_id,
                    found_ordinal,
                    payload_hash,
                    event_time,
                    BlockState(state),
                    tuple(refused),
                ),
            )

    def _of(self, query: sql.SQL, segment: Segment) -> sql.Composed:
        return query.format(segment=sql.Identifier(self.name(segment)))
