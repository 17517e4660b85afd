"""The whole file as one value; `ADMITONE_LEDGER__URL` in the environment is `url` of `[ledger]`."""

from __future__ import annotations

from pathlib import Path

from pydantic import model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from admitone.core.errors import ConfigurationError
from admitone.settings.access import AccessSettings
from admitone.settings.analytics import (
    DEFAULT_ITEMS,
    HistorySettings,
    ItemSettings,
    ResultsSettings,
    TopkSettings,
)
from admitone.settings.boundary import (
    DedupSettings,
    EvidenceSettings,
    LedgerSettings,
    PipelineSettings,
    SchemaSettings,
)
from admitone.settings.runtime import ServiceSettings, SparkSettings
from admitone.settings.signing import ClosingSettings, KeySettings
from admitone.settings.transport import DEFAULT_TOPICS, TopicSettings, TransportSettings


class Settings(BaseSettings):
    """Everything a pipeline needs to know, from one file and the environment."""

    model_config = SettingsConfigDict(
        env_prefix="ADMITONE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    home: Path = Path()
    pipeline: PipelineSettings = PipelineSettings()
    schemas: SchemaSettings = SchemaSettings()
    transport: TransportSettings = TransportSettings()
    ledger: LedgerSettings = LedgerSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    closing: ClosingSettings = ClosingSettings()
    keys: KeySettings = KeySettings()
    results: ResultsSettings = ResultsSettings()
    history: HistorySettings = HistorySettings()
    dedup: DedupSettings = DedupSettings()
    topk: TopkSettings = TopkSettings()
    spark: SparkSettings = SparkSettings()
    service: ServiceSettings = ServiceSettings()
    access: AccessSettings = AccessSettings()
    topics: tuple[TopicSettings, ...] = DEFAULT_TOPICS
    items: tuple[ItemSettings, ...] = DEFAULT_ITEMS

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file, which arrives as the initial values."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _topics_are_unambiguous(self) -> Settings:
        owners: dict[str, str] = {}
        for entry in self.topics:
            for event_type in entry.event_types:
                if event_type in owners:
                    raise ValueError(
                        f"event type {event_type!r} is in topics {owners[event_type]!r} and "
                        f"{entry.topic!r}: an event type has one destination"
                    )
                owners[event_type] = entry.topic
        names = [entry.topic for entry in self.topics]
        if len(set(names)) != len(names) or self.transport.raw_topic in names:
            raise ValueError(
                "every [[topics]] entry needs a topic name of its own, not the raw topic's"
            )
        written = {self.dedup.destination, self.dedup.late}
        if written & {*names, self.transport.raw_topic, self.dedup.source}:
            raise ValueError(
                "[dedup] destination and late need topic names of their own, which nothing else writes or reads"
            )
        return self

    @property
    def dedup_source(self) -> str:
        """Return the topic that a dedup pipeline reads."""
        return self.dedup.source or self.transport.raw_topic

    @property
    def dedup_pipeline(self) -> str:
        """Return the name of the dedup pipeline, which is also the name of its store of keys."""
        return f"{self.pipeline.name}.dedup"

    def resolve(self, path: str) -> Path:
        """Return a configured path, relative ones below the home folder."""
        return (self.home / path).resolve()

    def sqlite_path(self, url: str) -> Path:
        """Return the file behind a `sqlite:` URL."""
        scheme, _, rest = url.partition(":")
        if scheme != "sqlite" or not rest:
            # Only the scheme is quoted: what follows it may hold a password.
            raise ConfigurationError(
                "Expected a store such as sqlite:data/ledger.db or, for the ledger,"
                f" postgresql://user:password@host/database, got one that begins with {scheme[:20]!r}.",
                "use a sqlite: URL, or a postgresql:// URL for the ledger",
            )
        return self.resolve(rest.removeprefix("//"))
