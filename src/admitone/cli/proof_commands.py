"""`proof` and `export`: what a stranger can check without our stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from admitone.cli.output import Home, Json, err, print_json, stores_at


def proof(
    event_id: Annotated[
        str | None, typer.Argument(metavar="EVENT_ID", help="The event whose receipt is proved.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Where several runs have the event.")] = None,
    event_class: Annotated[
        str | None, typer.Option("--class", help="Where several classes have the event.")
    ] = None,
    verifier: Annotated[
        bool, typer.Option("--verifier", help="Only print the program that checks proofs.")
    ] = False,
    home: Home = None,
) -> None:
    """Print the proof of an event's receipt: its place in the run's tree, and the signed root."""
    if verifier:
        from admitone.evidence.audit.proof import verifier as program

        typer.echo(program(), nl=False)
        return
    if event_id is None:
        raise typer.BadParameter("expected an event, or --verifier", param_hint="EVENT_ID")
    from admitone.ops import proofs as ops

    with err().status("looking for the receipt"):
        found = ops.proof(stores_at(home), event_id, run, event_class)
    print_json(found)


def export(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="A closed run.")],
    folder: Annotated[Path, typer.Option("--to", help="A new folder.")],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Write all receipts of a closed run, and what was signed of it, for strangers to check."""
    from admitone.ops import proofs as ops

    with err().status("writing"):
        done = ops.export(stores_at(home), run_id, folder)
    if as_json:
        print_json(done)
        return
    typer.echo(f"{done['receipts']:,} receipts of run {run_id} in {folder}")
    typer.echo(f"admitone proof --verifier > verify_receipt.py; python verify_receipt.py {folder}")
