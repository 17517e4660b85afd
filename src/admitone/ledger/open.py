"""The ledger the settings name."""

from __future__ import annotations

from admitone.ledger.port import Ledger, LedgerReader
from admitone.ledger.sqlite import SqliteLedger
from admitone.ledger.sqlite_reader import SqliteReader
from admitone.settings import Settings

_POSTGRES = ("postgresql", "postgres")


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger; it is connected where it is first used."""
    url = settings.ledger.url
    if is_postgres(settings):
        # Imported here: the command line starts at once when there is no such database.
        from admitone.ledger.postgres import PostgresLedger

        return PostgresLedger(url)
    return SqliteLedger(settings.sqlite_path(url))


def open_reader(settings: Settings) -> LedgerReader:
    """Open the ledger for questions only: what it returns has nothing to write with."""
    url = settings.ledger.url
    if is_postgres(settings):
        from admitone.ledger.postgres_reader import PostgresReader

        return PostgresReader(url)
    return SqliteReader(settings.sqlite_path(url))


def is_postgres(settings: Settings) -> bool:
    """Tell whether the ledger is a database that other machines may share."""
    scheme, separator, _ = settings.ledger.url.partition("://")
    return bool(separator) and scheme in _POSTGRES
