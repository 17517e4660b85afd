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
    escape,
    number,
    out,
    present,
    stores_at,
    table,
    tick,
)
from admitone.core.errors import ContractDrift

if TYPE_CHECKING:
    from admitone.core.contract import FoundTopic, WantedTopic
    from admitone.ops.stores import Stores
    from admitone.ops.topics import TopicsDocument

app = typer.Typer(
    help="The topic contract against the live log.", no_args_is_help=True, rich_markup_mode=None
)

Dedup = Annotated[
    bool, typer.Option("--dedup", help="The dedup pipeline's topics, not those of the map.")
]


@app.command("check")
def check(dedup: Dedup = False, home: Home = None, as_json: Json = False) -> None:
    """Compare the topics with the map; exit with 7 where they differ."""
    _check(stores_at(home), as_json, dedup)


@app.command("create")
def create(
    dedup: Dedup = False, author: Author = None, home: Home = None, as_json: Json = False
) -> None:
    """Create the topics that are missing, as the map says, and accept them; then check all."""
    from admitone.ops import topics

    stores = stores_at(home)
    made = topics.create(stores, author_of(author), dedup=dedup)
    if not as_json:
        err().print(f"created {', '.join(made)}" if made else "nothing is missing", markup=False)
    _check(stores, as_json, dedup)


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
    from admitone.ops import topics

    stores = stores_at(home)
    new = topics.accept(stores, topic, author_of(author), why, dedup=dedup)
    if not as_json:
        err().print(f"{topic} {'accepted' if new else 'was accepted before'}", markup=False)
    _check(stores, as_json, dedup)


def _check(stores: Stores, as_json: bool, dedup: bool) -> None:
    """Print the topics next to their contracts; exit with 7 where they differ."""
    from admitone.ops import topics

    report = topics.check(stores, dedup=dedup)
    present(report, as_json, _print)
    if not all(topic["as_agreed"] for topic in report["topics"]):
        raise typer.Exit(ContractDrift.exit_code)


def _print(report: TopicsDocument) -> None:
    console = out()
    shown = table("", "topic", "wanted", "found", "id")
    for topic in report["topics"]:
        found = topic["found"]
        shown.add_row(
            tick(topic["as_agreed"]),
            escape(topic["topic"]),
            _described(topic["wanted"]),
            "-" if found is None else _described(found),
            "-" if found is None else found["topic_id"],
        )
    console.print(shown)
    for topic in report["topics"]:
        for difference in topic["differences"]:
            sentence = f"topic {topic['topic']!r} {difference}"
            console.print(f"[red]differs[/]  {escape(sentence)}", soft_wrap=True)
            console.print(f"[dim]try[/]      {escape(difference.remedy)}", soft_wrap=True)


def _described(topic: WantedTopic | FoundTopic) -> str:
    from admitone.core.durations import format_duration

    partitions = f"{number(topic['partitions'])} partitions"
    if "replication" not in topic:
        return partitions
    retention = topic["retention_ms"]
    kept = "for good" if retention is None else format_duration(retention)
    return f"{partitions}, replication {topic['replication']}, {kept}, {topic['cleanup_policy']}"
