"""`serve`: API, synchronous door, dashboard, metrics; `token`: who may use them."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, err, print_json, settings_at

if TYPE_CHECKING:
    from admitone.settings import Settings


class TokenRole(StrEnum):
    """What a token is for."""

    READ = "read"
    OPERATE = "operate"
    INGEST = "ingest"


def serve(
    host: Annotated[
        str | None,
        typer.Option(help="Where to listen (default: this machine only).", show_default=False),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            help="On which port; 0 takes any that is free.", min=0, max=65_535, show_default=False
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Serve the API, the synchronous door, the dashboard and metrics until it is stopped."""
    from admitone.service.server import serve as run

    settings = settings_at(home)
    if host is not None:
        settings = _changed(settings, host=host)
    if port is not None:
        settings = on_port(settings, port)
    run(settings, announce_json if as_json else announce)


def on_port(settings: Settings, port: int) -> Settings:
    """Return the settings with another port for the service."""
    return _changed(settings, port=port)


def announce(address: str) -> None:
    """Say where the service is."""
    err().print(f"serving {address} (Ctrl-C stops it)", markup=False, highlight=False)


def announce_json(address: str) -> None:
    """Say where the service is, to a program."""
    print_json({"url": address, "pid": os.getpid()})


def _changed(settings: Settings, **changes: object) -> Settings:
    service = settings.service.model_copy(update=changes)
    return settings.model_copy(update={"service": service})


def token(
    name: Annotated[str, typer.Argument(help="Whose it is; stands in what is recorded.")],
    role: Annotated[TokenRole, typer.Option(help="What it is for.")],
    as_json: Json = False,
) -> None:
    """Make a token: prints it once, and the lines that let it in, which hold only its hash."""
    from admitone.service.access import new_token
    from admitone.settings.access import TokenSettings

    made, digest = new_token()
    try:
        entry = TokenSettings(name=name, role=role.value, hash=digest)
    except ValueError:
        raise typer.BadParameter(
            "expected printable ASCII without spaces", param_hint="NAME"
        ) from None
    if as_json:
        print_json({"token": made, "entry": entry.model_dump()})
        return
    typer.echo(made)
    err().print(
        "the token is above, and nowhere else; to let it in, add this to admitone.toml:\n\n"
        f'[[access.tokens]]\nname = "{entry.name}"\nrole = "{entry.role}"\nhash = "{entry.hash}"',
        markup=False, soft_wrap=True,
    )  # fmt: skip
