"""The command tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from admitone.cli import quarantine_commands as quarantine
from admitone.cli import rule_commands as rules
from admitone.cli import topic_commands as topics
from admitone.cli.answer_commands import item, recompute, top, trend, windows
from admitone.cli.close_commands import close, verify
from admitone.cli.decision_commands import books, decisions, receipt
from admitone.cli.demo_command import demo
from admitone.cli.generate_command import generate
from admitone.cli.output import Home, remember_home
from admitone.cli.proof_commands import export, proof
from admitone.cli.reconcile_command import reconcile
from admitone.cli.run_commands import ingest, init, run, status
from admitone.cli.serve_commands import serve, token
from admitone.cli.simulate_command import simulate
from admitone.cli.size_command import size

app = typer.Typer(
    name="admitone",
    help="Every event gets in once and gets a ticket, or you know why not.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"admitone {version('admitone')}")
        raise typer.Exit


@app.callback()
def admitone(
    home: Home = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Every event gets in once and gets a ticket, or you know why not."""
    remember_home(home)


app.add_typer(quarantine.app, name="quarantine")
app.add_typer(topics.app, name="topics")
app.add_typer(rules.app, name="rules")
app.add_typer(rules.keys, name="keys")
_COMMANDS: tuple[Callable[..., None], ...] = (
    *(init, demo, generate, ingest, run, serve, token, status, books, decisions, receipt),
    *(
        reconcile,
        close,
        verify,
        proof,
        export,
        top,
        item,
        trend,
        windows,
        recompute,
        size,
        simulate,
    ),
)
for command in _COMMANDS:
    app.command()(command)
