"""`books`, `decisions`, `receipt`: what was decided, and why."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

import typer

from admitone.cli.output import (
    Home,
    Json,
    JsonLines,
    Run,
    err,
    escape,
    number,
    out,
    present,
    print_json,
    print_lines,
    stores_at,
    table,
)
from admitone.core.decisions import Reason, Verdict
from admitone.core.errors import IntegrityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from admitone.ledger.books import Books
    from admitone.ledger.decision_rows import BusPlace, Decision, SourcePosition
    from admitone.ledger.query_text import EventReceipt

Code = Annotated[Reason | None, typer.Option("--code", "--reason", help="Only this reason code.")]
EventClass = Annotated[str | None, typer.Option("--class", help="Only this event class.")]

Counter = Literal[
    "deliveries", "admitted", "duplicates", "replayed", "quarantined", "ambiguous", "in_flight", "re_read",
    "cached", "order_violations",
]  # fmt: skip

_COUNTERS: Final[tuple[Counter, ...]] = get_args(Counter)[:-2]
_RARE: Final[tuple[Counter, ...]] = get_args(Counter)[-2:]


def books(run: Run = None, home: Home = None, as_json: Json = False) -> None:
    """Show deliveries = sum of decisions, per run and source partition; exit 7 if they do not balance."""
    from admitone.ledger.books import books as read_books

    document = read_books(stores_at(home).ledger, run)
    present(document, as_json, print_books)
    if not all(entry["balanced"] for entry in document["runs"]):
        raise typer.Exit(IntegrityError.exit_code)


def print_books(document: Books) -> None:
    """Print the books for a person."""
    if not document["runs"]:
        err().print("nothing is decided yet; next: admitone run --until-idle")
        return
    rare = [name for name in _RARE if any(entry[name] for entry in document["runs"])]
    counters = (*_COUNTERS, *rare)
    shown = table("run", "source", *(f"#{name}" for name in counters), "balanced")
    for entry in document["runs"]:
        for partition in entry["partitions"]:
            shown.add_row(
                escape(entry["run_id"]),
                escape(f"{partition['topic']}/{partition['partition']}"),
                *(number(partition[name]) for name in counters),
                "yes" if partition["balanced"] else "[bold red]NO[/]",
            )
        shown.add_row(
            f"[bold]{escape(entry['run_id'])}[/]",
            "[bold]all[/]",
            *(f"[bold]{number(entry[name])}[/]" for name in counters),
            "[bold green]yes[/]" if entry["balanced"] else "[bold red]NO[/]",
            end_section=True,
        )
    out().print(shown)


def decisions(
    run: Run = None,
    verdict: Annotated[Verdict | None, typer.Option(help="Only this verdict.")] = None,
    code: Code = None,
    event: Annotated[str | None, typer.Option(help="Only this event id.")] = None,
    event_class: EventClass = None,
    identity: Annotated[str | None, typer.Option(help="Only this identity (hex).")] = None,
    source: Annotated[
        str | None, typer.Option(help="Only this source position: [PRODUCER:]P:O.")
    ] = None,
    bus: Annotated[str | None, typer.Option(help="Only this place on the log: TOPIC:P:O.")] = None,
    since: Annotated[str | None, typer.Option(help="Decided at or after.")] = None,
    until: Annotated[str | None, typer.Option(help="Decided at or before.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many.", min=1)] = None,
    home: Home = None,
    as_json: Json = False,
    as_lines: JsonLines = False,
) -> None:
    """Show what was decided and why."""
    from admitone.ledger.decision_rows import Decisions
    from admitone.ledger.decision_rows import decisions as read_decisions
    from admitone.ledger.query_text import filter_from

    try:
        wanted = filter_from(
            run=run,
            verdict=verdict,
            reason=code,
            event=event,
            event_class=event_class,
            identity=identity,
            source=source,
            bus=bus,
            since=since,
            until=until,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    rows = islice(read_decisions(stores_at(home).ledger, wanted), limit)
    if as_lines:
        print_lines(rows)
    elif as_json:
        print_json(Decisions(decisions=list(rows)))
    else:
        shown_limit = limit or 50
        listed = list(islice(rows, shown_limit + 1))
        print_decisions(listed[:shown_limit])
        if len(listed) > shown_limit:
            err().print(f"the first {shown_limit}; --limit N shows more, --jsonl all")


def print_decisions(rows: Sequence[Decision]) -> None:
    """Print decisions for a person."""
    if not rows:
        err().print("no such decision")
        return
    shown = table("run", "event", "class", "verdict", "source", "bus", "first", "decided at")
    for row in rows:
        verdict = f"{row['verdict']} {row['reason']}" if row["reason"] else row["verdict"]
        shown.add_row(
            escape(row["run_id"]),
            escape(row["event_id"]),
            escape(row["event_class"]),
            verdict,
            position(row["source"]),
            _place(row["bus"]),
            position(row["first"]),
            row["decided_at"],
        )
    out().print(shown)


def receipt(
    event_id: Annotated[str, typer.Argument(help="The event's id.")],
    run: Run = None,
    event_class: EventClass = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show one event's ticket and every delivery that claimed it."""
    from admitone.ledger.query_text import receipt_of

    document = receipt_of(stores_at(home).ledger, event_id, run, event_class)
    present(document, as_json, _print_receipt)


def _print_receipt(document: EventReceipt) -> None:
    if document["receipt"] is not None:
        _print_ticket(document["receipt"])
    else:
        err().print("this event was not admitted")
    print_decisions(document["deliveries"])


def _print_ticket(row: Decision) -> None:
    shown = table("ticket", "")
    bus = row["bus"]
    for name, value in (
        ("event", f"{row['event_id']} ({row['event_class']}, run {row['run_id']})"),
        ("verdict", row["verdict"]),
        ("identity", row["identity"]),
        ("payload hash", row["payload_hash"]),
        ("source", position(row["source"])),
        ("on the log", _place(bus)),
        ("published at", bus["published_at"] if bus else "-"),
    ):
        shown.add_row(name, escape(value))
    out().print(shown)


def position(source: SourcePosition | None) -> str:
    """Return a source position in short."""
    return f"{source['partition']}:{source['offset']}" if source else "-"


def _place(bus: BusPlace | None) -> str:
    return f"{bus['topic']}:{bus['partition']}:{bus['offset']}" if bus else "-"
