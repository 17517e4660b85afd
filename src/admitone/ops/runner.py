"""Runs the queries until somebody stops them, or until everything read is decided and counted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from admitone.core.errors import AdmitoneError, Fenced
from admitone.ops.lag import Lag, LagMeter
from admitone.settings import Settings
from admitone.transport.contract import raw_topic
from admitone.transport.open import open_transport

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and for how long."""

    boundary: bool = True
    analytics: bool = True
    until_idle: bool = False
    trigger: str = "500 milliseconds"


def run(settings: Settings, plan: Plan, report: Callable[[Lag], None]) -> Lag:
    """Run the queries; return how far behind they were at the end."""
    from admitone.spark.analytics import analytics_query
    from admitone.spark.boundary import boundary_query
    from admitone.spark.session import open_session, refuse_what_only_this_machine_has

    with _announced(settings, plan):
        # What can be refused is refused before Spark is started.
        refuse_what_only_this_machine_has(settings)
        if plan.boundary:
            raw_topic(settings, open_transport(settings))
        spark = open_session(settings)
        # The queries read whatever is there: nobody need look whether it is a record.
        meter = LagMeter(settings, look=False)
        queries: list[StreamingQuery] = []
        try:
            if plan.boundary:
                queries.append(boundary_query(spark, settings, plan.trigger))
            to_count = plan.analytics
            while True:
                lag = meter.measure()
                # Afterwards, so that a log which looks finished is still the one that is read.
                _must_be_well(queries, settings)
                report(lag)
                if to_count and (lag.admitted or not plan.boundary):
                    # Where every admitted topic is missing there is nothing to count, but much to decide.
                    queries.append(analytics_query(spark, settings, plan.trigger))
                    to_count = False
                if plan.until_idle and lag.idle(boundary=plan.boundary, analytics=plan.analytics):
                    return lag
                time.sleep(0.25)
        finally:
            with contextlib.suppress(Exception):
                for query in queries:
                    query.stop()
            spark.stop()


def _must_be_well(queries: list[StreamingQuery], settings: Settings) -> None:
    """Raise what ended a query, or what will: each must still do what it began to do."""
    from admitone.spark.failures import explained

    for query in queries:
        active = query.isActive
        wrong = _told(query.beside.error())
        if not active:
            raise _superseded(settings) or wrong or explained(query.exception())
        if wrong is not None:
            raise wrong


def running(settings: Settings) -> dict[str, object] | None:
    """Return what runs on this home folder, or None."""
    import psutil

    try:
        note = orjson.loads(_note(settings).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    return note if psutil.pid_exists(note["pid"]) else None


def _told(error: BaseException | None) -> AdmitoneError | None:
    if error is None or isinstance(error, AdmitoneError):
        return error
    return AdmitoneError(
        f"Evidence could not be written: {error}.",
        "mend the cause (a full disk, a folder that is not writable) and run again; nothing is lost",
    )


def _superseded(settings: Settings) -> Fenced | None:
    """Return an error when another process announced itself here; it removes our checkpoints, too."""
    try:
        note = orjson.loads(_note(settings).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        note = {}
    if note.get("pid") == os.getpid():
        return None
    return Fenced(
        "Another admitone process took over this home folder.",
        "let it run, or start this one again",
    )


@contextlib.contextmanager
def _announced(settings: Settings, plan: Plan) -> Iterator[None]:
    note = _note(settings)
    note.parent.mkdir(parents=True, exist_ok=True)
    queries = [name for name in ("boundary", "analytics") if getattr(plan, name)]
    note.write_bytes(
        orjson.dumps(
            {"pid": os.getpid(), "queries": queries, "started_at": int(time.time() * 1000)}
        )
    )
    try:
        yield
    finally:
        if _superseded(settings) is None:
            note.unlink(missing_ok=True)


def _note(settings: Settings) -> Path:
    return settings.resolve("data/running.json")
