"""`simulate`: histories of the boundary in which everything goes wrong, judged by the promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, err, number, out, present, table

if TYPE_CHECKING:
    from admitone.simulation.simulator import Simulation


def simulate(
    seed: Annotated[
        int | None,
        typer.Option(
            help="The history, or the first of several; one is printed call by call.", min=0
        ),
    ] = None,
    histories: Annotated[
        int | None,
        typer.Option(
            help="How many, by seeds that follow one another (default 1000, or 1 with --seed).",
            min=1,
        ),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(help="Of the one history only these steps: 0,1,4.")
    ] = None,
    careless: Annotated[
        bool,
        typer.Option("--careless", help="Let operators restore ledgers while everything runs on."),
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Run simulated histories of the boundary, on stores in memory; exit 7 if one breaks a promise."""
    from admitone.simulation import simulator

    if histories is None and seed is not None:
        done = simulator.replay(seed, _numbers(steps), careless=careless)
    elif steps is not None:
        raise typer.BadParameter("--steps are those of one history: name it with --seed alone")
    else:
        first, wanted = seed if seed is not None else 1, histories or 1_000
        with _progress(wanted) as report:
            done = simulator.simulate(first, wanted, report, careless=careless)
    present(done, as_json, _print)
    if done.broken:
        raise typer.Exit(done.refusal().exit_code) if as_json else done.refusal()


def _numbers(steps: str | None) -> list[int] | None:
    if steps is None:
        return None
    words = steps.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise typer.BadParameter(f"--steps: expected numbers such as 0,1,4, got {steps!r}")
    return [int(word) for word in words]


@contextmanager
def _progress(wanted: int) -> Iterator[Callable[[int], None]]:
    """Yield what shows on a terminal how many histories are done; elsewhere it says nothing."""
    console = err()
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("histories", total=wanted)
        yield lambda more: progress.advance(task, more)


def _print(done: Simulation) -> None:
    for line in done.trace:
        out().print(line, markup=False, soft_wrap=True)
    found = done.document()
    shown = table("", "#count")
    for what, count in (
        ("histories", found["histories"]),
        ("calls in the median history", found["port_calls_median"]),
        *found["faults"].items(),
        ("broken", len(done.broken)),
    ):
        shown.add_row(what, number(count))
    out().print(shown)
    for broken in found["violations"]:
        out().print(
            f"promise {broken['promise']} ({broken['kind']}): {broken['what']}\n  {broken['replay']}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    err().print(
        f"{found['seconds']:.1f} s, {found['histories_per_second']:,.0f} histories a second of"
        f" {number(found['port_calls_median'])} calls in the median, on {found['processes']} cores"
    )
