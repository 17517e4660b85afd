"""The ledger the settings name."""

from __future__ import annotations

from admitone.ledger.port import Ledger
from admitone.ledger.sqlite import SqliteLedger
from admitone.settings import Settings

_POSTGRES = ("postgresql", "postgres")


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger; it is connected where it is first used."""
    url = settings.ledger.url
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _POSTGRES:
        # Imported here: the command line starts at once when there is no such database.
        from admitone.ledger.postgres import PostgresLedger

        return PostgresLedger(url)
    return SqliteLedger(settings.sqlite_path(url))
