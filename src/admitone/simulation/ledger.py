"""A ledger in memory: the statements of the SQLite ledger, on a database that has no file.

What decides is the real code. Only what a file brings is left out: processes, locks and the disk. So a ledger is made,
copied and put back within a fraction of a millisecond.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from admitone.infra.clock import Clock, wall_clock
from admitone.ledger.claims import Deliveries, Holder
from admitone.ledger.sqlite.rows import SqliteRows
from admitone.ledger.sqlite.schema import MIGRATIONS
from admitone.ledger.sqlite.store import SqliteStore, may_hold_name
from admitone.ledger.store import KeyClaim, Rows, T

Call = Callable[[str, Callable[[], T]], T]
"""Makes a call to a store, at once or when it is the caller's turn."""

_CANDIDATES = (
    "CREATE TEMP TABLE IF NOT EXISTS candidate"
    " (key BLOB, ordinal INTEGER, payload_hash BLOB, event_time INTEGER)"
)


def at_once(name: str, effect: Callable[[], T]) -> T:
    """Make a call without waiting for a turn."""
    return effect()


class SimulatedStore(SqliteStore):
    """A `Store` in memory; every transaction and every question is one call."""

    def __init__(self, call: Call[object] = at_once, clock: Clock = wall_clock) -> None:
        self._call = call
        self._clock = clock
        self._connection = _connected(_empty(), clock)
        self._lock = threading.RLock()
        self._reading: ContextVar[SqliteRows | None] = ContextVar("snapshot", default=None)

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
        """Read one consistent state, however long it takes: a copy of what is there now."""
        within = self._reading.get()
        if within is not None:
            yield within
            return
        taken = self._call("ledger.snapshot", self.backup)
        copy = _connected(taken, self._clock)  # type: ignore[arg-type]
        rows = SqliteRows(copy)
        self._reading.set(rows)
        try:
            yield rows
        finally:
            self._reading.set(None)
            copy.close()

    def stage(self, deliveries: Deliveries) -> None:
        """Do nothing: all share one connection, so candidates are laid out within the claim."""

    def claim_keys(self, rows: Rows, claim: KeyClaim) -> dict[int, Holder]:
        """Insert the keys of deliveries for a block; return the holders that decide instead."""
        self._connection.execute("DELETE FROM temp.candidate")
        return super().claim_keys(rows, claim)

    def backup(self) -> bytes:
        """Return a copy of the database."""
        with self._lock:
            return bytes(self._connection.serialize())

    def restore(self, copy: bytes) -> None:
        """Put a copy in the database's place."""
        with self._lock:
            self._connection.close()
            self._connection = _connected(copy, self._clock)

    def close(self) -> None:
        """Do nothing: others that use the database go on."""

    def _transaction(self, work: Callable[[Rows], T]) -> T:
        with self._lock:
            db = self._connection
            db.execute("BEGIN")
            try:
                done = work(SqliteRows(db))
                if db.in_transaction:
                    db.execute("COMMIT")
                return done
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def _asked(self, work: Callable[[Rows], T]) -> T:
        with self._lock:
            return work(SqliteRows(self._connection))


@cache
def _empty() -> bytes:
    """Return a database with the tables of a ledger and nothing in them."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    for migration in MIGRATIONS:
        for statement in migration.split(";\n\n"):
            db.execute(statement)
    return bytes(db.serialize())


def _connected(copy: bytes, clock: Clock) -> sqlite3.Connection:
    db = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=512
    )
    db.deserialize(copy)
    db.execute("PRAGMA temp_store=MEMORY")
    db.execute(_CANDIDATES)
    db.create_function("may_hold", -1, may_hold_name, deterministic=True)
    db.create_function("now_ms", 0, clock)
    return db
