"""Heavy hitters: what is counted, how exactly, and where answers are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from admitone.settings.section import DurationMs, Section


class ExpirySettings(Section):
    """How long after its last change Redis keeps what belongs to a window; global stays."""

    minute: DurationMs = 172_800_000
    hour: DurationMs = 3_024_000_000
    day: DurationMs = 34_560_000_000
    week: DurationMs = 34_560_000_000
    month: DurationMs = 157_680_000_000
    item: DurationMs = 34_560_000_000


class ResultsSettings(Section):
    """Where live answers are served from: the sketches' own store, and Redis for other programs."""

    kind: Literal["embedded", "redis"] = "embedded"
    url: str = "redis://127.0.0.1:6379/0"
    password: SecretStr = SecretStr("")
    password_file: str = ""
    ssl_ca: str = ""
    interval: DurationMs = 1_000
    expire: ExpirySettings = ExpirySettings()

    @field_validator("url")
    @classmethod
    def _a_url_of_redis(cls, url: str) -> str:
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("expected redis://host:6379/0, rediss:// for TLS, or unix:///socket")
        return url


class HistorySettings(Section):
    """Where windows are kept when the sketches' own store has dropped them."""

    kind: Literal["embedded", "postgresql"] = "embedded"
    url: str = "postgresql://admitone@127.0.0.1/admitone"
    interval: DurationMs = 5_000
    open_interval: DurationMs = 60_000
    keep_minutes: DurationMs = 1_209_600_000
    keep_hours: DurationMs = 34_560_000_000
    keep_days: DurationMs | None = None

    @field_validator("url")
    @classmethod
    def _a_url_of_postgresql(cls, url: str) -> str:
        if not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("expected postgresql://user@host/database")
        return url


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


class ItemSettings(Section):
    """How an event becomes a countable item (TOP-2)."""

    event_type: str
    dimension: str = Field(min_length=1, pattern=r"^[^|:]+$")
    item: str
    item_type: str
    group_by: tuple[str, ...] = ()
    weight: str | None = None


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
