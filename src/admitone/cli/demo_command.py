"""`demo`: the whole story in one go."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, err, out

if TYPE_CHECKING:
    from admitone.settings import Settings


def demo(
    events: Annotated[
        int,
        typer.Option(
            help="How many deliveries: fewer are over before the pipeline can be killed in the middle.",
            min=2_000,
        ),
    ] = 50_000,
    seed: Annotated[int, typer.Option(help="Which traffic.")] = 7,
    serving: Annotated[
        bool, typer.Option("--serve", help="Leave the dashboard up with the demo's data.")
    ] = False,
    home: Home = None,
) -> None:
    """Make traffic, kill the pipeline in the middle, delete its checkpoints, resume, and check everything."""
    from admitone.demo import story
    from admitone.ops.java import require_java
    from admitone.settings import load_settings

    require_java()
    folder = home or Path(tempfile.mkdtemp(prefix="admitone-demo-"))
    if not story.tell(folder, events, seed, out(), err()):
        raise typer.Exit(1)
    if serving:
        _serve(load_settings(folder))
    else:
        err().print(f"look around: admitone --home {folder} serve", soft_wrap=True)


def _serve(settings: Settings) -> None:
    """Leave the dashboard up, on its usual port where that is free."""
    from admitone.cli.serve_commands import announce, listening
    from admitone.core.errors import ConfigurationError
    from admitone.service.http.server import serve

    try:
        serve(settings, announce)
    except ConfigurationError:
        serve(listening(settings, port=0), announce)
