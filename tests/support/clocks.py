"""Ledgers whose database shows the time that a test sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psycopg
from psycopg import sql

from admitone.ledger.sqlite.store import SqliteStore
from admitone.ledger.stored_ledger import StoredLedger
from tests.support.ledgers import NOW, OpenLedger, postgres_ledger


class LedgerClock:
    """The clock of a database."""

    def __init__(self, show: Callable[[int], None] = lambda _: None) -> None:
        self._show = show
        self.now = NOW

    def set(self, now: int) -> None:
        """Let the database show this time."""
        self.now = now
        self._show(now)


def clocked_sqlite(path: Path) -> tuple[OpenLedger, LedgerClock]:
    """Return a ledger in a file, and the clock of its machine."""
    clock = LedgerClock()
    return lambda: StoredLedger(SqliteStore(path, clock=lambda: clock.now)), clock


def clocked_postgres(url: str) -> tuple[OpenLedger, LedgerClock]:
    """Return a ledger in a schema whose `clock_timestamp` comes before the server's own."""
    before = f"{url}%2Cpg_catalog"
    db = psycopg.connect(before, autocommit=True)
    schema = sql.Identifier(url.rpartition("search_path%3D")[2])
    db.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
    db.execute(sql.SQL("CREATE TABLE {}.clock AS SELECT {}::bigint AS now").format(schema, NOW))
    db.execute(
        sql.SQL(
            "CREATE FUNCTION {}.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
            " AS 'SELECT to_timestamp(now / 1000.0) FROM clock'"
        ).format(schema)
    )

    def show(now: int) -> None:
        db.execute("UPDATE clock SET now = %s", (now,))

    return lambda: postgres_ledger(before), LedgerClock(show)
