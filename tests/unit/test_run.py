"""Running the queries: each is ended, whatever fails on the way."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from admitone.ops.run import Plan, run
from admitone.settings import load_settings
from admitone.spark import boundary_query, session


class Trouble(Exception):
    """What a companion or a query may raise while it is asked, stopped or closed."""


class Query:
    """A query of which one step after the other may fail, and which notes what was done to it."""

    isActive = True  # noqa: N815

    def __init__(self, failing: str, done: list[str]) -> None:
        self._failing, self._done = failing, done
        step = {name: lambda *_, name=name: self._take(name) for name in ("look", "close")}
        self.companion = types.SimpleNamespace(error=lambda: None, **step)

    def stop(self) -> None:
        self._take("stop")

    def _take(self, step: str) -> None:
        self._done.append(step)
        # The first look is that of a healthy query.
        if step == self._failing and self._done.count(step) > (step == "look"):
            raise Trouble(step)


@pytest.mark.parametrize("failing", ["look", "stop", "close"])
def test_every_query_is_stopped_and_every_companion_closed_whatever_fails_before(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[str] = []
    second: list[str] = []
    spark: list[str] = []
    session_there = types.SimpleNamespace(stop=lambda: spark.append("stop"))
    monkeypatch.setattr(session, "open_session", lambda _: session_there)
    monkeypatch.setattr(boundary_query, "boundary_query", lambda *_: Query(failing, first))
    monkeypatch.setattr(boundary_query, "dedup_query", lambda *_: Query("nothing", second))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(load_settings(tmp_path), Plan(analytics=False, dedup=True), interrupt)

    assert first == second == ["look", "look", "stop", "close"]
    assert spark == ["stop"]
