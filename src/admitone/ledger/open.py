"""The ledger the settings name."""

from __future__ import annotations

from admitone.ledger.port import Ledger
from admitone.ledger.sqlite import SqliteLedger
from admitone.settings import Settings


def open_ledger(settings: Settings) -> Ledger:
    """Open the ledger; it is connected where it is first used."""
    return SqliteLedger(settings.sqlite_path(settings.ledger.url))
