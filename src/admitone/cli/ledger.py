"""`books`, `decisions`, `receipt`: what was decided, and why."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from admitone.cli.output import (
    Home,
    Json,
    JsonLines,
    Run,
    err,
    number,
    out,
    print_json,
    print_lines,
    settings_at,
    table,
)
from admitone.core.decisions import Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from admitone.ledger.model import Filter
    from admitone.settings import Settings

T = TypeVar("T")

_COUNTERS = (
    "deliveries", "admitted", "duplicates", "replayed", "quarantined", "ambiguous", "in_flight", "re_read",
)  # fmt: skip


def books(run: Run = None, home: Home = None, as_json: Json = False) -> None:
    """Show deliveries = sum of decisions, per run and source partition; exit 7 if they do not balance."""
    from admitone.ledger.books import books as read_books
    from admitone.ledger.open import open_ledger

    document = read_books(open_ledger(settings_at(home)), run)
    if as_json:
        print_json(document)
    else:
        print_books(document)
    if not all(entry["balanced"] for entry in document["runs"]):
        raise typer.Exit(7)


def print_books(document: dict[str, Any]) -> None:
    """Print the books for a person."""
    from rich.markup import escape

    if not document["runs"]:
        err().print("nothing is decided yet; next: admitone run --until-idle")
        return
    rare = [
        name
        for name in ("cached", "order_violations")
        if any(entry[name] for entry in document["runs"])
    ]
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
    verdict: Annotated[
        Verdict | None, typer.Option(help="Only this verdict.", show_default=False)
    ] = None,
    reason: Annotated[
        Reason | None, typer.Option(help="Only this reason.", show_default=False)
    ] = None,
    event: Annotated[
        str | None, typer.Option(help="Only this event id.", show_default=False)
    ] = None,
    identity: Annotated[
        str | None, typer.Option(help="Only this identity (hex).", show_default=False)
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Only this source position: [PRODUCER:]P:O.", show_default=False),
    ] = None,
    bus: Annotated[
        str | None, typer.Option(help="Only this place on the log: TOPIC:P:O.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Decided at or after.", show_default=False)
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Decided at or before.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most this many.", min=1, show_default=False)
    ] = None,
    home: Home = None,
    as_json: Json = False,
    as_lines: JsonLines = False,
) -> None:
    """Show what was decided and why."""
    from admitone.ledger.model import Filter
    from admitone.ledger.questions import bus_from, identity_from, moment_from, source_from

    settings = settings_at(home)
    wanted = Filter(
        run_id=run,
        verdict=verdict,
        reason=reason,
        event_id=event,
        identity=_asked("--identity", identity, identity_from),
        source=_asked("--source", source, source_from),
        bus=_asked("--bus", bus, bus_from),
        since=_asked("--since", since, moment_from),
        until=_asked("--until", until, moment_from),
    )
    rows = islice(decided(settings, wanted), limit)
    if as_lines:
        print_lines(rows)
    elif as_json:
        print_json({"decisions": list(rows)})
    else:
        shown_limit = limit or 50
        listed = list(islice(rows, shown_limit + 1))
        print_decisions(listed[:shown_limit])
        if len(listed) > shown_limit:
            err().print(f"the first {shown_limit}; --limit N shows more, --jsonl all")


def decided(settings: Settings, wanted: Filter) -> Iterator[dict[str, Any]]:
    """Yield the wanted decisions."""
    from admitone.ledger.decisions import decisions as read_decisions
    from admitone.ledger.open import open_ledger

    return read_decisions(open_ledger(settings), wanted)


def print_decisions(rows: list[dict[str, Any]]) -> None:
    """Print decisions for a person."""
    from rich.markup import escape

    if not rows:
        err().print("no such decision")
        return
    shown = table("run", "event", "class", "verdict", "source", "bus", "first", "decided at")
    for row in rows:
        verdict = f"{row['verdict']} {row['reason']}" if row["reason"] else row["verdict"]
        bus = row["bus"]
        shown.add_row(
            escape(row["run_id"]),
            escape(row["event_id"] or "-"),
            escape(row["event_class"] or "-"),
            verdict,
            _position(row["source"]),
            f"{bus['topic']}:{bus['partition']}:{bus['offset']}" if bus else "-",
            _position(row["first"]) if row["first"] else "-",
            row["decided_at"],
        )
    out().print(shown)


def receipt(
    event_id: Annotated[str, typer.Argument(help="The event's id.")],
    run: Run = None,
    event_class: Annotated[
        str | None, typer.Option("--class", help="Only this event class.", show_default=False)
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show one event's ticket and every delivery that claimed it."""
    from admitone.ledger.open import open_ledger
    from admitone.ledger.questions import receipt_of

    document = receipt_of(open_ledger(settings_at(home)), event_id, run, event_class)
    if as_json:
        print_json(document)
        return
    if document["receipt"] is not None:
        _print_ticket(document["receipt"])
    else:
        err().print("this event was not admitted")
    print_decisions(document["deliveries"])


def _print_ticket(row: dict[str, Any]) -> None:
    from rich.markup import escape

    shown = table("ticket", "")
    bus = row["bus"]
    for name, value in (
        ("event", f"{row['event_id']} ({row['event_class']}, run {row['run_id']})"),
        ("verdict", row["verdict"]),
        ("identity", row["identity"]),
        ("payload hash", row["payload_hash"]),
        ("source", _position(row["source"])),
        ("on the log", f"{bus['topic']}:{bus['partition']}:{bus['offset']}" if bus else "-"),
        ("published at", bus["published_at"] if bus else "-"),
    ):
        shown.add_row(name, escape(value))
    out().print(shown)


def _position(source: dict[str, int]) -> str:
    return f"{source['partition']}:{source['offset']}"


def _asked(option: str, text: str | None, read: Callable[[str], T]) -> T | None:
    """Return what an option says, or say what is wrong with it."""
    try:
        return None if text is None else read(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
