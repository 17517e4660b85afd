"""`admitone generate`: deliveries to stdout, and their truth to a file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home
from admitone.infra.clock import wall_clock

if TYPE_CHECKING:
    from admitone.demo.traffic import Delivery

LINES_PER_WRITE = 500
PACED_WRITES_PER_SECOND = 20


def generate(
    *,
    events: Annotated[int, typer.Option(min=0, help="How many deliveries to make.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same events.")] = 7,
    run: Annotated[str | None, typer.Option(help="Write this run id into every envelope.")] = None,
    duplicates: Annotated[float, typer.Option(min=0, max=1, help="Share of repeats.")] = 0.2,
    contradictions: Annotated[
        float, typer.Option(min=0, max=1, help="Share of repeats with another payload.")
    ] = 0.005,
    malformed: Annotated[float, typer.Option(min=0, max=1, help="Share of bad input.")] = 0.01,
    late: Annotated[
        float, typer.Option(min=0, max=1, help="Share of events days behind the newest.")
    ] = 0.01,
    zipf: Annotated[float, typer.Option(min=0, help="How unequal the items are.")] = 1.1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Deliveries per second; else at once.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="The time of the newest events, such as 2026-01-05T19:00:00Z (default: now)."
        ),
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="Write the right decisions and exact counts here.", dir_okay=False),
    ] = None,
    home: Home = None,
) -> None:
    """Make traffic with duplicates, contradictions, malformed and late events, as JSON lines."""
    from admitone.demo.traffic import GeneratorOptions, TruthRecorder
    from admitone.demo.traffic import generate as deliveries_of
    from admitone.ledger.query_text import moment_from

    try:
        options = GeneratorOptions(
            events=events,
            seed=seed,
            run=run,
            duplicates=duplicates,
            contradictions=contradictions,
            malformed=malformed,
            late=late,
            zipf=zipf,
            rate=rate,
            end_ms=_last_full_minute(wall_clock()) if until is None else moment_from(until),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    recorder = TruthRecorder(options)
    deliveries: Iterable[Delivery] = deliveries_of(options)
    if truth is not None:
        deliveries = recorder.watch(deliveries)
    try:
        _write(iter(deliveries), rate)
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if truth is not None:
            typer.echo(f"The reader stopped early, so {truth} was not written.", err=True)
            raise typer.Exit(1) from None
        return
    if truth is not None:
        recorder.write(truth)
        typer.echo(f"{events} deliveries made; the truth is in {truth}", err=True)


def _last_full_minute(now: int) -> int:
    """Return a moment in ms, at least one minute ago."""
    return (now // 60_000 - 1) * 60_000


def _write(deliveries: Iterator[Delivery], rate: float | None) -> None:
    batch = LINES_PER_WRITE if rate is None else max(1, int(rate / PACED_WRITES_PER_SECOND))
    began, written = time.monotonic(), 0
    while lines := [delivery.line for delivery in islice(deliveries, batch)]:
        sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
        written += len(lines)
        if rate is not None:
            sys.stdout.buffer.flush()
            time.sleep(max(0.0, began + written / rate - time.monotonic()))
    sys.stdout.buffer.flush()
