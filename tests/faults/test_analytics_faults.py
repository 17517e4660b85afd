"""Drivers of the analytics killed, suspended and raced, with Redis and PostgreSQL behind them.

Whatever happens to them, the sketches, Redis and the history end as an undisturbed driver leaves them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from admitone.analytics import open_sketch_reader
from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from admitone.infra.crash_points import ANALYTICS_POINTS, OUTLET_POINTS, STORE_POINTS, VARIABLE
from admitone.settings import load_settings
from tests.servers.postgres import PostgresServer
from tests.servers.redis import PASSWORD, RedisServer
from tests.support.pipeline import Pipeline
from tests.support.store_check import check

_PATIENCE_S = 120.0
_HISTORY = {
    "heavy_hitters": "SELECT window_key, dimension, rank, item_key, item_type, estimated_count, lower_count,"
    " upper_count FROM heavy_hitters ORDER BY 1, 2, 3",
    "window_metadata": "SELECT window_key, dimension, window_start, window_end, total_events,"
    " unique_items_estimate, processing_complete, late_events, unlisted_upper FROM window_metadata ORDER BY 1, 2",
}


class Left(NamedTuple):
    """Everything that drivers left behind, without when it was written."""

    sketches: dict[str, Any]
    redis: dict[str, Any]
    history: dict[str, list[Any]]


class Case:
    """A home folder with its outlets, and the drivers on it."""

    def __init__(self, home: Path, redis: RedisServer, postgres: PostgresServer) -> None:
        self.home = home
        self._redis, self._redis_url = redis, redis.new_database()
        self._postgres, self._history_url = postgres, postgres.new_schema()

    def start(self, offsets: int, fault: str | None = None) -> subprocess.Popen[bytes]:
        environment = {
            **{key: value for key, value in os.environ.items() if key != VARIABLE},
            **({VARIABLE: fault} if fault else {}),
            "ADMITONE_RESULTS__KIND": "redis",
            "ADMITONE_RESULTS__URL": self._redis_url,
            "ADMITONE_RESULTS__PASSWORD": PASSWORD,
            "ADMITONE_HISTORY__KIND": "postgresql",
            "ADMITONE_HISTORY__URL": self._history_url,
        }
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.counting", str(self.home), str(offsets)],
            env=environment,
        )

    def run(self, offsets: int) -> None:
        assert self.start(offsets).wait(_PATIENCE_S) == 0

    def left(self) -> Left:
        return Left(_sketches(self.home), self._in_redis(), self._in_history())

    def _in_redis(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with self._redis.client(self._redis_url) as client:
            for key in client.scan_iter("*"):
                if key.startswith("topk:"):
                    found[key] = client.zrange(key, 0, -1, withscores=True)
                elif not key.startswith("admitone:"):
                    kept = client.hgetall(key)
                    for name in ("revision", "lastUpdated", "metadata"):
                        kept.pop(name, None)
                    found[key] = kept
        return found

    def _in_history(self) -> dict[str, list[Any]]:
        schema = self._history_url.rpartition("%3D")[2]
        with self._postgres.administrator("tests") as db:
            db.execute(f"SET search_path = {schema}")
            return {table: db.execute(query).fetchall() for table, query in _HISTORY.items()}


def _sketches(home: Path) -> dict[str, Any]:
    reader = open_sketch_reader(load_settings(home))
    with reader.snapshot():
        state = reader.state()
        found = {
            f"{window.key} {name}": (
                sketch.total,
                sketch.late,
                state.is_complete(window),
                hashlib.sha256(sketch.countmin.cells.tobytes()).hexdigest(),
                sketch.top(1_000),
            )
            for name, windows in reader.changes(-1, -1).lists.items()
            for window, sketch in reader.sketches(windows, name)
        }
    reader.close()
    return {**found, "marks": [mark[:5] for mark in state.marks], "clock": state.clock}


@pytest.fixture(scope="module")
def traffic() -> tuple[list[bytes], Truth]:
    options = GeneratorOptions(600, seed=8, late=0.02, rate=0.5)
    recorder = TruthRecorder(options)
    lines = [delivery.line for delivery in recorder.watch(generate(options))]
    return lines, recorder.truth()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, traffic: tuple[list[bytes], Truth]) -> Path:
    """A home folder whose boundary has decided everything and whose analytics has counted nothing."""
    home = tmp_path_factory.mktemp("template")
    pipeline = Pipeline(home)
    pipeline.ingest(*traffic[0])
    pipeline.run()
    pipeline.transport.close()
    return home


@pytest.fixture(scope="module")
def undisturbed(
    template: Path,
    traffic: tuple[list[bytes], Truth],
    redis_server: RedisServer,
    postgres_server: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Left:
    """What is left where nothing happened, which is the truth."""
    home = tmp_path_factory.mktemp("undisturbed") / "home"
    shutil.copytree(template, home)
    case = Case(home, redis_server, postgres_server)
    case.run(offsets=40)
    left = case.left()
    compared = check(load_settings(home), traffic[1])
    assert compared.problems == []
    assert compared.bounds > 500
    assert len(left.redis) > 500
    assert len(left.history["heavy_hitters"]) > 500
    return left


@pytest.fixture
def case(
    template: Path, redis_server: RedisServer, postgres_server: PostgresServer, tmp_path: Path
) -> Case:
    shutil.copytree(template, tmp_path / "home")
    return Case(tmp_path / "home", redis_server, postgres_server)


def _assert_same(left: Left, undisturbed: Left) -> None:
    assert left.sketches == undisturbed.sketches
    assert left.redis == undisturbed.redis
    assert left.history == undisturbed.history


KILLED = [
    ("analytics.counted", 2), ("analytics.written", 1), ("analytics.committed", 2), ("results.writing", 3),
    ("results.written", 20), ("history.writing", 2), ("history.written", 5),
]  # fmt: skip
STOPPED = [("analytics.committing", 2), ("results.writing", 2), ("history.writing", 3)]


def test_no_crash_point_is_left_out() -> None:
    struck = {point for point, _ in KILLED + STOPPED}
    assert struck == {*ANALYTICS_POINTS, *STORE_POINTS, *OUTLET_POINTS}


@pytest.mark.parametrize(("point", "passage"), KILLED)
def test_a_killed_driver_leaves_nothing_that_its_successor_does_not_mend(
    case: Case, undisturbed: Left, point: str, passage: int
) -> None:
    assert case.start(40, f"{point}@{passage}:kill").wait(_PATIENCE_S) == -signal.SIGKILL
    case.run(offsets=70)

    _assert_same(case.left(), undisturbed)


@pytest.mark.parametrize(("point", "passage"), STOPPED)
def test_a_driver_that_wakes_up_after_its_successor_has_finished_changes_nothing(
    case: Case, undisturbed: Left, point: str, passage: int, tmp_path: Path
) -> None:
    marker = tmp_path / "stopped"
    zombie = case.start(40, f"{point}@{passage}:stop:{marker}")
    deadline = time.monotonic() + _PATIENCE_S
    while not (marker.exists() and psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    case.run(offsets=90)
    zombie.send_signal(signal.SIGCONT)
    assert zombie.wait(_PATIENCE_S) == 0

    _assert_same(case.left(), undisturbed)


def test_two_drivers_that_race_count_everything_once(case: Case, undisturbed: Left) -> None:
    racing = [case.start(offsets) for offsets in (17, 23)]
    assert [driver.wait(_PATIENCE_S) for driver in racing] == [0, 0]

    _assert_same(case.left(), undisturbed)
