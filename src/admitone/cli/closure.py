"""`close`: the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, number, out, print_json, settings_at, table

if TYPE_CHECKING:
    from admitone.core.closure import Gate

_EXIT_RED = 5


def close(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run to close.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Close a run; while it is red, list the blockers and exit with 5."""
    from admitone.core.errors import RunIsRed
    from admitone.evidence.closure import close_run, gate_of
    from admitone.ledger.open import open_ledger
    from admitone.transport.open import open_transport

    settings = settings_at(home)
    ledger, transport = open_ledger(settings), open_transport(settings)
    already = ledger.runs().get(run_id) == "CLOSED"
    gate = gate_of(run_id, ledger, transport, settings)
    artifact = None
    if gate.green and not dry_run and not already:
        artifact = close_run(run_id, ledger, transport, settings)
    if as_json:
        print_json(
            {**gate.document(), "closed": already or artifact is not None, "artifact": artifact}
        )
    else:
        print_gate(gate)
        if already:
            typer.echo(f"run {run_id} is closed")
        elif artifact is not None:
            typer.echo(f"run {run_id} closed, merkle root {artifact['merkle_root']}")
    if not gate.green:
        if not as_json and not dry_run:
            raise RunIsRed(f"Run {run_id!r} stays open: {len(gate.blockers)} kinds of blockers.")
        raise typer.Exit(_EXIT_RED)


def print_gate(gate: Gate) -> None:
    """Print the checks of a run and what blocks it."""
    from rich.markup import escape

    console = out()
    colour = "green" if gate.green else "red"
    console.print(f"run {escape(gate.run_id)}: [bold {colour}]{colour.upper()}[/]")
    shown = table("", "criterion", "evidence")
    for check in gate.checks:
        shown.add_row(
            "[green]✓[/]" if check.passed else "[red]✗[/]", str(check.criterion), check.evidence
        )
    console.print(shown)
    if gate.blockers:
        blockers = table("#", "blocker", "what shows it")
        for blocker in gate.blockers:
            blockers.add_row(number(blocker.count), escape(blocker.what), escape(blocker.command))
        console.print(blockers)
