"""`reconcile`: what became of every publish that nobody got an answer to."""

from __future__ import annotations

from typing import Annotated

import typer

from admitone.cli.output import Home, Json, err, number, out, print_json, settings_at, table

_EXIT_AMBIGUOUS = 6


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
    from admitone.boundary.ahead import refuse_older_ledger
    from admitone.boundary.open import open_all
    from admitone.boundary.readback import read_all_back
    from admitone.boundary.reconcile import look_only
    from admitone.boundary.reconcile import reconcile as resolve
    from admitone.core.decisions import BlockState

    if restored and dry_run:
        raise typer.BadParameter(
            "reading back changes the ledger: leave out --dry-run or --restored"
        )
    look = look_only if dry_run else resolve
    settings = settings_at(home)
    boundaries = open_all(settings)
    with err().status("looking at the log"):
        again = read_all_back(settings, boundaries) if restored else []
        for boundary in () if dry_run else boundaries:
            topics = [contract.topic for contract in boundary.options.contracts]
            refuse_older_ledger(boundary.ledger, boundary.transport, topics)
        found = [entry for boundary in boundaries for entry in look(boundary)]
    unsettled = (BlockState.IN_FLIGHT, BlockState.AMBIGUOUS)
    remaining = len(boundaries[0].ledger.blocks(states=unsettled))
    if as_json:
        print_json(
            {
                "blocks": [
                    {
                        "block": entry.block.block_id,
                        "source": entry.block.source._asdict(),
                        "deliveries": entry.block.deliveries,
                        "state": str(entry.state),
                        "found": entry.how,
                    }
                    for entry in found
                ],
                "remaining": remaining,
                "restored": [entry.document() for entry in again],
            }
        )
        raise typer.Exit(_EXIT_AMBIGUOUS if remaining else 0)
    if again:
        shown = table("source", "#admitted", "#published late", "#of unknown fate")
        for part in again:
            counts = map(number, (part.admitted, part.published_late, part.unknown))
            shown.add_row(f"{part.topic}:{part.source.partition}", *counts)
        out().print(shown)
    elif restored:
        err().print("the log holds nothing that the ledger does not know")
    if not found:
        err().print("nothing is in flight or ambiguous")
    else:
        shown = table("#block", "source", "#deliveries", "state", "found")
        for entry in found:
            block = entry.block
            shown.add_row(
                str(block.block_id),
                f"{block.source.partition}:{block.first_offset}-{block.last_offset}",
                number(block.deliveries),
                str(entry.state),
                entry.how,
            )
        out().print(shown)
        if remaining and not dry_run:
            err().print(
                "what stays ambiguous can be given up: admitone quarantine discard --block N --reason ..."
            )
    if remaining:
        raise typer.Exit(_EXIT_AMBIGUOUS)
