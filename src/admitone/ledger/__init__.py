"""The ledger the settings name."""

from __future__ import annotations

from admitone.ledger.port import Ledger, LedgerReader
from admitone.ledger.sqlite.store import SqliteStore
from admitone.ledger.store import Store
from admitone.ledger.stored_ledger import StoredLedger
from admitone.ledger.stored_reader import StoredReader
from admitone.settings import Settings

_POSTGRES = ("postgresql", "postgres")


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger; it is connected where it is first used."""
    return StoredLedger(_store(settings))


def open_ledger_reader(settings: Settings) -> LedgerReader:
    """Open the ledger for questions only: what it returns cannot write, and makes no file; without one it is empty."""
    return StoredReader(_store(settings, read_only=True))


def is_postgres(settings: Settings) -> bool:
    """Tell whether the ledger is a database that other machines may share."""
    scheme, separator, _ = settings.ledger.url.partition("://")
    return bool(separator) and scheme in _POSTGRES


def _store(settings: Settings, *, read_only: bool = False) -> Store:
    url = settings.ledger.url
    if is_postgres(settings):
        # Imported here: the command line starts at once when there is no such database.
        from admitone.ledger.postgres.store import PostgresStore

        return PostgresStore(url)  # which reads in transactions that cannot write
    return SqliteStore(settings.sqlite_path(url), read_only=read_only)
