"""Runs the queries until somebody stops them, or until everything read is decided and counted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from admitone.allocation import keep_freed_memory
from admitone.core.errors import AdmitoneError, Fenced
from admitone.ops.lag import Lag, LagMeter
from admitone.settings import Settings
from admitone.transport.contract import dedup_source, raw_topic
from admitone.transport.open import open_transport

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and for how long."""

    boundary: bool = True
    analytics: bool = True
    dedup: bool = False
    """The dedup pipeline on the ledger."""
    state: bool = False
    """The dedup pipeline on engine state."""
    until_idle: bool = False
    trigger: str = "500 milliseconds"

    @property
    def notes(self) -> dict[str, tuple[str, ...]]:
        """Return the queries to run, by the note that says who runs them: a dedup pipeline has one of its own."""
        chosen = {
            "running": ("boundary", "analytics"),
            "running-dedup": ("dedup", "state"),
        }
        found = {n: tuple(q for q in queries if getattr(self, q)) for n, queries in chosen.items()}
        return {name: queries for name, queries in found.items() if queries}


def run(settings: Settings, plan: Plan, report: Callable[[Lag], None]) -> Lag:
    """Run the queries; return how far behind they were at the end."""
    from admitone.spark.analytics import analytics_query
    from admitone.spark.boundary import boundary_query, dedup_query
    from admitone.spark.dedup_state import state_dedup_query
    from admitone.spark.session import open_session, refuse_what_only_this_machine_has

    keep_freed_memory()
    with _announced(settings, plan):
        # What can be refused is refused before Spark is started.
        refuse_what_only_this_machine_has(settings)
        if plan.boundary:
            raw_topic(settings, open_transport(settings))
        if plan.dedup or plan.state:
            dedup_source(settings, open_transport(settings))
        spark = open_session(settings)
        # The queries read whatever is there: nobody need look whether it is a record.
        meter = LagMeter(settings, look=False)
        queries: list[StreamingQuery] = []
        try:
            if plan.boundary:
                queries.append(boundary_query(spark, settings, plan.trigger))
            if plan.dedup:
                queries.append(dedup_query(spark, settings, plan.trigger))
            if plan.state:
                queries.append(state_dedup_query(spark, settings, plan.trigger))
            to_count = plan.analytics
            while True:
                for query in queries:
                    query.beside.look(query)
                lag = meter.measure()
                # Afterwards, so that a log which looks finished is still the one that is read.
                _must_be_well(queries, settings, plan)
                report(lag)
                if to_count and (lag.admitted or not plan.boundary):
                    # Where every admitted topic is missing there is nothing to count, but much to decide.
                    queries.append(analytics_query(spark, settings, plan.trigger))
                    to_count = False
                if plan.until_idle and lag.idle(
                    boundary=plan.boundary,
                    analytics=plan.analytics,
                    dedup=plan.dedup,
                    state=plan.state,
                ):
                    for query in queries:
                        query.beside.await_last(query)
                    return lag
                time.sleep(0.25)
        finally:
            for query in queries:
                with contextlib.suppress(Exception):
                    query.beside.look(query)
                    query.stop()
                    query.beside.close()
            spark.stop()


def _must_be_well(queries: list[StreamingQuery], settings: Settings, plan: Plan) -> None:
    """Raise what ended a query, or what will: each must still do what it began to do."""
    from admitone.spark.failures import explained

    for query in queries:
        active = query.isActive
        wrong = _told(query.beside.error())
        if not active:
            raise _superseded(settings, plan) or wrong or explained(query.exception())
        if wrong is not None:
            raise wrong


def running(settings: Settings, note: str = "running") -> dict[str, object] | None:
    """Return what runs on this home folder, or None; a dedup pipeline's note is `running-dedup`."""
    import psutil

    said = _read_note(_note(settings, note))
    return said if said and psutil.pid_exists(said["pid"]) else None


def _read_note(path: Path) -> dict[str, Any]:
    try:
        note: dict[str, Any] = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return {}
    return note


def _told(error: BaseException | None) -> AdmitoneError | None:
    if error is None or isinstance(error, AdmitoneError):
        return error
    return AdmitoneError(
        f"Evidence could not be written: {error}.",
        "mend the cause (a full disk, a folder that is not writable) and run again; nothing is lost",
    )


def _superseded(settings: Settings, plan: Plan) -> Fenced | None:
    """Return an error when another process announced the same here; it removes our checkpoints, too."""
    said = [_read_note(_note(settings, name)) for name in plan.notes]
    if all(note.get("pid") == os.getpid() for note in said):
        return None
    return Fenced(
        "Another admitone process took over this home folder.",
        "let it run, or start this one again",
    )


@contextlib.contextmanager
def _announced(settings: Settings, plan: Plan) -> Iterator[None]:
    for name, queries in plan.notes.items():
        note = _note(settings, name)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(
            orjson.dumps(
                {"pid": os.getpid(), "queries": queries, "started_at": int(time.time() * 1000)}
            )
        )
    try:
        yield
    finally:
        for name in plan.notes:
            if _read_note(_note(settings, name)).get("pid") == os.getpid():
                _note(settings, name).unlink(missing_ok=True)


def _note(settings: Settings, name: str) -> Path:
    return settings.resolve(f"data/{name}.json")
