"""A transaction or a snapshot of the SQLite ledger: PostgreSQL's words in SQLite's, values as SQLite holds them.

Every writing transaction takes the write lock first, which stands for all the locks the protocol asks for. Lists and
documents are JSON texts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from admitone.ledger.model import THIS_BLOCK, Block, this_block
from admitone.ledger.store import Condition, Document, Row, RunState

_WORDS = (
    ("= ANY(%s)", "IN (SELECT value FROM json_each(?))"),
    (" FOR UPDATE", ""),
    (" FOR SHARE", ""),
    ("greatest(", "max("),
    ("%s", "?"),
    ("%b", "?"),
    ("%%", "%"),
)
_LARGEST_INTEGER = (1 << 63) - 1
_PLAIN = frozenset({int, str, bytes, type(None)})
"""What SQLite takes as it is."""
_TAKES_DELIVERIES = RunState(is_closed=False, was_closed=False)


class SqliteRows:
    """A `Rows` on a connection of one SQLite file."""

    run_key = "run_id"
    anomaly_key = "run_id, identity, payload_hash"
    hash_bytes = "k.payload_hash"
    now_ms = "now_ms()"
    database = "file_number()"

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def all(self, statement: str, *values: Any) -> list[Row]:
        """Return every row."""
        return self._execute(statement, values).fetchall()

    def first(self, statement: str, *values: Any) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.all(statement, *values)), None)

    def stream(self, statement: str, *values: Any) -> Iterator[Row]:
        """Yield rows, however many there are, a few in memory at a time."""
        yield from self._execute(statement, values)

    def change(self, statement: str, *values: Any) -> int:
        """Return how many rows a statement changed."""
        return self._execute(statement, values).rowcount

    def change_each(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each set of values."""
        self.db.executemany(in_sqlite(statement), map(_stored, values))

    def lock(self, name: str) -> None:
        """Do nothing: the write lock is held."""

    def roll_back(self) -> None:
        """Undo the transaction; nothing may be done in it afterwards."""
        self.db.execute("ROLLBACK")

    def text(self, name: str) -> str:
        """Return a name as the database can hold it: as it is."""
        return name

    def name(self, text: str) -> str:
        """Return the name that was stored."""
        return text

    def loaded(self, document: Any) -> Any:
        """Return the value of a stored document or list."""
        return orjson.loads(document) if document != "[]" else []

    def key(self, key: bytes) -> object:
        """Return an identity's key as a segment holds it."""
        return key

    def key_of_run(self, run_id: str) -> object:
        """Return the value of the column by which a run is found: its name."""
        return run_id

    def join_runs(self, runs: Iterable[str]) -> dict[str, RunState]:
        """Make a block's runs known; return their states."""
        named = set(runs)
        self.change_each(
            "INSERT INTO run (run_id) VALUES (%s) ON CONFLICT DO NOTHING", [(run,) for run in named]
        )
        found = self.all(
            "SELECT run_id, state = 'CLOSED', was_closed FROM run WHERE state = 'CLOSED' OR was_closed"
        )
        states = {run: RunState(bool(closed), bool(was)) for run, closed, was in found}
        return {run: states.get(run, _TAKES_DELIVERIES) for run in named}

    def note_runs(self, block_id: int, runs: Iterable[str]) -> None:
        """Remember that a block holds deliveries of these runs."""
        self.change_each("INSERT INTO block_run VALUES (%s, %s)", [(run, block_id) for run in runs])

    def holds_run(self, run_id: str) -> Condition:
        """Return the condition that a block holds deliveries of a run."""
        return "block.block_id IN (SELECT block_id FROM block_run WHERE run_id = %s)", [run_id]

    def may_hold_name(self, number: int) -> Condition:
        """Return the condition that a block's filter may hold a name, asked of `name_filter` itself."""
        signed = number if number <= _LARGEST_INTEGER else number - (1 << 64)
        return (
            "EXISTS (SELECT 1 FROM names WHERE names.block_id = block.block_id"
            " AND may_hold(names.filter, %s))",
            [signed],
        )

    def insert_columns(
        self, block_id: int, facts: bytes, names: bytes, verdicts: bytes, journal: bytes
    ) -> None:
        """Store the large parts of a block that is claimed."""
        self.change("INSERT INTO facts VALUES (%s, %s)", block_id, facts)
        self.change("INSERT INTO names VALUES (%s, %s)", block_id, names)
        self.change("INSERT INTO verdicts VALUES (%s, %s, NULL)", block_id, verdicts)
        self.change("INSERT INTO journal VALUES (%s, %s)", block_id, journal)

    def number_blocks_beyond(self, block_id: int) -> None:
        """Give new blocks numbers beyond this one."""
        self.change("UPDATE sqlite_sequence SET seq = max(seq, %s) WHERE name = 'block'", block_id)
        self.change(
            "INSERT INTO sqlite_sequence SELECT 'block', %s"
            " WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'block')",
            block_id,
        )

    def conclude(
        self, block: Block, verdicts: bytes | None, bus: bytes, row: Mapping[str, Any]
    ) -> int:
        """Bring a block in flight to its decided state; return how many blocks changed: one, or none."""
        self.change(
            "UPDATE verdicts SET verdicts = coalesce(%s, verdicts), bus = %s WHERE block_id = %s",
            verdicts, bus, block.block_id,
        )  # fmt: skip
        columns = ", ".join(f"{name} = %s" for name in row)
        return self.change(
            f"UPDATE block SET {columns} WHERE {THIS_BLOCK} AND state = 'IN_FLIGHT'",  # noqa: S608
            *row.values(), *this_block(block),
        )  # fmt: skip

    def create_segment(self, table: str) -> None:
        """Create the table of a segment."""
        self.change(
            f"CREATE TABLE {table} (key BLOB PRIMARY KEY, payload_hash BLOB NOT NULL,"
            " event_time INTEGER NOT NULL, block_id INTEGER NOT NULL, ordinal INTEGER NOT NULL)"
            " WITHOUT ROWID"
        )

    def _execute(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        return self.db.execute(in_sqlite(statement), _stored(values))


@lru_cache(maxsize=512)
def in_sqlite(statement: str) -> str:
    """Return a statement in SQLite's words."""
    for said, meant in _WORDS:
        statement = statement.replace(said, meant)
    return statement


def _stored(values: Sequence[Any]) -> list[Any]:
    return [value if type(value) in _PLAIN else _stored_value(value) for value in values]


def _stored_value(value: Any) -> Any:
    if isinstance(value, Document):
        value = value.value
    elif not isinstance(value, (list, tuple)):
        return value
    return orjson.dumps(value).decode()
