"""What every command shares: where home is, where output goes, how errors speak.

Data goes to stdout, messages and progress to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from admitone.ops.stores import Stores
    from admitone.settings import Settings

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder with admitone.toml and data/ (default: here)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonLines = Annotated[bool, typer.Option("--jsonl", help="Print one JSON document per line.")]
Run = Annotated[str | None, typer.Option("--run", help="Only this run.")]
Author = Annotated[str | None, typer.Option(help="Who does it (default: the user's name).")]

_home_before_verb: list[Path] = []


def remember_home(home: Path | None) -> None:
    """Keep the home folder that was given before the verb."""
    _home_before_verb[:] = [home] if home is not None else []


def home_folder(home: Path | None) -> Path:
    """Return the home folder given after the verb, before it, or the current folder."""
    return home or (_home_before_verb[0] if _home_before_verb else Path())


def settings_at(home: Path | None, **overrides: dict[str, Any]) -> Settings:
    """Load the settings of the home folder."""
    from admitone.core.errors import ConfigurationError
    from admitone.settings import load_settings

    chosen = home_folder(home)
    if not chosen.is_dir():
        raise ConfigurationError(f"There is no folder {chosen}.", f"mkdir {chosen}")
    return load_settings(chosen, **overrides)


def stores_at(home: Path | None) -> Stores:
    """Open the stores of the home folder."""
    from admitone.ops.stores import Stores

    return Stores(settings_at(home))


def author_of(author: str | None) -> str:
    """Return who does something: the one that was named, or the user."""
    import getpass

    return author or getpass.getuser()


def print_json(document: Any) -> None:
    """Print one JSON document."""
    import orjson

    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    sys.stdout.buffer.flush()


def present(found: Any, as_json: bool, print_it: Callable[[Any], None]) -> None:
    """Print what was found: its document for a program, or as a person reads it."""
    if not as_json:
        print_it(found)
    else:
        print_json(found.document() if hasattr(found, "document") else found)


def print_lines(documents: Iterable[Any]) -> None:
    """Print one JSON document per line."""
    import orjson

    for document in documents:
        sys.stdout.buffer.write(orjson.dumps(document) + b"\n")
    sys.stdout.buffer.flush()


def out() -> Console:
    """Return the console for data: as wide as the terminal or `COLUMNS`, else wide enough for most tables."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if known else 140)


def err() -> Console:
    """Return the console for messages."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table; a column whose name begins with # holds numbers."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for name in columns:
        numeric = name.startswith("#")
        made.add_column(
            name.removeprefix("#"),
            justify="right" if numeric else "left",
            no_wrap=numeric,
            overflow="fold",
        )
    return made


def escape(text: str | None) -> str:
    """Return a text so that a table shows it as it is; a dash where there is none."""
    from rich import markup

    return "-" if text is None else markup.escape(text)


def tick(passed: bool) -> str:
    """Return a green tick, or a red cross."""
    return "[green]✓[/]" if passed else "[red]✗[/]"


def number(value: int | None) -> str:
    """Return a count with thousands separators."""
    return "-" if value is None else f"{value:,}"


def fail(problem: str, remedy: str = "") -> None:
    """Print what went wrong and what to try."""
    from rich.text import Text

    console = err()
    console.print(Text.assemble(("error ", "bold red"), problem), soft_wrap=True)
    if remedy:
        console.print(Text.assemble(("try   ", "dim"), remedy), soft_wrap=True)
