"""A transaction or a snapshot of the PostgreSQL ledger, and how its values are spelled.

Everything is READ COMMITTED, snapshots are REPEATABLE READ. Text cannot hold every string, and a run's name may be
longer than an index entry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from admitone.infra.postgres import Connection
from admitone.ledger.model import THIS_BLOCK, Block, this_block
from admitone.ledger.name_filter import PROBES
from admitone.ledger.store import Condition, Document, Row, RunState

_ESCAPED = re.compile(r"\\(.)")
_AT_ONCE = 100
_cursors = count(1)


class PostgresRows:
    """A `Rows` on a connection to PostgreSQL."""

    run_key = "run_key"
    anomaly_key = "identity, payload_hash"
    hash_bytes = "uuid_send(k.payload_hash)"
    # The time of the statement, not of the transaction, which may have waited for locks since it began.
    now_ms = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    # A promoted server writes its log on a timeline of its own; tables that were put back have other numbers.
    database = (
        "CASE WHEN pg_is_in_recovery() THEN 'standby'"
        " ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END"
        " || ':' || 'ledger'::regclass::oid"
    )

    def __init__(self, db: Connection) -> None:
        self.db = db

    def all(self, statement: str, *values: Any) -> list[Row]:
        """Return every row."""
        return self.db.execute(statement, _stored(values), binary=True).fetchall()

    def first(self, statement: str, *values: Any) -> Row | None:
        """Return the first row, or None."""
        return next(iter(self.all(statement, *values)), None)

    def stream(self, statement: str, *values: Any) -> Iterator[Row]:
        """Yield rows, however many there are, a few in memory at a time."""
        with self.db.cursor(f"rows_{next(_cursors)}", binary=True) as cursor:
            cursor.itersize = _AT_ONCE
            yield from cursor.execute(statement, _stored(values))

    def change(self, statement: str, *values: Any) -> int:
        """Return how many rows a statement changed."""
        return self.db.execute(statement, _stored(values)).rowcount

    def change_each(self, statement: str, values: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each set of values, sent together."""
        self.db.cursor().executemany(statement, map(_stored, values))

    def lock(self, name: str) -> None:
        """Let every other transaction that asks for this name wait until this one ends."""
        self.db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))

    def roll_back(self) -> None:
        """Undo the transaction; nothing may be done in it afterwards."""
        self.db.execute("ROLLBACK")

    def text(self, name: str) -> str:
        r"""Return a name as the database can hold it: a NUL becomes \0 and a backslash two."""
        return name.replace("\\", "\\\\").replace("\0", "\\0")

    def name(self, text: str) -> str:
        """Return the name that was stored."""
        if "\\" not in text:
            return text
        return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], text)

    def loaded(self, document: Any) -> Any:
        """Return the value of a stored document or list: it is read already."""
        return document

    def key(self, key: bytes) -> object:
        """Return an identity's key as a segment holds it."""
        return UUID(bytes=key)

    def key_of_run(self, run_id: str) -> object:
        """Return the value of the column by which a run is found: a hash of its name."""
        return UUID(bytes=hashlib.sha256(run_id.encode()).digest()[:16])

    def join_runs(self, runs: Iterable[str]) -> dict[str, RunState]:
        """Make a block's runs known and keep them as they are; return their states."""
        names = {self.key_of_run(run): run for run in runs}
        query = (
            "SELECT run_key, state = 'CLOSED', was_closed FROM run WHERE run_key = ANY(%s)"
            " ORDER BY run_key FOR SHARE"
        )
        found = self.all(query, list(names))
        new = sorted(names.keys() - {key for key, *_ in found}, key=str)
        if new:
            self.change_each(
                "INSERT INTO run (run_key, run_id) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                [(key, self.text(names[key])) for key in new],
            )
            found = self.all(query, list(names))
        return {names[key]: RunState(closed, bool(was)) for key, closed, was in found}

    def note_runs(self, block_id: int, runs: Iterable[str]) -> None:
        """Do nothing: the block's row is indexed by its runs."""

    def holds_run(self, run_id: str) -> Condition:
        """Return the condition that a block holds deliveries of a run."""
        return "block.runs ? %s", [self.text(run_id)]

    def may_hold_name(self, number: int) -> Condition:
        """Return the condition that a block's filter may hold a name.

        The filter is stored out of line and uncompressed, so each probe reads one chunk of it.
        """
        low, high = number & 0xFFFFFFFF, number >> 32
        probes = []
        for step in range(PROBES):
            bit = f"({low + step * high}::bigint & (octet_length(filter) * 8::bigint - 1))"
            byte = f"get_byte(substring(filter FROM ({bit} >> 3)::integer + 1 FOR 1), 0)"
            probes.append(f"(({byte} >> ({bit} & 7)::integer) & 1) = 1")
        return (
            "EXISTS (SELECT 1 FROM names WHERE names.block_id = block.block_id"  # noqa: S608
            f" AND {' AND '.join(probes)})",
            [],
        )

    def insert_columns(
        self, block_id: int, facts: bytes, names: bytes, verdicts: bytes, journal: bytes
    ) -> None:
        """Store the large parts of a block that is claimed, in one statement."""
        self.change(
            "WITH f AS (INSERT INTO facts VALUES (%s, %b)), n AS (INSERT INTO names VALUES (%s, %b)),"
            " v AS (INSERT INTO verdicts VALUES (%s, %b, NULL)) INSERT INTO journal VALUES (%s, %b)",
            block_id, facts, block_id, names, block_id, verdicts, block_id, journal,
        )  # fmt: skip

    def number_blocks_beyond(self, block_id: int) -> None:
        """Give new blocks numbers beyond this one."""
        self.all(
            "SELECT setval('block_block_id_seq', greatest(last_value, %s)) FROM block_block_id_seq",
            block_id,
        )

    def conclude(
        self, block: Block, verdicts: bytes | None, bus: bytes, row: Mapping[str, Any]
    ) -> int:
        """Bring a block in flight to its decided state, in one statement; return how many blocks changed."""
        columns = ", ".join(f"{name} = %s" for name in row)
        return self.change(
            "WITH v AS (UPDATE verdicts SET verdicts = coalesce(%b, verdicts), bus = %b"  # noqa: S608
            f" WHERE block_id = %s) UPDATE block SET {columns} WHERE {THIS_BLOCK} AND state = 'IN_FLIGHT'",
            verdicts, bus, block.block_id, *row.values(), *this_block(block),
        )  # fmt: skip

    def create_segment(self, table: str) -> None:
        """Create the table of a segment."""
        self.change(
            f"CREATE TABLE {table} (key uuid PRIMARY KEY, payload_hash uuid NOT NULL,"
            " event_time bigint NOT NULL, block_id bigint NOT NULL, ordinal integer NOT NULL)"
        )


def _stored(values: Sequence[Any]) -> list[Any]:
    return [Jsonb(value.value) if isinstance(value, Document) else value for value in values]
