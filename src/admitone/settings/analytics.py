"""Heavy hitters: what is counted, how exactly, and where answers are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from admitone.settings.section import DurationMs, Section


class ResultsSettings(Section):
    """Where live answers are served from."""

    kind: Literal["embedded"] = "embedded"


class HistorySettings(Section):
    """Where finished windows are kept."""

    kind: Literal["embedded"] = "embedded"


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
