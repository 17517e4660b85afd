"""The ledger the settings name."""

from __future__ import annotations

import os
from pathlib import Path

from admitone.ledger.port import Ledger, LedgerReader
from admitone.ledger.sqlite.store import SqliteStore
from admitone.ledger.store import ReadStore, Store
from admitone.ledger.stored_ledger import StoredLedger
from admitone.ledger.stored_reader import StoredReader
from admitone.settings import Settings

_POSTGRES = ("postgresql", "postgres")
_NOTHING = Path(os.devnull, "ledger.db")
"""Where no file can ever be: read-only, it is an empty store."""


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger; it is connected where it is first used."""
    url = settings.ledger.url
    if is_postgres(settings):
        # Imported here: the command line starts at once when there is no such database.
        from admitone.ledger.postgres.store import PostgresStore

        store: Store = PostgresStore(url)
    else:
        store = SqliteStore(settings.sqlite_path(url))
    return StoredLedger(store)


def open_ledger_reader(settings: Settings) -> LedgerReader:
    """Open the ledger for questions only: what it returns cannot write, and makes nothing; without one it is empty."""
    url = settings.ledger.url
    if is_postgres(settings):
        from admitone.ledger.postgres.read_store import PostgresReadStore

        store: ReadStore = PostgresReadStore(url, SqliteStore(_NOTHING, read_only=True))
    else:
        store = SqliteStore(settings.sqlite_path(url), read_only=True)
    return StoredReader(store)


def is_postgres(settings: Settings) -> bool:
    """Tell whether the ledger is a database that other machines may share."""
    scheme, separator, _ = settings.ledger.url.partition("://")
    return bool(separator) and scheme in _POSTGRES
