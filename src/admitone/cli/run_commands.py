"""`init`, `ingest`, `run`, `status`: from a folder to a running pipeline."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from admitone.cli.output import (
    Home,
    Json,
    err,
    home_folder,
    number,
    out,
    present,
    print_json,
    settings_at,
    stores_at,
    table,
)
from admitone.ops.init import Profile, write_configuration

if TYPE_CHECKING:
    from admitone.ops.status import StatusDocument
    from admitone.transport.ingest import Ingested


class Queries(StrEnum):
    """What to run."""

    BOUNDARY = "boundary"
    ANALYTICS = "analytics"
    DEDUP = "dedup"
    ALL = "all"


class Engine(StrEnum):
    """What a dedup pipeline remembers keys with."""

    LEDGER = "ledger"
    STATE = "state"


def init(
    profile: Annotated[
        Profile, typer.Option(help="Which stores to begin with.")
    ] = Profile.EMBEDDED,
    home: Home = None,
) -> None:
    """Write a commented admitone.toml."""
    file = write_configuration(home_folder(home), profile)
    following = {
        Profile.EMBEDDED: "admitone generate --events 1000 | admitone ingest -",
        Profile.PRODUCTION: "edit it, set the passwords, admitone topics create",
    }[profile]
    err().print(f"wrote {file}; next: {following}", markup=False)


def ingest(
    files: Annotated[list[str], typer.Argument(help="Files of JSON lines; - is stdin.")],
    run: Annotated[
        str | None, typer.Option("--run", help="Run these deliveries belong to.")
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Append deliveries to the raw log; prints how many and where."""
    from admitone.transport import open_transport
    from admitone.transport.ingest import ingest_lines
    from admitone.transport.topic_contract import raw_topic

    if run is not None and not run.isprintable():
        raise typer.BadParameter("expected printable text", param_hint="--run")
    settings = settings_at(home)
    transport = open_transport(settings)
    topic = raw_topic(settings, transport)
    with err().status("ingesting") as progress:
        for total in ingest_lines(transport, topic, _lines(files), run):
            progress.update(f"ingesting {number(total.deliveries)} deliveries")
    present(total, as_json, _print_ingested)


def _print_ingested(total: Ingested) -> None:
    spread = total.document()["partitions"].items()
    places = ", ".join(f"{partition}: {number(count)}" for partition, count in spread)
    typer.echo(
        f"{number(total.deliveries)} deliveries to topic {total.topic} (partition {places or '-'})"
    )
    if total.blank:
        err().print(f"{number(total.blank)} blank lines are no deliveries")


def _lines(files: list[str]) -> Iterator[bytes]:
    from admitone.core.errors import NotFound

    for name in files:
        if name == "-":
            yield from sys.stdin.buffer
            continue
        try:
            with Path(name).open("rb") as file:
                yield from file
        except OSError as error:
            raise NotFound(f"Cannot read {name}: {error.strerror}.", "check the path") from error


