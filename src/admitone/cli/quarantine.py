"""`quarantine`: what was not admitted, with its original bytes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admitone.cli.ledger import decided, print_decisions
from admitone.cli.output import (
    Author,
    Home,
    Json,
    JsonLines,
    Run,
    author_of,
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
    from admitone.settings import Settings

app = typer.Typer(
    help="What was not admitted, and why.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_quarantined(
    run: Run = None,
    reason: Annotated[
        Reason | None, typer.Option(help="Only this reason.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most this many.", min=1, show_default=False)
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were released or discarded.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
    as_lines: JsonLines = False,
) -> None:
    """List quarantined deliveries that nothing was done about yet."""
    from rich.markup import escape

    from admitone.evidence.quarantine import is_done
    from admitone.ledger.model import Filter

    wanted = Filter(run_id=run, verdict=Verdict.QUARANTINED, reason=reason)
    rows = islice(
        (row for row in decided(settings_at(home), wanted) if everything or not is_done(row)), limit
    )
    if as_lines:
        print_lines(rows)
        return
    if as_json:
        print_json({"quarantined": list(rows)})
        return
    listed = list(islice(rows, 51))
    if not listed:
        err().print("nothing is in quarantine")
        return
    shown = table("id", "run", "event", "class", "reason", "source", "first", "decided at", "done")
    for row in listed[:50]:
        first = row["first"]
        shown.add_row(
            row["id"],
            escape(row["run_id"]),
            escape(row["event_id"] or "-"),
            escape(row["event_class"] or "-"),
            row["reason"],
            f"{row['source']['partition']}:{row['source']['offset']}",
            f"{first['partition']}:{first['offset']}" if first else "-",
            row["decided_at"],
            row["resolution"]["action"] if is_done(row) else "-",
        )
    out().print(shown)
    if len(listed) > 50:
        err().print("the first 50; --jsonl lists all, admitone quarantine show ID shows one")


@app.command("show")
def show(
    record: Annotated[str, typer.Argument(metavar="ID", help="The id that list shows.")],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show one quarantined delivery with its original bytes and the first admission it contradicts."""
    from admitone.evidence.open import open_store
    from admitone.evidence.quarantine import quarantined
    from admitone.ledger.open import open_ledger

    settings = settings_at(home)
    document = quarantined(open_ledger(settings), open_store(settings), record)
    if as_json:
        print_json(document)
        return
    print_decisions([document])
    console = out()
    console.print("[bold]delivered[/]")
    console.print(document["envelope"] or "(no longer kept)", markup=False, soft_wrap=True)
    if document["first_decision"] is not None:
        console.print("\n[bold]admitted first[/]")
        kept = document["first_envelope"] or "(no longer kept)"
        console.print(kept, markup=False, soft_wrap=True)


Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="The ids that list shows.")
]
Why = Annotated[str, typer.Option("--reason", help="Why; kept with the decision.")]
Code = Annotated[
    Reason | None,
    typer.Option("--code", help="All with this reason code.", show_default=False),
]
Event = Annotated[
    str | None, typer.Option("--event", help="All of this event.", show_default=False)
]


@app.command("release")
def release(
    why: Why,
    ids: Ids = None,
    run: Run = None,
    code: Code = None,
    event: Event = None,
    keep_first: Annotated[
        bool, typer.Option("--keep-first", help="Contradictions: confirm the first admission.")
    ] = False,
    as_new: Annotated[
        bool,
        typer.Option("--as-new", help="Contradictions: admit under a new identity naming the old."),
    ] = False,
    author: Author = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Deliver quarantined deliveries again, by the rules in force now; by id or by filter."""
    from admitone.boundary.open import open_all
    from admitone.boundary.release import Choice, Signature, release_all
    from admitone.evidence.deliveries import open_deliveries

    if keep_first and as_new:
        raise typer.BadParameter("choose --keep-first or --as-new, not both")
    choice = Choice.KEEP_FIRST if keep_first else Choice.AS_NEW if as_new else None
    settings = settings_at(home)
    boundaries = open_all(settings)
    chosen = _chosen(settings, ids, run, code, event)
    fetch = open_deliveries(settings, boundaries[0].ledger)
    with err().status("releasing"):
        report = release_all(boundaries, fetch, chosen, Signature(author_of(author), why), choice)
    if as_json:
        print_json(report.document())
        return
    for verdict, count in sorted(report.released.items()):
        typer.echo(f"{number(count)} delivered again: {verdict}")
    if report.kept_first:
        typer.echo(
            f"{number(report.kept_first)} contradictions settled, the first admission stands"
        )
    for reason, count in sorted(report.refused.items()):
        typer.echo(f"{number(count)} stay in quarantine: {reason}")


@app.command("discard")
def discard(
    why: Why,
    ids: Ids = None,
    run: Run = None,
    code: Code = None,
    event: Event = None,
    block: Annotated[
        int | None,
        typer.Option(
            help="Give up a whole block of unknown fate: its events are never published again.",
            show_default=False,
        ),
    ] = None,
    author: Author = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Give quarantined deliveries up, by id or by filter; they stay on record."""
    from admitone.boundary.admission import wall_clock
    from admitone.boundary.open import open_boundary
    from admitone.boundary.reconcile import retract
    from admitone.core.decisions import Action

    settings = settings_at(home)
    boundary = open_boundary(settings)
    who = author_of(author)
    if block is not None:
        retracted = retract(boundary, block, who, why)
        document: dict[str, Any] = {"retracted": block, "deliveries": retracted.deliveries}
        text = f"block {block} given up with its {number(retracted.deliveries)} deliveries"
    else:
        done = sum(
            boundary.ledger.dispose(block_id, chosen, Action.DISCARDED, wall_clock(), who, why)
            for block_id, chosen in _chosen(settings, ids, run, code, event).items()
        )
        document, text = {"discarded": done}, f"{number(done)} discarded"
    if as_json:
        print_json(document)
    else:
        typer.echo(text)


def _chosen(
    settings: Settings,
    ids: list[str] | None,
    run: str | None,
    code: Reason | None,
    event: str | None,
) -> dict[int, list[int]]:
    """Return the deliveries that ids or a filter name, by block."""
    from admitone.evidence.quarantine import open_ones
    from admitone.ledger.decisions import in_quarantine
    from admitone.ledger.model import Filter
    from admitone.ledger.open import open_ledger

    by_filter = run is not None or code is not None or event is not None
    if bool(ids) == by_filter:
        raise typer.BadParameter("name deliveries by id, or by --run, --code or --event")
    ledger = open_ledger(settings)
    if not ids:
        return in_quarantine(ledger, Filter(run_id=run, reason=code, event_id=event))
    return open_ones(ledger, ids)
