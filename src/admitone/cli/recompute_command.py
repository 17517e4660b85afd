"""`recompute`: the analytics once more, from the beginning, beside the live ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, err, number, out, present, stores_at

if TYPE_CHECKING:
    from admitone.analytics.recompute.rebuild import Recomputed


def recompute(
    from_archive: Annotated[
        bool, typer.Option("--from-archive", help="From the archive: the log may be gone.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Switch even if something differs.")
    ] = False,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Compute the analytics again beside the live ones, compare, and switch."""
    from admitone.ops import recompute as ops

    with err().status("counting") as progress:
        found = ops.recompute(
            stores_at(home),
            from_archive=from_archive,
            accept=accept,
            report=lambda what, records: progress.update(f"{what}, {number(records)} records"),
        )
    present(ops.document_of(found), as_json, lambda _: _print(found))
    if not found.switched:
        raise typer.Exit(7)


def _print(found: Recomputed) -> None:
    comparison, console = found.comparison, out()
    console.print(f"{number(found.records)} records counted again")
    if found.was_empty:
        console.print("there was nothing to compare with")
    else:
        console.print(
            f"{number(comparison.windows)} windows of {number(comparison.lists)} lists and"
            f" {number(comparison.items)} items compared: {number(comparison.differing)} differ"
        )
    for told in comparison.told:
        console.print(f"  {told}", markup=False, soft_wrap=True)
    if found.switched:
        console.print("switched: answers come from what was counted again")
    else:
        console.print("not switched: the live answers stay as they are; --accept switches anyway")
