"""A PostgreSQL primary dies under a boundary at work, and its standby takes its place."""

from __future__ import annotations

import random
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import psycopg

from admitone.boundary import open_boundary
from admitone.boundary.restore.read_back import read_back
from admitone.core.errors import IntegrityError
from admitone.evidence import open_evidence_store
from admitone.transport.topic_contract import raw_topic
from tests.faults.harness import (
    CONTRADICTED,
    FINISHED,
    prepare,
    settings_for,
    start,
    use_ledger,
    verify,
)
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_standby import PostgresStandby
from tests.servers.processes import suspend

_MAX_BLOCK = 30
_EVENTS = 3_000
_PATIENCE_S = 120.0


def fail_over(home: Path, seed: int, *, synchronous: bool) -> list[str]:
    """Let the primary die at a random block; return what is wrong at the end.

    A synchronous standby has everything, so the boundary goes on by itself. An asynchronous one that lagged does not:
    the boundary stops, and goes on once the ledger has read back what the log holds.
    """
    rng = random.Random(seed)
    truth = prepare(home, seed, _EVENTS)
    primary = PostgresServer()
    standby: PostgresStandby | None = None
    try:
        standby = PostgresStandby(primary)
        if synchronous:
            standby.confirm_every_commit()
        here = primary.new_schema()
        use_ledger(home, standby.url_of_both(here))
        process = start(home, _MAX_BLOCK, None)
        _wait_for_blocks(here, rng.randint(1, 10), process)
        if not synchronous:
            _lag_behind(standby, process)
        _wait_for_blocks(here, rng.randint(15, 40), process)
        primary.kill()
        standby.start()
        standby.promote()
        process.join(_PATIENCE_S)
        if synchronous:
            ended = [] if process.exitcode == FINISHED else [f"it ended with {process.exitcode}"]
        else:
            ended = _mend(home, process)
        return ended + verify(home, truth)
    finally:
        primary.close()
        if standby is not None:
            standby.close()


def _lag_behind(standby: PostgresStandby, process: BaseProcess) -> None:
    """Take the standby away while nothing is written."""
    assert process.pid is not None
    suspend(process.pid)
    standby.catch_up()
    standby.stop()
    psutil.Process(process.pid).resume()


def _mend(home: Path, process: BaseProcess) -> list[str]:
    """Do what the error says, and let the boundary finish."""
    problems = []
    if process.exitcode != CONTRADICTED:
        problems.append(f"an older server was gone on with, it ended with {process.exitcode}")
    settings = settings_for(home)
    boundary = open_boundary(settings)
    topic = raw_topic(settings, boundary.transport)
    try:
        boundary.start(topic)
        problems.append("the older ledger was not refused")
    except IntegrityError as refusal:
        if "reconcile --restored" not in refusal.remedy:
            problems.append(f"it was refused without the remedy: {refusal}")
    read_back(boundary, topic, open_evidence_store(settings))
    boundary.ledger.close()
    last = start(home, _MAX_BLOCK, None)
    last.join(_PATIENCE_S)
    return problems + ([] if last.exitcode == FINISHED else [f"the last one: {last.exitcode}"])


def _wait_for_blocks(url: str, wanted: int, process: BaseProcess) -> None:
    """Wait until so many blocks are settled."""
    deadline = time.monotonic() + _PATIENCE_S
    settled = 0
    while settled < wanted:
        assert time.monotonic() < deadline
        assert process.exitcode is None, f"it ended with {process.exitcode} after {settled} blocks"
        try:
            with psycopg.connect(url) as db:
                found = db.execute("SELECT count(*) FROM block WHERE state = 'SETTLED'").fetchone()
                settled = found[0] if found else 0
        except psycopg.errors.UndefinedTable:
            time.sleep(0.01)
