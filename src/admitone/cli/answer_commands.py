"""`top`, `item`, `trend`, `windows`: heavy hitters with their bounds; `recompute`: count them again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from admitone.cli.output import Home, Json, err, escape, number, out, present, stores_at, table

if TYPE_CHECKING:
    from admitone.analytics.recompute.rebuild import Recomputed
    from admitone.results.documents import (
        ItemAnswer,
        ItemHistory,
        TopAnswer,
        TotalsOfList,
        TrendAnswer,
        WindowLines,
    )

Window = Annotated[
    str, typer.Option("--window", help="A window key, or the newest 1m, 1h, 1d, 1w, 1mo, all.")
]

Dimension = Annotated[str, typer.Option("--dimension", help="The list, such as url.")]
Where = Annotated[str | None, typer.Option("--where", metavar="ATTRIBUTE=VALUE")]
Count = Annotated[int | None, typer.Option("-k", min=1, help="How many items.")]

_BAR = 24


def top(
    dimension: Dimension,
    window: Window = "1h",
    where: Where = None,
    k: Count = None,
    proof: Annotated[
        Path | None,
        typer.Option(
            help="Also write the answer with its sketches and a recount of the archive to a file.",
            metavar="FILE",
        ),
    ] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the heaviest items, with bounds."""
    if proof is not None:
        _write_proof(proof, home, dimension, window, where, k)
    with closing(stores_at(home).answers) as answers:
        present(answers.top(dimension, window, where, k), as_json, print_top)


def _write_proof(
    file: Path, home: Path | None, dimension: str, window: str, where: str | None, k: int | None
) -> None:
    import orjson

    from admitone.ops.answer_proof import answer_proof, refuse_outside

    with err().status("counting the archive"):
        found = answer_proof(stores_at(home), dimension, window, where, k)
    file.write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2))
    refuse_outside(found)
    counted = f"{found['recounted_total']:,} counted again from the archive"
    err().print(f"{counted}: every item lies within its bounds; written to {file}", soft_wrap=True)


