"""`close`: the gate; `verify`: is a run still what it was?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, err, number, out, print_json, settings_at, table

if TYPE_CHECKING:
    from admitone.core.closure import Gate
    from admitone.evidence.verify import Verification

_EXIT_RED = 5
_EXIT_DIFFERS = 7


def close(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run to close.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check.")] = False,
    waive: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY",
            help="Close although this required family has no admissions; may be repeated.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Close a run; while it is red, list the blockers and exit with 5."""
    from admitone.core.errors import RunIsRed
    from admitone.evidence.closure import Closing, gate_of, try_to_close
    from admitone.ledger.open import open_ledger
    from admitone.transport.open import open_transport

    settings = settings_at(home)
    ledger, transport = open_ledger(settings), open_transport(settings)
    waived = tuple(waive or ())
    already = ledger.runs().get(run_id) == "CLOSED"
    with err().status("checking"):
        if dry_run or already:
            closing = Closing(gate_of(run_id, ledger, transport, settings, waived), None)
        else:
            closing = try_to_close(run_id, ledger, transport, settings, waived)
    gate, artifact = closing.gate, closing.artifact
    if as_json:
        print_json(closing.document(already=already))
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


def verify(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run to verify.")],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First write evidence that is pending, missing or damaged, where that is possible.",
        ),
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Compare a closed run with its artifact, an open one with the ledger; exit with 7 if anything differs."""
    from admitone.evidence.verify import repair_and_verify, verify_run
    from admitone.ledger.open import open_ledger
    from admitone.transport.open import open_transport

    settings = settings_at(home)
    ledger, transport = open_ledger(settings), open_transport(settings)
    with err().status("comparing"):
        check = repair_and_verify if repair else verify_run
        found = check(run_id, ledger, transport, settings)
    if as_json:
        print_json(found.document())
    else:
        print_verification(found)
    if not found.verified:
        if as_json:
            raise typer.Exit(_EXIT_DIFFERS)
        _fail(found)


def print_gate(gate: Gate) -> None:
    """Print the checks of a run and what blocks it."""
    from rich.markup import escape

    console = out()
    colour = "green" if gate.green else "red"
    console.print(f"run {escape(gate.run_id)}: [bold {colour}]{colour.upper()}[/]")
    shown = table("", "criterion", "evidence")
    for check in gate.checks:
        shown.add_row(_tick(check.passed), str(check.criterion), escape(check.evidence))
    console.print(shown)
    if gate.blockers:
        blockers = table("#", "blocker", "what shows or resolves it")
        for blocker in gate.blockers:
            blockers.add_row(number(blocker.count), escape(blocker.what), escape(blocker.command))
        console.print(blockers)


def print_verification(found: Verification) -> None:
    """Print what was compared, what differs and what was repaired."""
    from rich.markup import escape

    console = out()
    shown = table("", "compared", "with", "#differences")
    for each in found.comparisons:
        differences = len(each.differences)
        shown.add_row(
            _tick(not differences), escape(each.what), escape(each.compared), number(differences)
        )
    console.print(f"run {escape(found.run_id)}, {found.state.lower()}")
    console.print(shown)
    for each in found.comparisons:
        for difference in each.differences:
            console.print(f"[red]differs[/]  {escape(difference)}", soft_wrap=True)
    if found.repaired is not None:
        for word, paths in (
            ("written again", found.repaired.rewritten),
            ("removed", found.repaired.removed),
            ("lost", found.repaired.lost),
        ):
            for path in paths:
                console.print(f"{word}  {escape(path)}", soft_wrap=True)
    for note in found.notes:
        err().print(f"note: {escape(note)}", soft_wrap=True)


def _tick(passed: bool) -> str:
    return "[green]✓[/]" if passed else "[red]✗[/]"


def _fail(found: Verification) -> None:
    from admitone.core.errors import IntegrityError

    differences = sum(len(each.differences) for each in found.comparisons)
    remedy = (
        "restore what is lost from a backup of the evidence store"
        if found.repaired is not None
        else f"admitone verify {found.run_id} --repair writes again what can be"
    )
    raise IntegrityError(f"Run {found.run_id!r} differs in {differences} places.", remedy)