def run(
    what: Annotated[
        list[Queries] | None,
        typer.Argument(help="Which queries; all: boundary and analytics.", show_default="all"),
    ] = None,
    engine: Annotated[
        Engine,
        typer.Option(
            help="Of dedup: the ledger decides exactly once, whatever crashes or is lost. State is Spark's own and"
            " weaker: without its checkpoint all keys are forgotten and come out again, after a crash the last batch"
            " may be written twice, and order is not kept; for windows of minutes to hours."
        ),
    ] = Engine.LEDGER,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when everything read is decided and counted.")
    ] = False,
    trigger: Annotated[str, typer.Option(help="How often to look for work.")] = "500ms",
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Run the pipeline; `dedup` keeps the first record of each key of one topic and writes it to another."""
    from admitone.core.durations import parse_duration_ms
    from admitone.core.errors import ConfigurationError
    from admitone.ops.java import require_java
    from admitone.ops.run import Plan, outcomes
    from admitone.ops.run import run as run_queries

    settings = settings_at(home)
    try:
        every = f"{parse_duration_ms(trigger)} milliseconds"
    except ValueError as error:
        raise ConfigurationError(f"--trigger: {error}.", "--trigger 500ms") from error
    require_java()
    chosen = {*(what or [Queries.ALL])}
    plan = Plan(
        boundary=bool(chosen & {Queries.BOUNDARY, Queries.ALL}),
        analytics=bool(chosen & {Queries.ANALYTICS, Queries.ALL}),
        dedup=Queries.DEDUP in chosen and engine is Engine.LEDGER,
        state=Queries.DEDUP in chosen and engine is Engine.STATE,
        until_idle=until_idle,
        trigger=every,
    )
    if plan.state:
        from admitone.spark.dedup_state import GUARANTEE

        err().print(f"note: {GUARANTEE}", soft_wrap=True)
    from admitone.cli.progress import pipeline_progress

    # py4j writes a call that was interrupted, with a traceback, to the root logger, which would print it.
    logging.getLogger().addHandler(logging.NullHandler())
    with pipeline_progress(plan) as report:
        try:
            lag = run_queries(settings, plan, report)
        except KeyboardInterrupt:
            err().print("stopped; everything decided so far is kept, run again to go on")
            return
    for document in outcomes(lag, plan):
        print_json(document) if as_json else typer.echo(_counted(document))


def status(home: Home = None, as_json: Json = False) -> None:
    """Show what is running, how far behind it is, and which topics are not as agreed."""
    from admitone.ops.status import status as look

    present(look(stores_at(home)), as_json, print_status)


def print_status(found: StatusDocument) -> None:
    """Print what runs and what waits for a person."""
    process, pipeline = found["running"], found["dedup"]
    console = out()
    console.print(f"running: process {process['pid']}" if process else "running: nothing")
    console.print(
        f"waiting: {number(found['undecided'])} undecided, {number(found['uncounted'])} uncounted,"
        f" {number(found['in_flight'])} in flight, {number(found['ambiguous'])} ambiguous,"
        f" {number(found['pending_evidence'])} blocks without evidence"
    )
    if pipeline["ledger"] or pipeline["state"]:
        process = pipeline["running"]
        console.print(f"dedup:   process {process['pid']}" if process else "dedup:   nothing runs")
    for what, dedup in (("the ledger", pipeline["ledger"]), ("state", pipeline["state"])):
        if dedup is not None:
            figures = {
                "waiting": dedup["waiting"], "in_flight": dedup["in_flight"],
                "ambiguous": dedup["ambiguous"], **dedup["figures"],
            }  # fmt: skip
            counted = _counted(figures).replace("_", " ")
            console.print(f"         dedup on {what}: {counted}", soft_wrap=True)
    raw, admitted = found["replays"]["boundary"], found["replays"]["analytics"]
    if any((*raw.values(), *admitted.values())):
        console.print(
            f"replays: {number(raw['replayed'])} among deliveries,"
            f" {number(admitted['replayed'])} among admitted records,"
            f" {number(raw['order_violations'] + admitted['order_violations'])} times a producer went back"
        )
    for topic in found["drift"]:
        what = "; ".join(map(str, topic["differences"]))
        remedies = "; ".join(difference.remedy for difference in topic["differences"])
        console.print(
            f"drift:   topic {topic['topic']!r} {what}. Try: {remedies}",
            markup=False,
            soft_wrap=True,
        )
    if found["runs"]:
        listed = ", ".join(f"{run['run_id']} ({run['state']})" for run in found["runs"])
        console.print(f"runs:    {listed}", markup=False)
    shown = table("query", "topic", "#partition", "#done", "#end", "#lag")
    for line in found["partitions"]:
        counts = (number(line["done"]), number(line["end"]), number(line["lag"]))
        shown.add_row(line["query"], line["topic"], str(line["partition"]), *counts)
    console.print(shown)


def _counted(counts: Mapping[str, object]) -> str:
    """Return counts with what they count, in one line."""
    return ", ".join(f"{number(cast(int, count))} {name}" for name, count in counts.items())
