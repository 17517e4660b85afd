"""The evidence writer the settings name."""

from __future__ import annotations

from admitone.evidence.writer import EvidenceWriter
from admitone.ledger.port import Ledger
from admitone.settings import Settings
from admitone.transport.port import Transport


def open_evidence(settings: Settings, ledger: Ledger, transport: Transport) -> EvidenceWriter:
    """Return a writer for the configured folder."""
    return EvidenceWriter(
        ledger,
        settings.resolve(settings.evidence.path),
        tuple(entry.topic for entry in settings.topics),
        transport.offset_kind,
        settings.evidence.archive,
    )
