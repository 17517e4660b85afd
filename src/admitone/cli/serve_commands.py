"""`serve`: API, synchronous door, dashboard, metrics; `token`: who may use them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer
from typing_extensions import TypedDict

from admitone.cli.output import Home, Json, err, print_json, settings_at
from admitone.ops.tokens import Role, new_token

if TYPE_CHECKING:
    from admitone.settings import Settings


class Serving(TypedDict):
    """Where the service is, and which process it is."""

    url: str
    pid: int


def serve(
    host: Annotated[
        str | None, typer.Option(help="Where to listen (default: this machine only).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="On which port; 0 takes any that is free.", min=0, max=65_535)
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Serve the API, the synchronous door, the dashboard and metrics until it is stopped."""
    from admitone.service.http.server import serve as run

    settings = listening(settings_at(home), host=host, port=port)
    run(settings, announce_json if as_json else announce)


def listening(settings: Settings, **given: str | int | None) -> Settings:
    """Return the settings with another host or port for the service, where one is given."""
    changes = {name: value for name, value in given.items() if value is not None}
    service = settings.service.model_copy(update=changes)
    return settings.model_copy(update={"service": service})


def announce(address: str) -> None:
    """Say where the service is."""
    err().print(f"serving {address} (Ctrl-C stops it)", markup=False, highlight=False)


def announce_json(address: str) -> None:
    """Say where the service is, to a program."""
    print_json(Serving(url=address, pid=os.getpid()))


def token(
    name: Annotated[str, typer.Argument(help="Whose it is; stands in what is recorded.")],
    role: Annotated[Role, typer.Option(help="What it is for.")],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Make a token: prints it once, and the lines that let it in, which hold only its hash."""
    from admitone.settings.access import TokenSettings

    made = new_token(name, role)
    entry = made["entry"]
    try:
        TokenSettings.model_validate(entry)
    except ValueError:
        raise typer.BadParameter(
            "expected printable ASCII without spaces", param_hint="NAME"
        ) from None
    if as_json:
        print_json(made)
        return
    lines = "\n".join(f'{name} = "{value}"' for name, value in entry.items())
    typer.echo(made["token"])
    err().print(
        "the token is above, and nowhere else; to let it in, add this to admitone.toml:\n\n"
        f"[[access.tokens]]\n{lines}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
