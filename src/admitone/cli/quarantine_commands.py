"""`quarantine`: what was not admitted, with its original bytes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.decision_commands import Code, position, print_decisions
from admitone.cli.output import (
    Author,
    Home,
    Json,
    JsonLines,
    Run,
    author_of,
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
from admitone.core.decisions import BlockState, Reason

if TYPE_CHECKING:
    from admitone.boundary.release import Report
    from admitone.evidence.quarantined import QuarantinedDelivery
    from admitone.ops.quarantine import Which
    from admitone.ops.reconcile import ReconciledBlock

app = typer.Typer(
    help="What was not admitted, and why.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_quarantined(
    run: Run = None,
    code: Code = None,
    limit: Annotated[int | None, typer.Option(help="At most this many.", min=1)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also those that were released or discarded.")
    ] = False,
    home: Home = None,
    as_json: Json = False,
    as_lines: JsonLines = False,
) -> None:
    """List quarantined deliveries that nothing was done about yet."""
    from admitone.evidence.quarantined import is_done
    from admitone.ledger.query_text import filter_from
    from admitone.ops import quarantine as ops

    wanted = filter_from(run=run, reason=code)
    found = ops.list_quarantined(stores_at(home), wanted, everything=everything)
    rows = islice(found, limit)
    if as_lines:
        print_lines(rows)
        return
    if as_json:
        print_json(ops.Quarantined(quarantined=list(rows)))
        return
    listed = list(islice(rows, 51))
    if not listed:
        err().print("nothing is in quarantine")
        return
    shown = table("id", "run", "event", "class", "reason", "source", "first", "decided at", "done")
    for row in listed[:50]:
        done = row["resolution"]
        shown.add_row(
            row["id"],
            escape(row["run_id"]),
            escape(row["event_id"]),
            escape(row["event_class"]),
            row["reason"],
            position(row["source"]),
            position(row["first"]),
            row["decided_at"],
            done["action"] if done and is_done(row) else "-",
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
    from admitone.evidence.quarantined import quarantined

    stores = stores_at(home)
    document = quarantined(stores.ledger, stores.evidence, record)
    present(document, as_json, _print_delivery)


def _print_delivery(document: QuarantinedDelivery) -> None:
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
OfCode = Annotated[Reason | None, typer.Option("--code", help="All with this reason code.")]
Event = Annotated[str | None, typer.Option("--event", help="All of this event.")]


@app.command("release")
def release(
    why: Why,
    ids: Ids = None,
    run: Run = None,
    code: OfCode = None,
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
    from admitone.boundary.release import Choice, Signature
    from admitone.ops import quarantine as ops

    if keep_first and as_new:
        raise typer.BadParameter("choose --keep-first or --as-new, not both")
    choice = Choice.KEEP_FIRST if keep_first else Choice.AS_NEW if as_new else None
    which = _which(ids, run, code, event)
    with err().status("releasing"):
        report = ops.release(stores_at(home), which, Signature(author_of(author), why), choice)
    present(report, as_json, _print_report)


def _print_report(report: Report) -> None:
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
    code: OfCode = None,
    event: Event = None,
    block: Annotated[
        int | None,
        typer.Option(
            help="Give up a whole block of unknown fate: its events are never published again. Settles it instead"
            " where the log holds it."
        ),
    ] = None,
    author: Author = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Give quarantined deliveries up, by id or by filter; they stay on record."""
    from admitone.boundary.release import Signature
    from admitone.ops import quarantine as ops

    stores, signature = stores_at(home), Signature(author_of(author), why)
    if block is not None:
        present(ops.give_up_block(stores.settings, block, signature), as_json, _print_given_up)
        return
    done = ops.discard(stores, _which(ids, run, code, event), signature)
    print_json(done) if as_json else typer.echo(f"{number(done['discarded'])} discarded")


def _print_given_up(found: ReconciledBlock) -> None:
    deliveries = number(found["deliveries"])
    if found["state"] == BlockState.SETTLED:
        typer.echo(
            f"block {found['block']} was {found['found']}: its {deliveries} deliveries are settled,"
            " nothing is given up"
        )
    else:
        typer.echo(f"block {found['block']} given up with its {deliveries} deliveries")


def _which(ids: list[str] | None, run: str | None, code: Reason | None, event: str | None) -> Which:
    """Return what ids or a filter name."""
    from admitone.ledger.query_text import filter_from

    by_filter = run is not None or code is not None or event is not None
    if bool(ids) == by_filter:
        raise typer.BadParameter("name deliveries by id, or by --run, --code or --event")
    return ids or filter_from(run=run, reason=code, event=event)
