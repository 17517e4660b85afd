"""One TOML file, checked whole before anything starts.

Any value can come from the environment instead: `ADMITONE_LEDGER__URL` sets `url` of `[ledger]`.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from admitone.core.durations import parse_duration_ms
from admitone.core.errors import ConfigurationError
from admitone.core.keys import KeyRule

FILE_NAME = "admitone.toml"


def _duration(value: Any) -> Any:
    return parse_duration_ms(value) if isinstance(value, str) else value


DurationMs = Annotated[int, BeforeValidator(_duration), Field(gt=0)]
ProducerId = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Section(BaseModel):
    """A table of the file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


class KafkaSettings(Section):
    """How to reach the brokers; both clients, Spark's and the publishing one, are configured from here."""

    bootstrap: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    sasl_username: str = ""
    sasl_password: SecretStr = SecretStr("")
    sasl_password_file: str = ""
    ssl_ca: str = ""
    ssl_certificate: str = ""
    ssl_key: str = ""
    ssl_key_password: SecretStr = SecretStr("")
    ssl_key_password_file: str = ""
    delivery_timeout: DurationMs = 30_000
    transaction_timeout: DurationMs = 60_000
    look_timeout: DurationMs = 90_000
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = "lz4"

    @model_validator(mode="after")
    def _a_look_outlasts_a_transaction(self) -> KafkaSettings:
        if self.look_timeout <= self.transaction_timeout:
            raise ValueError(
                "look_timeout must be longer than transaction_timeout: an abandoned transaction hides"
                " records until it times out"
            )
        if self.delivery_timeout > self.transaction_timeout:
            raise ValueError("delivery_timeout must not be longer than transaction_timeout")
        return self


class TransportSettings(Section):
    """The log that carries raw and admitted records."""

    kind: Literal["folder", "kafka"] = "folder"
    path: str = "data/log"
    kafka: KafkaSettings = KafkaSettings()
    create_topics: bool = True
    check_interval: DurationMs = 10_000
    raw_topic: str = "raw"
    raw_partitions: int = Field(default=4, ge=1, le=1_000)
    raw_replication: int = Field(default=1, ge=1)
    raw_retention: DurationMs = 604_800_000
    filter_replays: bool = False
    producers: tuple[ProducerId, ...] = ()
    strict_keys: bool = False
    max_per_trigger: int = Field(default=400_000, ge=1)

    @model_validator(mode="after")
    def _replays_are_those_of_announced_producers(self) -> TransportSettings:
        if self.filter_replays and not self.producers:
            raise ValueError(
                "filter_replays needs producers: the ids whose stream metadata is filtered by, such as"
                " producers = [7250143892215637714]; an admitone pipeline's are in its books --json"
            )
        if self.strict_keys and not self.filter_replays:
            raise ValueError("strict_keys quarantines what filter_replays would pass: set both")
        return self


class LedgerSettings(Section):
    """The store that decides."""

    url: str = "sqlite:data/ledger.db"


class EvidenceSettings(Section):
    """Receipts, quarantine, archive and closing artifacts, in a folder or behind an fsspec URL."""

    path: str = Field(default="data/evidence", min_length=1)
    options: dict[str, Any] = {}
    archive: bool = True
    journal_retention: DurationMs = 86_400_000

    @field_validator("path")
    @classmethod
    def _a_url_names_its_store(cls, path: str) -> str:
        scheme, found, rest = path.partition("://")
        if found and not (scheme.replace("+", "").isalnum() and rest):
            raise ValueError("expected a folder or a URL such as s3://bucket/evidence")
        return path


class ResultsSettings(Section):
    """Where live answers are served from."""

    kind: Literal["embedded"] = "embedded"


class HistorySettings(Section):
    """Where finished windows are kept."""

    kind: Literal["embedded"] = "embedded"


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
    key: Literal["identity", "field", "business", "content"] = "identity"
    key_fields: tuple[str, ...] = ()
    state: StateSettings = StateSettings()

    @model_validator(mode="after")
    def _the_key_has_its_fields(self) -> DedupSettings:
        KeyRule.of(self.key, self.key_fields)
        return self


class TopkSettings(Section):
    """Sketches and windows."""

    store: str = "sqlite:data/analytics.db"
    k: int = Field(default=100, ge=1, le=10_000)
    width: int = Field(default=1024, ge=16, le=1 << 24)
    depth: int = Field(default=5, ge=1, le=16)
    counter_bits: Literal[32, 64] = 32
    windows: tuple[Literal["1m", "1h", "1d", "1w", "1mo", "all"], ...] = (
        "1m", "1h", "1d", "1w", "1mo", "all",
    )  # fmt: skip
    lateness: DurationMs = 600_000
    idle_after: DurationMs = 600_000
    keep_minutes: DurationMs = 172_800_000
    keep_hours: DurationMs = 3_024_000_000
    max_values: int = Field(default=20, ge=1, le=1_000)
    max_per_trigger: int = Field(default=400_000, ge=1)

    @field_validator("windows")
    @classmethod
    def _minutes_feed_the_rest(cls, windows: tuple[str, ...]) -> tuple[str, ...]:
        if "1m" not in windows:
            raise ValueError("windows must include 1m: every larger window is folded from minutes")
        return windows


class SparkSettings(Section):
    """The session the command line starts; a session of your own ignores this."""

    master: str = "local[2,4]"
    driver_memory: str = "2g"
    shuffle_partitions: int = Field(default=2, ge=1)
    checkpoints: str = "data/checkpoints"
    options: dict[str, str] = {}

    @model_validator(mode="after")
    def _no_speculation(self) -> SparkSettings:
        if self.options.get("spark.speculation", "false").lower() == "true":
            raise ValueError("spark.speculation runs two copies of a task: set it to false")
        return self


