"""`rules`: what decisions were made under; `keys`: what signs closings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from admitone.cli.output import (
    Home,
    Json,
    escape,
    out,
    print_json,
    settings_at,
    stores_at,
    table,
    tick,
)

if TYPE_CHECKING:
    from admitone.ops.signing_keys import Keys

app = typer.Typer(help="The rules that decisions were made under, by hash.", no_args_is_help=True)
keys = typer.Typer(help="The key ring: what signs closings.", no_args_is_help=True)


@app.command()
def show(
    hash: Annotated[
        str | None,
        typer.Argument(metavar="HASH", help="The beginning of a hash (default: those in force)."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every hash there is.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show rules, or list the hashes they are kept under."""
    from admitone.ops import decision_rules as rules

    stores = stores_at(home)
    if everything:
        listed = rules.known(stores)
        if as_json:
            print_json(listed)
            return
        shown = table("hash", "kept", "in force")
        for line in listed["rules"]:
            shown.add_row(line["hash"], tick(line["kept"]), tick(line["in_force"]))
        out().print(shown)
        return
    print_json(rules.show(stores, hash))


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="HASH", help="The beginning of a hash.")],
    after: Annotated[
        str | None,
        typer.Argument(metavar="HASH", help="Of another one (default: those in force)."),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show in what two documents of rules differ."""
    from admitone.ops import decision_rules as rules

    found = rules.diff(stores_at(home), before, after)
    if as_json:
        print_json(found)
        return
    shown = table("rule", "before", "after")
    for change in found["changes"]:
        shown.add_row(escape(change["path"]), _value(change["before"]), _value(change["after"]))
    out().print(f"{found['before'][:16]} -> {found['after'][:16]}")
    out().print(shown)


@keys.command("list")
def list_keys(home: Home = None, as_json: Json = False) -> None:
    """List every key there ever was."""
    from admitone.ops.signing_keys import listed

    _print_keys(listed(settings_at(home)), as_json)


@keys.command()
def rotate(home: Home = None, as_json: Json = False) -> None:
    """Make a new signing key, which signs from now on, and retire the one before it."""
    from admitone.ops import signing_keys as ops

    _print_keys(ops.rotate(settings_at(home)), as_json)


@keys.command()
def retire(
    key: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Let a key sign no more; what it signed stays good."""
    from admitone.ops import signing_keys as ops

    _print_keys(ops.retire(settings_at(home), key), as_json)


def _print_keys(found: Keys, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    shown = table("id", "purpose", "made", "retired", "signs now", "public key")
    for key in found["keys"]:
        shown.add_row(
            key["id"], key["purpose"], key["made_at"] or "", key["retired_at"] or "", tick(key["signs"]),
            key["public"],
        )  # fmt: skip
    out().print(shown)


def _value(value: Any) -> str:
    import orjson

    return escape(orjson.dumps(value).decode())
