"""The boundary: what it decides by, and where decisions and evidence are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from admitone.core.errors import ConfigurationError
from admitone.core.keys import KeyRule
from admitone.settings.section import TOPIC_NAME, DurationMs, Section

Texts = tuple[tuple[str, str], ...]
"""The name of each file, and what it holds."""


class PipelineSettings(Section):
    """Who we are and what a delivery may look like."""

    name: str = "admitone"
    run_id: str = Field(default="default", min_length=1)
    max_block: int = Field(default=100_000, ge=1, le=1_000_000)
    max_event_bytes: int = Field(default=900_000, ge=1_000)
    future_tolerance: DurationMs = 3_600_000
    claim_lease: DurationMs = 60_000
    quarantine_limit: float = Field(default=0.5, gt=0, le=1)
    quarantine_window: int = Field(default=1_000, ge=1)


class SchemaSettings(Section):
    """What payloads are checked against, beside the schemas that come with the package."""

    folder: str = ""
    """Files such as `refund.1.0.0.json`, one for each version of an event type."""
    _texts: Texts = PrivateAttr(())

    @property
    def texts(self) -> Texts:
        """Return what the files hold; read once, so that every task of a query judges alike, wherever it runs."""
        return self._texts

    def read(self, home: Path) -> None:
        """Read the folder."""
        if not self.folder:
            return
        folder = (home / self.folder).resolve()
        try:
            files = sorted(file for file in folder.iterdir() if file.suffix == ".json")
            self._texts = tuple((file.name, file.read_text(encoding="utf-8")) for file in files)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"Cannot read the schemas in {folder}: {getattr(error, 'strerror', error)}.",
                "make the folder readable, or correct folder of [schemas]",
            ) from error


class LedgerSettings(Section):
    """The store that decides."""

    url: str = "sqlite:data/ledger.db"


class EvidenceSettings(Section):
    """Receipts, quarantine, archive and closing artifacts, in a folder or behind an fsspec URL."""

    path: str = Field(default="data/evidence", min_length=1)
    options: dict[str, Any] = Field(default={})
    archive: bool = True
    journal_retention: DurationMs = 86_400_000

    @field_validator("path")
    @classmethod
    def _a_url_names_its_store(cls, path: str) -> str:
        scheme, found, rest = path.partition("://")
        if found and not (scheme.replace("+", "").isalnum() and rest):
            raise ValueError("expected a folder or a URL such as s3://bucket/evidence")
        return path


class StateSettings(Section):
    """RocksDB behind engine-state deduplication; what Spark lets be set of it (DED-8)."""

    memory_mb: int = Field(default=1_024, ge=0, le=1 << 20)
    write_buffer_share: float = Field(default=0.5, gt=0, lt=1)
    write_buffer_mb: int = Field(default=128, ge=1, le=1 << 16)
    write_buffers: int = Field(default=4, ge=2, le=64)
    block_cache_mb: int = Field(default=512, ge=1, le=1 << 20)
    compression: Literal["lz4", "zstd", "snappy", "none"] = "lz4"
    compact_on_commit: bool = False
    changelog: bool = True


class DedupSettings(Section):
    """How long an identity is remembered, and what makes two records of a dedup pipeline the same."""

    retention: DurationMs = 8_640_000_000
    idle_after: DurationMs = 600_000
    cache: int = Field(default=500_000, ge=0, le=1 << 28)
    source: str = Field(default="", pattern=TOPIC_NAME + "|^$")
    """The topic a dedup pipeline reads; the raw topic where none is named."""
    destination: str = Field(default="deduplicated", pattern=TOPIC_NAME)
    late: str = Field(default="deduplicated.late", pattern=TOPIC_NAME)
    """Where engine state puts what it cannot judge; the ledger has its quarantine."""
    partitions: int = Field(default=4, ge=1, le=10_000)
    replication: int = Field(default=1, ge=1)
    topic_retention: DurationMs = 604_800_000
    run_id: str = Field(default="dedup", min_length=1)
    key: Literal["identity", "field", "business", "content"] = "identity"
    key_fields: tuple[str, ...] = ()
    time_field: str = ""
    """Where a record says its time; empty: the log's own time of the record."""
    state: StateSettings = StateSettings()

    @model_validator(mode="after")
    def _the_key_has_its_fields(self) -> DedupSettings:
        KeyRule.of(self.key, self.key_fields)
        if "" in self.time_field.split(".") and self.time_field:
            raise ValueError(f"expected a path such as payload.madeAt, got {self.time_field!r}")
        if self.destination == self.late:
            raise ValueError("late records need a topic of their own: late is the destination")
        return self
