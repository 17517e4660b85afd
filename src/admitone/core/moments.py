"""Moments, which we count in milliseconds since 1970, for people and for databases; always in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def moment(moment_ms: int | None) -> datetime | None:
    """Return a moment; None where there is none, or none that a calendar has."""
    if moment_ms is None:
        return None
    try:
        return _EPOCH + moment_ms * _MILLISECOND
    except OverflowError:
        return None


def milliseconds(at: datetime) -> int:
    """Return the milliseconds since 1970, the inverse of `moment`."""
    return (at - _EPOCH) // _MILLISECOND


def iso(moment_ms: int | None) -> str | None:
    """Return a moment as ISO 8601 writes it."""
    found = moment(moment_ms)
    return (
        None if found is None else found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
