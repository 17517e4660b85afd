"""Every command of the command line with its options, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import typer
from scripts.reference.markdown import names, paragraph, table

from admitone.cli import app
from admitone.core import errors

_EVERYWHERE: Final = ("home", "help")
_ENDS: Final = {
    0: "It did what was asked.",
    1: "It failed.",
    2: "The command line cannot be understood.",
}


def commands() -> str:
    """Return each command with its help and its options."""
    context = typer.Context(typer.main.get_command(app))
    return "\n\n".join(_section(name, each) for name, each in _commands("admitone", context))


def _commands(name: str, context: typer.Context) -> Iterator[tuple[str, typer.Context]]:
    for verb, command in getattr(context.command, "commands", {}).items():
        below = typer.Context(command, parent=context, info_name=verb)
        if hasattr(command, "commands"):
            yield from _commands(f"{name} {verb}", below)
        else:
            yield f"{name} {verb}", below


def _section(name: str, context: typer.Context) -> str:
    command = context.command
    usage = " ".join((name, *command.collect_usage_pieces(context)))
    lines = [f"## {name}", paragraph(command.help or ""), f"    {usage}"]
    records = [_record(each, context) for each in command.get_params(context)]
    if shown := [record for record in records if record is not None]:
        lines.append(table(("", "what it means"), shown))
    return "\n\n".join(lines)


def _record(parameter: Any, context: typer.Context) -> tuple[str, str] | None:
    record = parameter.get_help_record(context)
    if parameter.name in _EVERYWHERE or record is None:
        return None
    # A list as long as that of all reasons has a page of its own.
    name = re.sub(r"<(\w+\|){8,}\w+>", "<name>", record[0])
    return f"`{name}`", " ".join(record[1].split())


def exit_codes() -> str:
    """Return what an exit code says, and the codes of the errors that end with it."""
    kinds = [errors.AdmitoneError, *_below(errors.AdmitoneError)]
    by_exit: dict[int, list[type[errors.AdmitoneError]]] = {}
    for kind in kinds:
        by_exit.setdefault(kind.exit_code, []).append(kind)
    return table(
        ("exit code", "what happened", "codes of errors"),
        (
            (
                str(number),
                _ENDS.get(number) or (by_exit[number][0].__doc__ or "").splitlines()[0],
                names(kind.code for kind in by_exit.get(number, ())),
            )
            for number in sorted({*_ENDS, *by_exit})
        ),
    )


def _below(kind: type[errors.AdmitoneError]) -> Iterator[type[errors.AdmitoneError]]:
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield below
        yield from _below(below)
