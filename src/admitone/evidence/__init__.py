"""The evidence store and its writer, as the settings name them."""

from __future__ import annotations

from admitone.evidence.evidence_store import EvidenceStore, FolderStore, FsspecStore
from admitone.evidence.writer import EvidenceWriter
from admitone.ledger.port import Ledger
from admitone.settings import Settings

_LOCAL = "file://"


def open_evidence_store(settings: Settings) -> EvidenceStore:
    """Return the configured store; a `file://` URL is a folder like any other."""
    path = settings.evidence.path
    if "://" in path and not path.startswith(_LOCAL):
        return FsspecStore(path, dict(settings.evidence.options))
    return FolderStore(settings.resolve(path.removeprefix(_LOCAL)))


def open_evidence_writer(
    settings: Settings, ledger: Ledger, pipeline: str | None = None
) -> EvidenceWriter:
    """Return a writer for the configured store, of a pipeline's evidence: the admission boundary's unless named."""
    name = pipeline or settings.pipeline.name
    return EvidenceWriter(ledger, open_evidence_store(settings), name, settings.evidence.archive)
