"""The six windows a moment belongs to, and their names.

    minute_YYYYMMDDHHMM   hour_YYYYMMDDHH   day_YYYYMMDD   week_YYYYWW   month_YYYYMM   global

All in UTC; a week is an ISO week and carries the ISO year, so 2024-12-30 lies in week_202501. A
window holds start <= t < end, in milliseconds since 1970, before it as well. Floor arithmetic on
day ordinals instead of `datetime` keeps the last day of year 9999 and the first of year 1 ordinary
days.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import date
from functools import lru_cache
from typing import Final, NamedTuple

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000

KINDS: Final = ("minute", "hour", "day", "week", "month", "global")
ALIASES: Final = {
    "1m": "minute",
    "1h": "hour",
    "1d": "day",
    "1w": "week",
    "1mo": "month",
    "all": "global",
}
"""How a configuration names the sizes; as a question, the newest window of that size."""

_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DIGITS: Final = {"minute": 12, "hour": 10, "day": 8, "week": 6, "month": 6}

BEGINNING: Final = (1 - _EPOCH_ORDINAL) * DAY_MS
"""The first millisecond of year 1."""
END: Final = (date.max.toordinal() + 1 - _EPOCH_ORDINAL) * DAY_MS
"""The millisecond after year 9999."""


class Window(NamedTuple):
    """One span of time with a name; the global one spans everything that has a date."""

    kind: str
    start_ms: int
    end_ms: int

    @property
    def key(self) -> str:
        """Return the window's name."""
        return _key(self.kind, self.start_ms)

    def previous(self) -> Window | None:
        """Return the window before this one, if the calendar has one."""
        if self.kind == "global" or self.start_ms <= BEGINNING:
            return None
        return window_of(self.kind, self.start_ms - 1)


GLOBAL: Final = Window("global", BEGINNING, END)


@lru_cache(maxsize=65_536)
def window_of(kind: str, timestamp_ms: int) -> Window:
    """Return the window of one kind that holds this moment."""
    if not BEGINNING <= timestamp_ms < END:
        raise ValueError(f"{timestamp_ms} ms lies outside the years 1 to 9999")
    if kind in ("minute", "hour", "day"):
        size = {"minute": MINUTE_MS, "hour": HOUR_MS, "day": DAY_MS}[kind]
        start = timestamp_ms - timestamp_ms % size
        return Window(kind, start, start + size)
    day = _day(timestamp_ms)
    if kind == "week":
        start = _start_of(day) - day.weekday() * DAY_MS
        return Window(kind, start, start + 7 * DAY_MS)
    if kind == "month":
        start = _start_of(day.replace(day=1))
        return Window(kind, start, start + monthrange(day.year, day.month)[1] * DAY_MS)
    if kind == "global":
        return GLOBAL
    raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")


def parse_window(key: str) -> Window:
    """Return the window a name stands for, or raise ValueError."""
    if key == "global":
        return GLOBAL
    kind, _, digits = key.partition("_")
    if not (digits.isascii() and digits.isdecimal() and len(digits) == _DIGITS.get(kind)):
        raise ValueError(
            f"{key!r} is no window: expected minute_YYYYMMDDHHMM, hour_YYYYMMDDHH, day_YYYYMMDD, "
            "week_YYYYWW, month_YYYYMM or global"
        )
    year = int(digits[:4])
    try:
        if kind == "week":
            return window_of(kind, _start_of(date.fromisocalendar(year, int(digits[4:6]), 1)))
        moment = _start_of(date(year, int(digits[4:6]), int(digits[6:8] or "1")))
    except ValueError as error:
        raise ValueError(f"{key!r} is no window: {error}") from error
    hour, minute = int(digits[8:10] or "0"), int(digits[10:12] or "0")
    if hour > 23 or minute > 59:
        raise ValueError(f"{key!r} is no window: there is no {hour:02d}:{minute:02d}")
    return window_of(kind, moment + hour * HOUR_MS + minute * MINUTE_MS)


@lru_cache(maxsize=65_536)
def _key(kind: str, start_ms: int) -> str:
    if kind == "global":
        return "global"
    day = _day(start_ms)
    if kind == "week":
        iso = day.isocalendar()
        return f"week_{iso.year:04d}{iso.week:02d}"
    within = start_ms % DAY_MS
    hour, minute = within // HOUR_MS, within % HOUR_MS // MINUTE_MS
    digits = f"{day.year:04d}{day.month:02d}{day.day:02d}{hour:02d}{minute:02d}"
    return f"{kind}_{digits[: _DIGITS[kind]]}"


def _day(timestamp_ms: int) -> date:
    return date.fromordinal(timestamp_ms // DAY_MS + _EPOCH_ORDINAL)


def _start_of(day: date) -> int:
    return (day.toordinal() - _EPOCH_ORDINAL) * DAY_MS
