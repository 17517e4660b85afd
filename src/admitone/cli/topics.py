"""`topics`: are they as agreed, and what to do where they are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import (
    Author,
    Home,
    Json,
    author_of,
    err,
    number,
    out,
    print_json,
    settings_at,
    table,
)

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary
    from admitone.core.contract import Checked, Contract, Keeping
    from admitone.settings import Settings

app = typer.Typer(
    help="The topic contract against the live log.", no_args_is_help=True, rich_markup_mode=None
)

_EXIT_DRIFT = 7

Dedup = Annotated[
    bool, typer.Option("--dedup", help="The dedup pipeline's topics, not those of the map.")
]


@app.command("check")
def check(dedup: Dedup = False, home: Home = None, as_json: Json = False) -> None:
    """Compare the topics with the map; exit with 7 where they differ."""
    _show(settings_at(home), as_json, dedup)


@app.command("create")
def create(
    dedup: Dedup = False, author: Author = None, home: Home = None, as_json: Json = False
) -> None:
    """Create the topics that are missing, as the map says, and accept them; then check all."""
    from admitone.boundary.admission import wall_clock
    from admitone.transport.contract import check_contracts, create_topic

    settings = settings_at(home)
    boundary = _boundary(settings, dedup)
    made = boundary.topics.create(wall_clock(), author_of(author), "admitone topics create")
    for other in check_contracts(_others(settings, dedup), boundary.transport, {}):
        if other.live is None:
            made.append(create_topic(other.contract, boundary.transport).name)
    if not as_json:
        err().print(f"created {', '.join(made)}" if made else "nothing is missing", markup=False)
    _show(settings, as_json, dedup)


@app.command("accept")
def accept(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A topic of the map.")],
    why: Annotated[str, typer.Option("--reason", help="Why; kept with the acceptance.")],
    dedup: Dedup = False,
    author: Author = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Accept a topic that was created again under its old name; then check all."""
    from admitone.boundary.admission import wall_clock

    settings = settings_at(home)
    boundary = _boundary(settings, dedup)
    new = boundary.topics.accept(topic, wall_clock(), author_of(author), why)
    if not as_json:
        err().print(f"{topic} {'accepted' if new else 'was accepted before'}", markup=False)
    _show(settings, as_json, dedup)


def _boundary(settings: Settings, dedup: bool) -> Boundary:
    from admitone.boundary.open import open_boundary, open_dedup

    return open_dedup(settings) if dedup else open_boundary(settings)


def _others(settings: Settings, dedup: bool) -> list[Contract]:
    """Return the topics that nothing is admitted to: what is read, and what engine state cannot judge."""
    from admitone.transport.contract import late_contract, raw_contract

    reads_raw = not dedup or settings.dedup_source == settings.transport.raw_topic
    raw = [raw_contract(settings)] if reads_raw else []
    return [*raw, late_contract(settings)] if dedup else raw


def _show(settings: Settings, as_json: bool, dedup: bool) -> None:
    """Print the topics next to their contracts; exit with 7 where they differ."""
    from dataclasses import asdict

    from admitone.evidence.contract import check_topics

    boundary = _boundary(settings, dedup)
    contracts = (*_others(settings, dedup), *boundary.options.contracts)
    found = check_topics(contracts, boundary.ledger, boundary.transport)
    if as_json:
        accepted = boundary.ledger.accepted_topics(boundary.transport.cluster)
        print_json(
            {
                "topics": [checked.document() for checked in found],
                "accepted": [asdict(each) for each in accepted],
            }
        )
    else:
        _print(found)
    if not all(checked.as_agreed for checked in found):
        raise typer.Exit(_EXIT_DRIFT)


def _print(found: list[Checked]) -> None:
    from rich.markup import escape

    console = out()
    shown = table("", "topic", "wanted", "found", "id")
    for checked in found:
        contract, live = checked.contract, checked.live
        shown.add_row(
            "[green]✓[/]" if checked.as_agreed else "[red]✗[/]",
            escape(checked.topic),
            _described(contract.partitions, contract.keeping),
            "-" if live is None else _described(live.partitions, live.keeping),
            "-" if live is None else live.topic_id,
        )
    console.print(shown)
    for checked in found:
        for difference in checked.differences:
            sentence = f"topic {checked.topic!r} {difference}"
            console.print(f"[red]differs[/]  {escape(sentence)}", soft_wrap=True)
            console.print(f"[dim]try[/]      {escape(difference.remedy)}", soft_wrap=True)


def _described(partitions: int, keeping: Keeping | None) -> str:
    from admitone.core.durations import format_duration

    if keeping is None:
        return f"{number(partitions)} partitions"
    kept = "for good" if keeping.retention_ms is None else format_duration(keeping.retention_ms)
    return (
        f"{number(partitions)} partitions, replication {keeping.replication}, {kept},"
        f" {keeping.cleanup_policy}"
    )
