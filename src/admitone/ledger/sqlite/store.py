"""The ledger's database in one SQLite file (WAL, synchronous=FULL), safe with several writing processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from admitone.core.segment_times import Segment
from admitone.infra.clock import Clock, wall_clock
from admitone.infra.sqlite import LOOK_EVERY_S, Database
from admitone.ledger.claims import Deliveries, Holder, candidates
from admitone.ledger.name_filter import may_hold
from admitone.ledger.segments import held_in_closed, held_in_open, pointer_of, table_of, take_over
from admitone.ledger.sqlite.candidates import lay_out
from admitone.ledger.sqlite.rows import SqliteRows
from admitone.ledger.sqlite.schema import MIGRATIONS
from admitone.ledger.store import KeyClaim, Rows, T

_SLICE = 4_000
_PAUSE_S = 2 * LOOK_EVERY_S
"""Long enough for a process that waits for the write lock to find it free."""


class SqliteStore:
    """A `Store` on a SQLite file."""

    def __init__(self, path: Path, *, read_only: bool = False, clock: Clock = wall_clock) -> None:
        functions: dict[str, Callable[..., int]] = {"may_hold": may_hold_name, "now_ms": clock}
        self._database = Database(path, MIGRATIONS, functions, read_only=read_only)

    def run(self, work: Callable[[Rows], T], *, durable: bool = True) -> T:
        """Run a transaction under the write lock; commit it unless the work rolled it back."""
        try:
            with self._database.transaction(durable=durable) as db:
                return work(SqliteRows(db))
        finally:
            if not durable:
                time.sleep(_PAUSE_S)

    def read(self, work: Callable[[Rows], T]) -> T:
        """Ask questions of one consistent state."""
        with self.snapshot() as rows:
            return work(rows)

    @contextmanager
    def snapshot(self) -> Iterator[Rows]:
        """Read one consistent state, however long it takes; what is read within it sees the same."""
        with self._database.snapshot() as db:
            yield SqliteRows(db)

    def stage(self, deliveries: Deliveries) -> None:
        """Lay candidates, in key order, where a claim finds them: a worker that waits for the lock has them ready."""
        everything = candidates(deliveries, np.zeros(len(deliveries.first), dtype=bool))
        with self._database.scratch() as db:
            lay_out(db, deliveries, everything)

    def claim_keys(self, rows: Rows, claim: KeyClaim) -> dict[int, Holder]:
        """Insert the keys of deliveries for a block; return the holders that decide instead."""
        assert isinstance(rows, SqliteRows)
        if rows.first("SELECT count(*) FROM temp.candidate") != (len(claim.ordinals),):
            lay_out(rows.db, claim.deliveries, claim.ordinals)
        closed = held_in_closed(rows, claim)
        # Reading first costs less than inserting and asking which inserts did not happen.
        opened, absent = held_in_open(rows, claim)
        if absent:
            take_over(rows, claim, absent)
        rows.change(
            f"INSERT INTO {table_of(claim.store, claim.opened)} SELECT key, payload_hash, event_time, %s, ordinal"  # noqa: S608
            " FROM temp.candidate WHERE true ON CONFLICT DO NOTHING",
            claim.block_id,
        )
        return closed | opened

    def drop(self, store: str, segment: Segment) -> bool:
        """Delete a given-up segment slice by slice, so that nobody waits long for the write lock."""
        more = True
        while more:
            before = self.read(lambda rows: _slice_end(rows, store, segment))
            more = self.run(lambda rows: _delete(rows, store, segment, before), durable=False)  # noqa: B023
        return True

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()


def may_hold_name(packed: bytes, name: int) -> bool:
    """Answer the statement's `may_hold`: SQLite's integers have a sign."""
    return may_hold(packed, name & 0xFFFF_FFFF_FFFF_FFFF)


def _is_there(rows: Rows, store: str, segment: Segment) -> bool:
    pointer = pointer_of(rows, store)
    return any(each.start == segment.start for each in pointer.closed)


def _slice_end(rows: Rows, store: str, segment: Segment) -> bytes | None:
    """Return the key before which a small part of a segment lies; None where less is left."""
    if not _is_there(rows, store, segment):
        return None
    row = rows.first(
        f"SELECT key FROM {table_of(store, segment)} ORDER BY key LIMIT 1 OFFSET {_SLICE}"  # noqa: S608
    )
    return row[0] if row else None


def _delete(rows: Rows, store: str, segment: Segment, before: bytes | None) -> bool:
    """Delete a small part of a segment, with the last one the segment itself; tell whether there is more."""
    table = table_of(store, segment)
    if not _is_there(rows, store, segment):
        return False  # Another process was faster.
    if before is not None:
        rows.change(f"DELETE FROM {table} WHERE key < %s", before)  # noqa: S608
        return True
    rows.change(f"DROP TABLE {table}")
    rows.change("DELETE FROM segment WHERE store = %s AND start = %s", store, segment.start)
    return False
