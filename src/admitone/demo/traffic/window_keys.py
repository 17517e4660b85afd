"""Window keys in UTC, written a second time on purpose: an oracle must not share mistakes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

_DIGITS = {"minute": 12, "hour": 10, "day": 8, "week": 6, "month": 6}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALL_TIME = (-(1 << 62), 1 << 62)


def window_key(timestamp_ms: int, size: str) -> str:
    """Return the key of the window of this size (`minute`, `hour` ... `global`) at a moment."""
    if size == "global":
        return size
    moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    if size == "week":
        year, week, _ = moment.isocalendar()
        return f"week_{year:04d}{week:02d}"
    return f"{size}_{f'{moment:%Y%m%d%H%M}'[: _DIGITS[size]]}"


def window_span(key: str) -> tuple[int, int]:
    """Return the window's first millisecond and the one after its last."""
    if key == "global":
        return _ALL_TIME
    size, _, digits = key.partition("_")
    if len(digits) != _DIGITS.get(size) or not digits.isdecimal():
        raise ValueError(f"{key!r} is not a window key; try one like hour_2026111510")
    if size == "week":
        monday = date.fromisocalendar(int(digits[:4]), int(digits[4:]), 1)
        start = datetime(monday.year, monday.month, monday.day, tzinfo=UTC)
        end = start + timedelta(weeks=1)
    elif size == "month":
        start = datetime(int(digits[:4]), int(digits[4:]), 1, tzinfo=UTC)
        end = (start + timedelta(days=31)).replace(day=1)
    else:
        start = datetime.strptime(f"{digits:0<12}", "%Y%m%d%H%M").replace(tzinfo=UTC)
        end = start + timedelta(**{f"{size}s": 1})
    return _milliseconds(start), _milliseconds(end)


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
