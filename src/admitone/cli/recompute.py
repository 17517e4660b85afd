"""`recompute`: the analytics once more, from the beginning, beside the live ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, err, number, out, print_json, settings_at

if TYPE_CHECKING:
    from admitone.analytics.recompute import Again, Recomputed
    from admitone.settings import Settings


def recompute(
    from_archive: Annotated[
        bool, typer.Option("--from-archive", help="From the archive: the log may be gone.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Switch even if something differs.")
    ] = False,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Compute the analytics again beside the live ones, compare, and switch."""
    from admitone.analytics.recompute import recompute as compute_again

    settings = settings_at(home)
    _refuse_a_running_pipeline_with_other_parameters(settings)
    with err().status("counting") as progress:
        found = compute_again(
            settings,
            _again(settings, from_archive),
            accept=accept,
            report=lambda what, records: progress.update(f"{what}, {number(records)} records"),
        )
    if as_json:
        print_json(_document(found))
    else:
        _print(found)
    if not found.switched:
        raise typer.Exit(7)


def _again(settings: Settings, from_archive: bool) -> Again:
    from admitone.analytics.again import FromArchive, FromLog
    from admitone.evidence.open import open_store
    from admitone.ledger.open import open_ledger
    from admitone.transport.open import open_transport

    if from_archive:
        return FromArchive(settings, open_ledger(settings), open_store(settings))
    return FromLog(settings, open_transport(settings))


def _refuse_a_running_pipeline_with_other_parameters(settings: Settings) -> None:
    from admitone.analytics.open import counting_parameters, open_sketch_reader
    from admitone.core.errors import ConfigurationError
    from admitone.ops.runner import running

    if not settings.sqlite_path(settings.topk.store).exists() or not running(settings):
        return
    reader = open_sketch_reader(settings)
    in_force = reader.state().parameters
    reader.close()
    if in_force != counting_parameters(settings):
        raise ConfigurationError(
            "A pipeline is running that counts under other parameters than [topk] has now.",
            "stop it, recompute, and start it again",
        )


def _document(found: Recomputed) -> dict[str, object]:
    comparison = found.comparison
    return {
        "records": found.records,
        "compared": {
            "lists": comparison.lists,
            "windows": comparison.windows,
            "items": comparison.items,
        },
        "differing": comparison.differing,
        "differences": comparison.told,
        "switched": found.switched,
    }


def _print(found: Recomputed) -> None:
    comparison, console = found.comparison, out()
    console.print(f"{number(found.records)} records counted again")
    if found.was_empty:
        console.print("there was nothing to compare with")
    else:
        console.print(
            f"{number(comparison.windows)} windows of {number(comparison.lists)} lists and"
            f" {number(comparison.items)} items compared: {number(comparison.differing)} differ"
        )
    for told in comparison.told:
        console.print(f"  {told}", markup=False, soft_wrap=True)
    if found.switched:
        console.print("switched: answers come from what was counted again")
    else:
        console.print("not switched: the live answers stay as they are; --accept switches anyway")
