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
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Resolve in-flight and ambiguous admissions against the log; exit 6 if any remain."""
    from admitone.boundary.open import open_boundary
    from admitone.boundary.reconcile import look_only
    from admitone.boundary.reconcile import reconcile as resolve
    from admitone.core.decisions import BlockState

    boundary = open_boundary(settings_at(home))
    with err().status("looking at the log"):
        found = list(look_only(boundary) if dry_run else resolve(boundary))
    unsettled = (BlockState.IN_FLIGHT, BlockState.AMBIGUOUS)
    remaining = len(boundary.ledger.blocks(states=unsettled))
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
            }
        )
    elif not found:
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
