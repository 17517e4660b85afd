"""The evidence writer the settings name."""

from __future__ import annotations

from admitone.evidence.writer import EvidenceWriter
from admitone.ledger.port import Ledger
from admitone.settings import Settings


def open_evidence(settings: Settings, ledger: Ledger) -> EvidenceWriter:
    """Return a writer for the configured folder."""
    return EvidenceWriter(
        ledger,
        settings.resolve(settings.evidence.path),
        settings.pipeline.name,
        settings.evidence.archive,
    )