def item(
    item_type: Annotated[str, typer.Argument(metavar="TYPE", help="The item's type, such as url.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The item.")],
    window: Window = "1h",
    first: Annotated[str | None, typer.Option("--from", help="The first window.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last window.")] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show one item's estimate with bounds, or its history from one window to another."""
    with closing(stores_at(home).answers) as answers:
        document = answers.item_or_history(item_type, key, window, first, last)
    present(document, as_json, lambda _: print_item(item_type, key, document))


def trend(
    dimension: Dimension,
    window: Window = "1h",
    where: Where = None,
    k: Count = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show what rose since the window before, what certainly rose most first."""
    with closing(stores_at(home).answers) as answers:
        present(answers.trend(dimension, window, where, k), as_json, print_trend)


def windows(
    dimension: Annotated[
        str | None, typer.Option("--dimension", help="Show what this list amounts to.")
    ] = None,
    where: Where = None,
    size: Annotated[
        str | None, typer.Option("--size", help="Only 1m, 1h, 1d, 1w, 1mo or all.")
    ] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show which windows there are, and with --dimension what is in them."""
    if dimension is None and where:
        raise typer.BadParameter("--where needs --dimension")
    with closing(stores_at(home).answers) as answers:
        document = answers.windows(dimension, where, size)
    present(document, as_json, print_windows if dimension is None else print_totals)


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
    from admitone.ops import recompute as ops

    with err().status("counting") as progress:
        found = ops.recompute(
            stores_at(home),
            from_archive=from_archive,
            accept=accept,
            report=lambda what, records: progress.update(f"{what}, {number(records)} records"),
        )
    present(ops.document_of(found), as_json, lambda _: print_recomputed(found))
    if not found.switched:
        raise typer.Exit(7)


def print_top(answer: TopAnswer) -> None:
    """Print the heaviest items for a person."""
    name = answer["dimension"] + (f" where {answer['where']}" if answer["where"] else "")
    shown = table(
        *("#", answer["item_type"] or "item", "#estimate", "#between", "#share", ""),
        title=escape(f"{name} · {answer['window']}"),
    )
    heaviest = max((line["estimate"] for line in answer["items"]), default=1)
    for line in answer["items"]:
        shown.add_row(
            str(line["rank"]),
            escape(line["item"]),
            number(line["estimate"]),
            _between(line["lower"], line["upper"]),
            f"{100 * line['estimate'] / answer['total']:.2f} %",
            _bar(line["lower"], line["upper"], heaviest),
        )
    console = out()
    console.print(shown)
    console.print(_summary(answer), style="dim", markup=False)


def print_item(item_type: str, key: str, document: ItemAnswer | ItemHistory) -> None:
    """Print one item in one or more windows for a person."""
    found = cast("list[ItemAnswer]", document.get("windows", [document]))
    shown = table(
        *("window", "#estimate", "#between", "#of", "complete", ""),
        title=escape(f"{item_type} {key}"),
    )
    heaviest = max((answer["estimate"] for answer in found), default=1)
    for answer in found:
        shown.add_row(
            answer["window"],
            number(answer["estimate"]),
            _between(answer["lower"], answer["upper"]),
            number(answer["total"]),
            _yes(answer["complete"]),
            _bar(answer["lower"], answer["upper"], heaviest),
        )
    console = out()
    console.print(shown)
    if found:
        console.print(f"{found[-1]['window']}: {_summary(found[-1])}", style="dim", markup=False)


def print_trend(answer: TrendAnswer) -> None:
    """Print what rose for a person."""
    name = answer["dimension"] + (f" where {answer['where']}" if answer["where"] else "")
    shown = table(
        *("#", answer["item_type"] or "item", "#rose by", "#between", "#before", "#now"),
        title=escape(f"{name} · {answer['previous']} to {answer['window']}"),
    )
    for line in answer["items"]:
        shown.add_row(
            str(line["rank"]),
            escape(line["item"]),
            number(line["change"]),
            _between(line["lower"], line["upper"]),
            number(line["before"]),
            number(line["now"]),
        )
    console = out()
    console.print(shown)
    before = "complete" if answer["previous_complete"] else "still open"
    console.print(
        f"before: {number(answer['previous_total'])} counted · {before}", style="dim", markup=False
    )
    console.print(f"now:    {_summary(answer)}", style="dim", markup=False)


def print_windows(found: WindowLines) -> None:
    """Print windows for a person."""
    shown = table("window", "start", "end", "complete", "kept in")
    for line in found["windows"]:
        start, end = _to_minute(line["start"]), _to_minute(line["end"])
        shown.add_row(line["window"], start, end, _yes(line["complete"]), line["kept_in"])
    out().print(shown)


def print_totals(found: TotalsOfList) -> None:
    """Print windows with what is in them for a person."""
    shown = table(
        *("window", "#counted", "#different", "#late", "#error", "complete", "kept in", "as of")
    )
    for line in found["windows"]:
        shown.add_row(
            line["window"],
            number(line["total"]),
            number(line["distinct"]),
            number(line["late"]),
            f"{line['error_bound']:g} %",
            _yes(line["complete"]),
            line["kept_in"],
            line["updated_at"] or "",
        )
    out().print(shown)


def print_recomputed(found: Recomputed) -> None:
    """Print what was counted again for a person."""
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


def _summary(answer: TopAnswer | TrendAnswer | ItemAnswer) -> str:
    parameters = answer["parameters"]
    parts = [
        f"{number(answer['total'])} counted",
        f"{number(answer['distinct'])} different",
        *([f"{number(answer['late'])} late"] if answer["late"] else []),
        "complete" if answer["complete"] else "still open",
        f"error at most {answer['error_bound']:g} % of the total",
        *(["counters saturated"] if parameters["saturated"] else []),
        *(["from the history"] if answer["source"]["kept_in"] == "history" else []),
        f"Count-Min {parameters['width']} x {parameters['depth']}, K = {parameters['k']}",
        f"as of {answer['updated_at']}",
    ]
    return " · ".join(parts)


def _to_minute(moment: str | None) -> str:
    return "" if moment is None else moment[:16].replace("T", " ")


def _yes(fact: bool) -> str:
    return "yes" if fact else "no"


def _between(lower: int, upper: int) -> str:
    return "exact" if lower == upper else f"{number(lower)} – {number(upper)}"


def _bar(lower: int, upper: int, heaviest: int) -> str:
    """Return a bar whose solid part is certain and whose light part is not."""
    certain = round(_BAR * lower / max(heaviest, 1))
    possible = round(_BAR * upper / max(heaviest, 1))
    return "█" * certain + "░" * (possible - certain)
