"""`reconcile`: what became of every publish that got no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, err, number, out, present, settings_at, table

if TYPE_CHECKING:
    from admitone.ops.reconcile import Reconciliation


def reconcile(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only look; change and fence nothing.")
    ] = False,
    restored: Annotated[
        bool,
        typer.Option(
            "--restored",
            help="The ledger is an older copy: first read back what the log holds beyond it. Nothing else may run.",
        ),
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Resolve in-flight and ambiguous admissions against the log; exit 6 if any remain."""
    from admitone.ops import reconcile as ops

    if restored and dry_run:
        raise typer.BadParameter(
            "reading back changes the ledger: leave out --dry-run or --restored"
        )
    with err().status("looking at the log"):
        settings = settings_at(home)
        done = ops.look(settings) if dry_run else ops.reconcile(settings, restored=restored)
    present(done, as_json, lambda done: _print(done, restored))
    if done.remaining:
        raise typer.Exit(done.refusal().exit_code) if as_json else done.refusal()


def _print(done: Reconciliation, restored: bool) -> None:
    if done.restored:
        shown = table("source", "#admitted", "#published late", "#of unknown fate")
        for part in done.restored:
            counts = map(number, (part.admitted, part.published_late, part.unknown))
            shown.add_row(f"{part.topic}:{part.source.partition}", *counts)
        out().print(shown)
    elif restored:
        err().print("the log holds nothing that the ledger does not know")
    if not done.found:
        err().print("nothing is in flight or ambiguous")
        return
    shown = table("#block", "source", "#deliveries", "state", "found")
    for entry in done.found:
        block = entry.block
        shown.add_row(
            str(block.block_id),
            f"{block.source.partition}:{block.first_offset}-{block.last_offset}",
            number(block.deliveries),
            entry.state,
            entry.how,
        )
    out().print(shown)
