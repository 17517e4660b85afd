"""The outlets the settings name, and the history as answers read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from admitone.core.errors import ConfigurationError
from admitone.results.outlet import Outlet
from admitone.settings import Settings

if TYPE_CHECKING:
    from admitone.results.history import HistoryReader


def open_outlets(settings: Settings) -> list[Outlet]:
    """Return those who keep answers for others; none for the embedded default."""
    outlets: list[Outlet] = []
    if settings.results.kind == "redis":
        outlets.append(_redis(settings))
    if settings.history.kind == "postgresql":
        from admitone.results.history import Pace, PostgresHistory

        history = settings.history
        keep = {"minute": history.keep_minutes, "hour": history.keep_hours}
        if history.keep_days is not None:
            keep |= dict.fromkeys(("day", "week", "month"), history.keep_days)
        for pace, interval in (
            (Pace.COMPLETE, history.interval),
            (Pace.OPEN, history.open_interval),
        ):
            outlets.append(PostgresHistory(history.url, pace, keep, interval))
    return outlets


def open_history(settings: Settings) -> HistoryReader | None:
    """Return the history, where there is one beside the sketches' own store."""
    if settings.history.kind != "postgresql":
        return None
    from admitone.results.history import HistoryReader

    return HistoryReader(settings.history.url)


def redis_access(settings: Settings) -> tuple[str, str, str]:
    """Return where Redis is, the password, and the authority that signs its certificate."""
    results = settings.results
    password = results.password.get_secret_value()
    if not password and results.password_file:
        password = _file(settings, results.password_file).read_text(encoding="utf-8").strip()
    return results.url, password, str(_file(settings, results.ssl_ca)) if results.ssl_ca else ""


def _redis(settings: Settings) -> Outlet:
    from admitone.results.redis import RedisResults

    url, password, ssl_ca = redis_access(settings)
    results = settings.results
    return RedisResults(url, results.expire.model_dump(), password, ssl_ca, results.interval)


def _file(settings: Settings, path: str) -> Path:
    found = settings.resolve(path)
    if not found.is_file():
        raise ConfigurationError(f"Expected a file at {found}, there is none.", "mend [results]")
    return found
