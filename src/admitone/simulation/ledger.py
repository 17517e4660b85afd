"""A ledger in memory: the statements of the SQLite ledger, on a database that has no file.

What decides is the real code. Only what a file brings is left out: processes, locks and the disk. So a ledger is made,
copied and put back within a fraction of a millisecond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

from admitone.infra.clock import Clock, wall_clock
from admitone.ledger.claims import Deliveries, Holder
from admitone.ledger.sqlite.rows import SqliteRows
from admitone.ledger.sqlite.store import SqliteStore
from admitone.ledger.store import KeyClaim, Row, Rows, T
from admitone.simulation import memory_database

Call = Callable[[str, Callable[[], T]], T]
"""Makes a call to a store, at once or when it is the caller's turn."""

_made = count(1)


def at_once(name: str, effect: Callable[[], T]) -> T:
    """Make a call without waiting for a turn."""
    return effect()


class _Rows(SqliteRows):
    """A transaction or a snapshot on a database that others use in between."""

    def stream(self, statement: str, *values: Any) -> Iterator[Row]:
        """Yield rows that were read at once: between two of them others may write."""
        yield from self.all(statement, *values)

    def create_segment(self, table: str) -> None:
        """Create the table of a segment, or find it empty: an earlier ledger on this database had it."""
        super().create_segment(f"IF NOT EXISTS {table}")


class SimulatedStore(SqliteStore):
    """A `Store` in memory; every transaction and every question is one call."""

    def __init__(self, call: Call[object] = at_once, clock: Clock = wall_clock) -> None:
        self._call = call
        self._memory = memory_database.taken(f"simulated-{next(_made)}")
        self._memory.clock = clock
        self._restored = 0
        self._lock = threading.RLock()
        self._reading: ContextVar[SqliteRows | None] = ContextVar("snapshot", default=None)
        self._snapshots: list[_Rows] = []
        """Those that were taken since the last change, and so need no copy yet."""

    def run(self, work: Callable[[Rows], T], *, durable: bool = True) -> T:
        """Run a transaction; commit it unless the work rolled it back."""
        return self._call("ledger.write", lambda: self._transaction(work))  # type: ignore[return-value]

    def read(self, work: Callable[[Rows], T]) -> T:
        """Ask questions of one consistent state."""
        snapshot = self._reading.get()
        if snapshot is not None:
            return work(snapshot)
        return self._call("ledger.read", lambda: self._asked(work))  # type: ignore[return-value]

    @contextmanager
    def snapshot(self) -> Iterator[Rows]:
        """Read one consistent state, however long it takes: a copy is made once it changes."""
        within = self._reading.get()
        if within is not None:
            yield within
            return
        rows: _Rows = self._call("ledger.snapshot", self._snapshot)  # type: ignore[assignment]
        self._reading.set(rows)
        try:
            yield rows
        finally:
            self._reading.set(None)
            with self._lock:
                if rows in self._snapshots:
                    self._snapshots.remove(rows)
                else:
                    rows.db.close()

    def stage(self, deliveries: Deliveries) -> None:
        """Do nothing: all share one connection, so candidates are laid out within the claim."""

    def claim_keys(self, rows: Rows, claim: KeyClaim) -> dict[int, Holder]:
        """Insert the keys of deliveries for a block; return the holders that decide instead."""
        self._memory.connection.execute("DELETE FROM temp.candidate")
        return super().claim_keys(rows, claim)

    def backup(self) -> bytes:
        """Return a copy of the database."""
        with self._lock:
            return self._memory.copy()

    def restore(self, copy: bytes) -> None:
        """Put a copy in the database's place."""
        with self._lock:
            self._copy_snapshots()
            clock = self._memory.clock
            memory_database.give_back(self._memory)
            self._restored += 1
            self._memory = memory_database.MemoryDatabase(copy)
            self._memory.clock, self._memory.number = clock, self._restored

    def close(self) -> None:
        """Do nothing: others that use the database go on."""

    def discard(self) -> None:
        """Remove everything; nothing may use the store afterwards."""
        self._copy_snapshots()
        memory_database.give_back(self._memory)

    def _transaction(self, work: Callable[[Rows], T]) -> T:
        with self._lock:
            self._copy_snapshots()
            db = self._memory.connection
            db.execute("BEGIN")
            try:
                done = work(_Rows(db))
                if db.in_transaction:
                    db.execute("COMMIT")
                return done
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _asked(self, work: Callable[[Rows], T]) -> T:
        with self._lock:
            return work(_Rows(self._memory.connection))

    def _snapshot(self) -> _Rows:
        with self._lock:
            rows = _Rows(self._memory.connection)
            self._snapshots.append(rows)
            return rows

    def _copy_snapshots(self) -> None:
        """Let who reads a consistent state go on with a copy: the database is about to change."""
        for rows in self._snapshots:
            rows.db = memory_database.read_only(self._memory.copy())
        self._snapshots.clear()
