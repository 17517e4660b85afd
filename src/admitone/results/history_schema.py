"""The tables of the history (TOP-8), their partitions, and what each partition holds.

    heavy_hitters     one row for each listed item of a list in a window
    window_metadata   one row for each list in a window

A window's key says its kind and its time, in this order, and sorts by them: so the tables are partitioned by ranges
of the key itself, and their keys stay as they are. Minutes lie in a partition for each day, hours for each month,
the rest for each year. Retention drops whole partitions.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final, NamedTuple

from admitone.core.windows import Window, parse_window

TABLES: Final = ("window_metadata", "heavy_hitters")
"""In the order in which every transaction locks them."""
COMPONENT: Final = "history"

MIGRATIONS: Final = (
    """
CREATE TABLE heavy_hitters (
    window_key text COLLATE "C" NOT NULL,
    dimension text NOT NULL,
    item_key text NOT NULL,
    item_type text,
    rank integer NOT NULL,
    estimated_count bigint NOT NULL,
    error_bound_percent double precision NOT NULL,
    lower_count bigint NOT NULL,
    upper_count bigint NOT NULL,
    PRIMARY KEY (window_key, dimension, rank)
) PARTITION BY RANGE (window_key);

CREATE TABLE window_metadata (
    window_key text COLLATE "C" NOT NULL,
    dimension text NOT NULL,
    window_start timestamptz,
    window_end timestamptz,
    total_events bigint NOT NULL,
    unique_items_estimate bigint NOT NULL,
    processing_complete boolean NOT NULL,
    last_updated timestamptz,
    late_events bigint NOT NULL,
    item_type text,
    error_bound_percent double precision NOT NULL,
    unlisted_upper bigint NOT NULL,
    parameters jsonb NOT NULL,
    revision text COLLATE "C" NOT NULL,
    PRIMARY KEY (window_key, dimension)
) PARTITION BY RANGE (window_key);

CREATE TABLE history_written (
    pace text PRIMARY KEY,
    generation bigint NOT NULL,
    revision bigint NOT NULL,
    frontier bigint NOT NULL,
    newest bigint NOT NULL
)""",
)

_DIGITS: Final = {"minute": 8, "hour": 6, "day": 4, "week": 4, "month": 4, "global": 0}
# A window that ends when a span does; not every year has 53 weeks.
_ENDS: Final = {
    "minute": ("day_{}",), "hour": ("month_{}",), "day": ("month_{}12",),
    "week": ("week_{}53", "week_{}52"), "month": ("month_{}12",),
}  # fmt: skip
_NAME: Final = re.compile(r"window_metadata_([a-z]+)_?(\d*)")


class Span(NamedTuple):
    """The windows that lie in one partition: those whose keys begin alike."""

    kind: str
    digits: str

    @classmethod
    def of(cls, window: Window) -> Span:
        """Return the span a window lies in."""
        digits = window.key.removeprefix(f"{window.kind}_") if window.kind != "global" else ""
        return cls(window.kind, digits[: _DIGITS[window.kind]])

    @classmethod
    def named(cls, table: str) -> Span | None:
        """Return the span of a partition of `window_metadata`, by its name."""
        found = _NAME.fullmatch(table)
        return cls(found[1], found[2]) if found and found[1] in _DIGITS else None

    @property
    def suffix(self) -> str:
        """Return what the names of its tables end with, and its keys begin with."""
        return self.kind if self.kind == "global" else f"{self.kind}_{self.digits}"

    @property
    def bounds(self) -> tuple[str, str]:
        """Return the first key and the one after the last: `:` follows 9, and `a` follows nothing of ours."""
        return self.suffix, f"{self.suffix}:"

    @property
    def end_ms(self) -> int | None:
        """Return when the last window in it ends; None for global, which never does."""
        for name in _ENDS.get(self.kind, ()):
            with suppress(ValueError):
                return parse_window(name.format(self.digits)).end_ms
        return None
