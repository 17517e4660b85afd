"""`close`: the gate; `verify`: is a run still what it was?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import (
    Author,
    Home,
    Json,
    author_of,
    err,
    escape,
    number,
    out,
    present,
    stores_at,
    table,
    tick,
)
from admitone.core.durations import parse_duration_ms
from admitone.core.errors import IntegrityError, RunIsRed

if TYPE_CHECKING:
    from admitone.core.closure import Gate
    from admitone.evidence.audit.closing import Closing
    from admitone.evidence.audit.verify import Verification
    from admitone.ops.close import AttemptsDocument


def close(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run to close.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check.")] = False,
    waive: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FAMILY",
            help="Close although this required family has no admissions; may be repeated.",
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="First wait until what lies on the raw log is decided.")
    ] = False,
    patience: Annotated[
        str, typer.Option(help="How long --wait waits.", metavar="DURATION")
    ] = "10m",
    history: Annotated[
        bool,
        typer.Option("--history", help="Only show every try at closing it, with its blockers."),
    ] = False,
    author: Author = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Close a run; while it is red, list the blockers and exit with 5."""
    from admitone.ops import close as ops
    from admitone.ops.unread import unread, wait_until_read

    stores = stores_at(home)
    if history:
        present(ops.attempts(stores, run_id), as_json, _print_attempts)
        return
    with err().status("checking") as status:
        if wait:
            wait_until_read(stores, run_id, _seconds(patience), status.update)
        left = unread(stores, run_id)
        if left.any:
            said = f"{left}: a closed run refuses them; --wait waits until they are decided"
            err().print(said, soft_wrap=True)
        closing = ops.close(stores, run_id, waive or (), author_of(author), dry_run=dry_run)
    present(closing, as_json, _print_closing)
    if closing.refused:
        raise typer.Exit(RunIsRed.exit_code) if as_json or dry_run else closing.refusal()


def verify(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="The run to verify.")],
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="First write evidence that is pending, missing or damaged, where that is possible.",
        ),
    ] = False,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="HASH",
            help="A head that was kept elsewhere: the chain of closings must hold it.",
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Compare a closed run with its artifact, an open one with the ledger; exit with 7 if anything differs."""
    from admitone.ops import close as ops

    with err().status("comparing"):
        found = ops.verify(stores_at(home), run_id, repair=repair, head=head)
    present(found, as_json, print_verification)
    if not found.verified:
        raise typer.Exit(IntegrityError.exit_code) if as_json else _failure(found)


def _print_closing(closing: Closing) -> None:
    print_gate(closing.gate)
    if closing.already:
        typer.echo(f"run {closing.gate.run_id} is closed")
    elif closing.artifact is not None:
        root = closing.artifact["merkle_root"]
        typer.echo(f"run {closing.gate.run_id} closed, merkle root {root}")
        typer.echo(f"head {closing.head}")
        for each in closing.untold:
            err().print(f"not told of the head: {escape(each)}", soft_wrap=True)
    for path in closing.set_aside:
        typer.echo(f"set aside  {path}")


def _print_attempts(found: AttemptsDocument) -> None:
    shown = table("when", "author", "", "blockers")
    for attempt in found["attempts"]:
        blockers = [each for check in attempt["gate"]["checks"] for each in check["blockers"]]
        said = "\n".join(f"{each.count} {each.what}" for each in blockers)
        outcome = "closed" if attempt["closed"] else "red"
        shown.add_row(attempt["at"] or "", escape(attempt["author"]), outcome, escape(said))
    out().print(f"run {escape(found['run_id'])}")
    out().print(shown)


def _seconds(duration: str) -> float:
    try:
        return parse_duration_ms(duration) / 1_000
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--patience") from None


def print_gate(gate: Gate) -> None:
    """Print the checks of a run and what blocks it."""
    console = out()
    colour = "green" if gate.green else "red"
    console.print(f"run {escape(gate.run_id)}: [bold {colour}]{colour.upper()}[/]")
    shown = table("", "criterion", "evidence")
    for check in gate.checks:
        shown.add_row(tick(check.passed), str(check.criterion), escape(check.evidence))
    console.print(shown)
    if gate.blockers:
        blockers = table("#", "blocker", "what shows or resolves it")
        for blocker in gate.blockers:
            blockers.add_row(number(blocker.count), escape(blocker.what), escape(blocker.command))
        console.print(blockers)


def print_verification(found: Verification) -> None:
    """Print what was compared, what differs and what was repaired."""
    console = out()
    shown = table("", "compared", "with", "#differences")
    for each in found.comparisons:
        differences = len(each.differences)
        shown.add_row(
            tick(not differences), escape(each.what), escape(each.compared), number(differences)
        )
    console.print(f"run {escape(found.run_id)}, {found.state.lower()}")
    console.print(shown)
    for each in found.comparisons:
        for difference in each.differences:
            console.print(f"[red]differs[/]  {escape(difference)}", soft_wrap=True)
    if found.repaired is not None:
        for word, paths in (
            ("written again", found.repaired.rewritten),
            ("set aside", found.repaired.set_aside),
            ("lost", found.repaired.lost),
        ):
            for path in paths:
                console.print(f"{word}  {escape(path)}", soft_wrap=True)
    from admitone.evidence.audit.coverage import not_covered

    left_out = not_covered()
    err().print(
        f"{len(left_out)} columns need not be covered; --json lists them, each with the reason"
    )
    for note in found.notes:
        err().print(f"note: {escape(note)}", soft_wrap=True)


def _failure(found: Verification) -> IntegrityError:
    differences = sum(len(each.differences) for each in found.comparisons)
    remedy = (
        "restore what is lost from a backup of the evidence store"
        if found.repaired is not None
        else f"admitone verify {found.run_id} --repair writes again what can be"
    )
    return IntegrityError(f"Run {found.run_id!r} differs in {differences} places.", remedy)