class ServiceSettings(Section):
    """The HTTP service."""

    host: str = "127.0.0.1"
    port: int = Field(default=8600, ge=0, le=65_535)


class TopicSettings(Section):
    """One destination of admitted events (RTE-1)."""

    family: str = Field(min_length=1)
    topic: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    event_types: tuple[str, ...] = Field(min_length=1)
    partitions: int = Field(default=4, ge=1, le=10_000)
    replication: int = Field(default=1, ge=1)
    key_fields: tuple[str, ...] = ("metadata.partitionKey",)
    retention: DurationMs = 604_800_000
    cleanup_policy: Literal["delete", "compact"] = "delete"
    record_key: Literal["stream_metadata", "business_key"] = "stream_metadata"
    partitioner: Literal["profile", "source"] = "profile"
    filter_replays: bool = True
    required: bool = False


class ItemSettings(Section):
    """How an event becomes a countable item (TOP-2)."""

    event_type: str
    dimension: str = Field(min_length=1, pattern=r"^[^|:]+$")
    item: str
    item_type: str
    group_by: tuple[str, ...] = ()
    weight: str | None = None


DEFAULT_TOPICS = (
    TopicSettings(
        family="traffic",
        topic="admitted.traffic",
        event_types=("page_view", "product_view", "api_request", "search", "purchase"),
    ),
)

DEFAULT_ITEMS = (
    ItemSettings(
        event_type="page_view", dimension="url", item="url", item_type="url",
        group_by=("deviceType", "pageCategory"),
    ),
    ItemSettings(
        event_type="product_view", dimension="productId", item="productId", item_type="product",
        group_by=("productCategory", "productBrand"),
    ),
    ItemSettings(
        event_type="api_request", dimension="apiEndpoint", item="endpoint", item_type="api",
        group_by=("method", "statusCode", "region"),
    ),
    ItemSettings(
        event_type="search", dimension="searchQuery", item="searchQuery", item_type="search",
        group_by=("category", "resultCount"),
    ),
    ItemSettings(
        event_type="purchase", dimension="purchase", item="productId", item_type="purchase",
        group_by=("productCategory", "customerType"),
    ),
)  # fmt: skip


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
    transport: TransportSettings = TransportSettings()
    ledger: LedgerSettings = LedgerSettings()
    evidence: EvidenceSettings = EvidenceSettings()
    results: ResultsSettings = ResultsSettings()
    history: HistorySettings = HistorySettings()
    dedup: DedupSettings = DedupSettings()
    topk: TopkSettings = TopkSettings()
    spark: SparkSettings = SparkSettings()
    service: ServiceSettings = ServiceSettings()
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
        return self

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


def load_settings(home: Path | str = ".", **overrides: Any) -> Settings:
    """Read `admitone.toml` in the home folder, or the defaults where there is none."""
    home = Path(home)
    file = home / FILE_NAME
    values: dict[str, Any] = {}
    if file.exists():
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"Cannot read {file}: {error.strerror}.", "mend its permissions"
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"{file} is not valid TOML: {error}.", "mend that line"
            ) from error
        _refuse_secrets(values, file)
    for section, changes in overrides.items():
        table = values.setdefault(section, {})
        table.update(changes)
    try:
        # Absolute, because tasks of a pipeline may run in another folder.
        return Settings(**values).model_copy(update={"home": home.absolute()})
    except ValidationError as error:
        raise ConfigurationError(_explain(error), f"mend {file} or the environment") from error
    except SettingsError as error:
        raise ConfigurationError(
            f"{error}.", "a section's values have names of their own: ADMITONE_LEDGER__URL"
        ) from error


def _refuse_secrets(values: dict[str, Any], file: Path) -> None:
    """Secrets come from the environment or from files of their own: this one is copied, shown and versioned."""
    for path in _secrets_in(values, Settings):
        variable = "ADMITONE_" + "__".join(path).upper()
        raise ConfigurationError(
            f"{file} holds a secret, {'.'.join(path)}: secrets come from the environment or from a file.",
            f"remove it there and set {variable}, or {path[-1]}_file",
        )


def _secrets_in(values: dict[str, Any], model: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    for name in values.keys() & model.model_fields.keys():
        kind, value = model.model_fields[name].annotation, values[name]
        if kind is SecretStr:
            yield (name,)
        elif isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from ((name, *rest) for rest in _secrets_in(value, kind))


def _explain(error: ValidationError) -> str:
    return "; ".join(_explain_one(dict(problem)) for problem in error.errors())


def _explain_one(problem: dict[str, Any]) -> str:
    location = [str(part) for part in problem["loc"]]
    name = ".".join(location)
    if problem["type"] != "extra_forbidden":
        # A whole section is not quoted: a secret may be among its values.
        got = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
        return f"{name or 'settings'}: {problem['msg']}{got}"
    known = _known_keys(location[:-1])
    nearest = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.0)
    return f"unknown key {name}" + (f", did you mean {nearest[0]!r}?" if nearest else "")


def _known_keys(parents: list[str]) -> list[str]:
    model: Any = Settings
    for part in parents:
        if part.isdigit():
            continue
        annotation = model.model_fields[part].annotation
        arguments = getattr(annotation, "__args__", ())
        model = arguments[0] if arguments else annotation
    return [key for key in model.model_fields if key != "home"]


__all__ = ["FILE_NAME", "ItemSettings", "Settings", "TopicSettings", "load_settings"]
