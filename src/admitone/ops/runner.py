"""Runs the queries until somebody stops them, or until everything read is decided and counted."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from admitone.core import errors
from admitone.core.errors import AdmitoneError, Fenced
from admitone.ops.lag import Lag, LagMeter
from admitone.settings import Settings

_CODED = re.compile(r"\[([A-Z_]+)\] (.+?)(?: Try: ([^\n]*))?(?:\n|$)")
_BY_CODE = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, AdmitoneError)
}


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
    from admitone.spark.session import open_session

    with _announced(settings, plan):
        spark = open_session(settings)
        meter = LagMeter(settings)
        queries = []
        try:
            if plan.boundary:
                queries.append(boundary_query(spark, settings, plan.trigger))
            if plan.analytics:
                queries.append(analytics_query(spark, settings, plan.trigger))
            while True:
                for query in queries:
                    if not query.isActive:
                        raise _superseded(settings) or explained(query.exception())
                    beside = getattr(query, "beside", None)
                    if beside is not None and beside.error() is not None:
                        raise _evidence_failed(beside.error())
                lag = meter.measure()
                report(lag)
                if plan.until_idle and lag.idle(boundary=plan.boundary, analytics=plan.analytics):
                    return lag
                time.sleep(0.25)
        finally:
            with contextlib.suppress(Exception):
                for query in queries:
                    query.stop()
            spark.stop()


def explained(error: BaseException | None) -> Exception:
    """Return the error a worker raised, read back from the text that is left of it."""
    text = str(error)
    found = [match for match in _CODED.finditer(text) if match[1] in _BY_CODE]
    if found:
        code, problem, remedy = found[-1].groups()
        return _BY_CODE[code](problem, remedy or "")
    first_line = text.strip().splitlines()[0] if text.strip() else "no reason was given"
    return AdmitoneError(f"A query ended unexpectedly: {first_line[:300]}", "see data/spark.log")


def running(settings: Settings) -> dict[str, object] | None:
    """Return what runs on this home folder, or None."""
    import psutil

    try:
        note = orjson.loads(_note(settings).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    return note if psutil.pid_exists(note["pid"]) else None


def _evidence_failed(error: BaseException) -> AdmitoneError:
    if isinstance(error, AdmitoneError):
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
