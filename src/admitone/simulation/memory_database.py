"""Databases in memory with the tables of a ledger, used for one history after another.

Making one takes longer than most histories need it for: SQLite reads its schema and prepares every statement anew. So
one that is no longer needed is emptied and kept; segments stay, as empty tables that the next ledger may open again.
"""

from __future__ import annotations

import sqlite3
from functools import cache

from admitone.infra.clock import Clock, wall_clock
from admitone.ledger.sqlite.candidates import CREATE_CANDIDATES
from admitone.ledger.sqlite.schema import MIGRATIONS
from admitone.ledger.sqlite.store import may_hold_name

_spare: list[MemoryDatabase] = []


class MemoryDatabase:
    """A connection, and what the functions of its statements ask."""

    def __init__(self, copy: bytes) -> None:
        self.clock: Clock = wall_clock
        self.number = 0
        """What another file in a database's place would have: another number."""
        self._is_emptied = False
        self.connection = _connected(copy)
        # Functions stay what they are: a new one would let every statement be prepared again.
        self.connection.create_function("now_ms", 0, self._now)
        self.connection.create_function("file_number", 0, lambda: str(self.number))
        self.connection.create_function("is_emptied", 0, lambda: self._is_emptied)

    def _now(self) -> int:
        return self.clock()

    def copy(self) -> bytes:
        """Return a copy of all it holds."""
        return bytes(self.connection.serialize())

    def empty(self) -> None:
        """Remove every row, also of tables that no statement may remove any from."""
        self._is_emptied = True
        tables = self.connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_stat%'"
        ).fetchall()
        self.connection.execute("BEGIN")
        for (name,) in tables:
            self.connection.execute(f'DELETE FROM "{name}"')  # noqa: S608
        self.connection.execute("COMMIT")
        self._is_emptied = False


def taken(ledger_id: str) -> MemoryDatabase:
    """Return the database of a new ledger, which nothing else uses."""
    database = _spare.pop() if _spare else MemoryDatabase(_tables())
    database.number = 0
    database.connection.execute("DELETE FROM ledger")
    database.connection.execute("INSERT INTO ledger VALUES (?)", (ledger_id,))
    return database


def give_back(database: MemoryDatabase) -> None:
    """Empty a database and keep it for the next one that needs one."""
    database.empty()
    _spare.append(database)


def read_only(copy: bytes) -> sqlite3.Connection:
    """Return a connection to a copy, to read from it."""
    return _connected(copy)


@cache
def _tables() -> bytes:
    """Return a database with the tables of a ledger and nothing in them."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    for migration in MIGRATIONS:
        for statement in migration.split(";\n\n"):
            db.execute(statement)
    keeping = (
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE '%BEFORE DELETE%'"
    )
    for name, statement in db.execute(keeping).fetchall():
        db.execute(f"DROP TRIGGER {name}")
        db.execute(statement.replace("BEGIN", "WHEN NOT is_emptied() BEGIN", 1))
    return bytes(db.serialize())


def _connected(copy: bytes) -> sqlite3.Connection:
    db = sqlite3.connect(
        ":memory:", isolation_level=None, check_same_thread=False, cached_statements=512
    )
    db.deserialize(copy)
    db.execute("PRAGMA temp_store=MEMORY")
    db.execute(CREATE_CANDIDATES)
    db.create_function("may_hold", -1, may_hold_name, deterministic=True)
    return db
