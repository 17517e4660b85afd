"""`demo`: the whole story in one go."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, err, number, out

if TYPE_CHECKING:
    from admitone.ops.lag import Lag
    from admitone.settings import Settings
    from admitone.traffic import Truth


def demo(
    events: Annotated[int, typer.Option(help="How many deliveries.", min=20_000)] = 50_000,
    seed: Annotated[int, typer.Option(help="Which traffic.")] = 7,
    serving: Annotated[
        bool, typer.Option("--serve", help="Leave the dashboard up with the demo's data.")
    ] = False,
    home: Home = None,
) -> None:
    """Make traffic, kill the pipeline in the middle, delete its checkpoints, resume, and check everything."""
    from admitone.analytics.answers import open_answers
    from admitone.cli.answers import print_top
    from admitone.cli.closure import print_gate
    from admitone.cli.ledger import print_books
    from admitone.evidence.closure import gate_of
    from admitone.ledger.books import books
    from admitone.ledger.open import open_ledger
    from admitone.ops import demo as story
    from admitone.ops.java import require_java
    from admitone.transport.open import open_transport

    require_java()
    began = time.monotonic()
    folder = home or Path(tempfile.mkdtemp(prefix="admitone-demo-"))
    settings = story.prepare(folder)
    console = err()
    console.print(f"home {folder}")

    with _step("1/5", "making traffic") as report:
        truth = story.make_traffic(
            settings, events, seed, time.time_ns() // 1_000_000, lambda done: report(done, events)
        )
    console.print(f"    {_traffic(truth)}")
    with _step("2/5", "running the pipeline, to be killed in the middle of a block") as report:
        killed = story.run_and_kill(settings, _decided(report))
    console.print(
        f"    SIGKILL to {killed.processes} processes: {number(killed.decided)} deliveries decided,"
        f" {number(killed.in_flight)} in blocks that were claimed or published, not settled"
    )
    gone = story.delete_checkpoints(settings)
    console.print(f"[bold]3/5[/] Spark's checkpoints deleted ({gone} files)")
    with _step("4/5", "resuming") as report:
        lag = story.resume(settings, _decided(report))
    console.print(
        f"    {number(lag.decided)} decided, {number(lag.re_read)} read again and recognised,"
        f" {number(lag.in_flight + lag.ambiguous)} left open"
    )

    ledger, transport = open_ledger(settings), open_transport(settings)
    print_books(books(ledger))
    print_top(open_answers(settings).top("url", "1d", k=10))
    print_gate(gate_of(story.RUN, ledger, transport, settings))

    with _step("5/5", "comparing everything with the generator's truth"):
        compared, problems = story.check(settings, truth)
    if problems:
        for problem in problems[:20]:
            console.print(f"[red]wrong[/] {problem}")
        console.print(f"[bold red]{len(problems)} differences from the truth[/]")
        raise typer.Exit(1)
    out().print(
        f"[bold green]all true[/]: {number(compared['decisions'])} decisions, one record on the log for each"
        f" admission at its pinned place, evidence complete, books balanced,"
        f" {number(compared['bounds'])} bounds in {number(compared['answers'])} answers"
        f" ({time.monotonic() - began:.0f} s)"
    )
    if serving:
        _serve(settings)
    else:
        console.print(f"look around: admitone --home {folder} serve")


def _serve(settings: Settings) -> None:
    """Leave the dashboard up, on its usual port where that is free."""
    from admitone.cli.serve import announce, on_port
    from admitone.core.errors import ConfigurationError
    from admitone.service.server import serve

    try:
        serve(settings, announce)
    except ConfigurationError:
        serve(on_port(settings, 0), announce)


def _traffic(truth: Truth) -> str:
    verdicts = truth.verdicts
    return ", ".join(f"{number(count)} {verdict}" for verdict, count in sorted(verdicts.items()))


@contextmanager
def _step(step: str, what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a step with a bar for people, or as two lines in a log."""
    console = err()
    if not console.is_terminal:
        console.print(f"{step} {what}")
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn(f"[bold]{step}[/] {what}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
        if progress.tasks[0].total is None:
            progress.update(task, completed=1, total=1)


def _decided(report: Callable[[int, int], None]) -> Callable[[Lag], None]:
    return lambda lag: report(lag.decided, lag.decided + lag.undecided)
