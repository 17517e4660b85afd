"""Answers as the settings name their stores, and the outlets that keep them for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from admitone.core.errors import ConfigurationError
from admitone.results.port import Outlet
from admitone.settings import Settings

if TYPE_CHECKING:
    from admitone.results.answers import Answers
    from admitone.results.history import HistoryReader


def open_answers(settings: Settings) -> Answers:
    """Open the answers of a home folder."""
    from admitone.analytics import item_rules, open_sketch_reader
    from admitone.results.answers import Answers

    return Answers(open_sketch_reader(settings), item_rules(settings), open_history(settings))


def open_outlets(settings: Settings) -> list[Outlet]:
    """Return the outlets that keep answers for other programs; none for the embedded default."""
    outlets: list[Outlet] = []
    if settings.results.kind == "redis":
        from admitone.results.redis import RedisResults

        expire = settings.results.expire.model_dump()
        outlets.append(RedisResults(redis_access(settings), expire, settings.results.interval))
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
    """Return the history, where one is configured."""
    if settings.history.kind != "postgresql":
        return None
    from admitone.results.history import HistoryReader

    return HistoryReader(settings.history.url)


def redis_access(settings: Settings) -> dict[str, Any]:
    """Return how a client reaches Redis: the URL, and a password and an authority for its certificate, if any."""
    results = settings.results
    password = results.password.get_secret_value()
    if not password and results.password_file:
        password = _file(settings, results.password_file).read_text(encoding="utf-8").strip()
    access = {"url": results.url}
    if password:
        access["password"] = password
    if results.ssl_ca:
        access["ssl_ca_certs"] = str(_file(settings, results.ssl_ca))
    return access


def _file(settings: Settings, path: str) -> Path:
    found = settings.resolve(path)
    if not found.is_file():
        raise ConfigurationError(f"Expected a file at {found}, there is none.", "mend [results]")
    return found
