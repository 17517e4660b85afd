"""The command tree."""

from __future__ import annotations

from typing import Annotated

import typer

from admitone.cli import answer_commands as answers
from admitone.cli import close_commands as closure
from admitone.cli import decision_commands as ledger
from admitone.cli import demo_command as demo
from admitone.cli import generate_command as generate
from admitone.cli import quarantine_commands as quarantine
from admitone.cli import recompute_command as recompute
from admitone.cli import reconcile_command as reconcile
from admitone.cli import run_commands as pipeline
from admitone.cli import serve_commands as serve
from admitone.cli import size_command as size
from admitone.cli import topic_commands as topics
from admitone.cli.output import Home, remember_home

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


app.command("init")(pipeline.init)
app.command("demo")(demo.demo)
app.command("generate")(generate.generate)
app.command("ingest")(pipeline.ingest)
app.command("run")(pipeline.run)
app.command("serve")(serve.serve)
app.command("token")(serve.token)
app.command("status")(pipeline.status)
app.command("books")(ledger.books)
app.command("decisions")(ledger.decisions)
app.command("receipt")(ledger.receipt)
app.add_typer(quarantine.app, name="quarantine")
app.command("reconcile")(reconcile.reconcile)
app.command("close")(closure.close)
app.command("verify")(closure.verify)
app.add_typer(topics.app, name="topics")
app.command("top")(answers.top)
app.command("item")(answers.item)
app.command("trend")(answers.trend)
app.command("windows")(answers.windows)
app.command("recompute")(recompute.recompute)
app.command("size")(size.size)
