"""Live progress of a running pipeline: a bar for people, a line now and then for logs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from admitone.cli.output import err, number

if TYPE_CHECKING:
    from rich.console import Console

    from admitone.ops.lag import Lag, QueryLag
    from admitone.ops.run import Plan

_LOG_EVERY_S = 10.0


@contextmanager
def pipeline_progress(plan: Plan) -> Iterator[Callable[[Lag], None]]:
    """Yield a function that shows how far the pipeline has come."""
    console = err()
    announce = _drift_announced(console)
    if not console.is_terminal:
        yield _log_lines(announce, plan)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:>12}"),
        TimeElapsedColumn(),
        console=console,
        transient=not plan.until_idle,
    ) as progress:
        boundary = progress.add_task("decided", total=None, rate="", visible=plan.boundary)
        analytics = progress.add_task("counted", total=None, rate="", visible=plan.analytics)
        dedup = progress.add_task("dedup", total=None, rate="", visible=plan.dedup or plan.state)

        def report(lag: Lag) -> None:
            announce(lag)
            queries = {boundary: lag.boundary, analytics: lag.analytics, dedup: _dedup(lag, plan)}
            for task, query in queries.items():
                speed = progress.tasks[task].speed
                progress.update(
                    task,
                    completed=query.done,
                    total=query.done + query.waiting,
                    rate=f"{speed:,.0f}/s" if speed else "",
                )

        yield report


def _drift_announced(console: Console) -> Callable[[Lag], None]:
    """Return a function that says once what drifts, and that nothing does any more."""
    said: list[str] = []

    def announce(lag: Lag) -> None:
        found = [f"{each.what_differs}. Try: {each.what_to_do}" for each in lag.drift]
        for sentence in found:
            if sentence not in said:
                console.print(f"drift: {sentence}", markup=False, soft_wrap=True)
        if said and not found:
            console.print("drift: all topics are as agreed again")
        said[:] = found

    return announce


def _dedup(lag: Lag, plan: Plan) -> QueryLag:
    """Return what waits for the dedup pipeline that runs."""
    from admitone.ops.lag import QueryLag

    return (lag.state if plan.state else lag.dedup) or QueryLag(())


def _log_lines(announce: Callable[[Lag], None], plan: Plan) -> Callable[[Lag], None]:
    last = time.monotonic()

    def report(lag: Lag) -> None:
        nonlocal last
        announce(lag)
        if time.monotonic() - last >= _LOG_EVERY_S:
            last = time.monotonic()
            if plan.boundary or plan.analytics:
                err().print(
                    f"{number(lag.boundary.done)} decided, {number(lag.boundary.waiting)} waiting,"
                    f" {number(lag.analytics.waiting)} to be counted"
                )
            if plan.dedup or plan.state:
                dedup = _dedup(lag, plan)
                err().print(f"{number(dedup.done)} deduplicated, {number(dedup.waiting)} waiting")

    return report
