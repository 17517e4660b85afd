"""Runs the queries until the operator stops them, or until everything read is decided and counted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from typing_extensions import TypedDict

from admitone.core.errors import AdmitoneError, Fenced
from admitone.infra.clock import wall_clock
from admitone.infra.memory import keep_freed_memory
from admitone.ops.lag import Lag, LagMeter
from admitone.settings import Settings
from admitone.spark.checkpoints import StateFigures
from admitone.transport import open_transport
from admitone.transport.topic_contract import dedup_source, raw_topic

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


class RunningNote(TypedDict):
    """Which process runs which queries on a home folder, and since when."""

    pid: int
    queries: list[str]
    started_at: int


class PipelineOutcome(TypedDict):
    """How far the boundary and the analytics have come."""

    decided: int
    undecided: int
    uncounted: int
    ambiguous: int
    re_read: int


class StateOutcome(StateFigures):
    """How far the dedup pipeline on engine state has come, and what the engine says about itself."""

    waiting: int


class DedupOutcome(TypedDict):
    """How far the dedup pipeline on the ledger has come."""

    deduplicated: int
    waiting: int
    ambiguous: int
    re_read: int


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
    from admitone.spark.analytics_query import analytics_query
    from admitone.spark.boundary_query import boundary_query, dedup_query
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
        # The queries read whatever is there: the meter need not look whether it is a record.
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
                    query.companion.look(query)
                lag = meter.measure()
                # Afterwards, so that a log which looks finished is still the one that is read.
                _must_be_well(queries, settings, plan)
                report(lag)
                if to_count and (lag.analytics.partitions or not plan.boundary):
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
                        query.companion.await_last(query)
                    return lag
                time.sleep(0.25)
        finally:
            for query in queries:
                _end(query)
            spark.stop()


def _end(query: StreamingQuery) -> None:
    """Stop a query and close its companion; each step is taken even if the one before it fails."""
    for step in (partial(query.companion.look, query), query.stop, query.companion.close):
        with contextlib.suppress(Exception):
            step()


def outcomes(lag: Lag, plan: Plan) -> Iterator[PipelineOutcome | DedupOutcome | StateOutcome]:
    """Yield how far the pipelines that ran have come."""
    if plan.boundary or plan.analytics:
        yield {
            "decided": lag.boundary.done,
            "undecided": lag.boundary.waiting,
            "uncounted": lag.analytics.waiting,
            "ambiguous": lag.boundary.ambiguous,
            "re_read": lag.boundary.re_read,
        }
    if plan.dedup and lag.dedup is not None:
        yield {
            "deduplicated": lag.dedup.done,
            "waiting": lag.dedup.waiting,
            "ambiguous": lag.dedup.ambiguous,
            "re_read": lag.dedup.re_read,
        }
    if plan.state and lag.state is not None:
        yield {"waiting": lag.state.waiting, **lag.state.figures}


def _must_be_well(queries: list[StreamingQuery], settings: Settings, plan: Plan) -> None:
    """Raise what ended a query, or what will: each must still do what it began to do."""
    from admitone.spark.failures import explained

    for query in queries:
        active = query.isActive
        wrong = _told(query.companion.error())
        if not active:
            raise _superseded(settings, plan) or wrong or explained(query.exception())
        if wrong is not None:
            raise wrong


def running(settings: Settings, note: str = "running") -> RunningNote | None:
    """Return what runs on this home folder, or None; a dedup pipeline's note is `running-dedup`."""
    import psutil

    said = _read_note(_note(settings, note))
    return said if said and psutil.pid_exists(said["pid"]) else None


def _read_note(path: Path) -> RunningNote | None:
    try:
        note: RunningNote = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    return note


def _runs_here(path: Path) -> bool:
    """Tell whether it is this process that announced itself."""
    said = _read_note(path)
    return said is not None and said["pid"] == os.getpid()


def _told(error: BaseException | None) -> AdmitoneError | None:
    if error is None or isinstance(error, AdmitoneError):
        return error
    return AdmitoneError(
        f"Evidence could not be written: {error}.",
        "mend the cause (a full disk, a folder that is not writable) and run again; nothing is lost",
    )


def _superseded(settings: Settings, plan: Plan) -> Fenced | None:
    """Return an error when another process announced the same here; it removes our checkpoints, too."""
    if all(_runs_here(_note(settings, name)) for name in plan.notes):
        return None
    return Fenced(
        "Another admitone process took over this home folder.",
        "let it run, or start this one again",
    )


@contextlib.contextmanager
def _announced(settings: Settings, plan: Plan) -> Iterator[None]:
    for name, queries in plan.notes.items():
        said: RunningNote = {
            "pid": os.getpid(), "queries": [*queries], "started_at": wall_clock(),
        }  # fmt: skip
        note = _note(settings, name)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_bytes(orjson.dumps(said))
    try:
        yield
    finally:
        for name in plan.notes:
            if _runs_here(_note(settings, name)):
                _note(settings, name).unlink(missing_ok=True)


def _note(settings: Settings, name: str) -> Path:
    return settings.resolve(f"data/{name}.json")
