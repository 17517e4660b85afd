"""`top`, `item`, `trend`, `windows`: heavy hitters with their bounds, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from admitone.cli.output import Home, Json, number, out, print_json, settings_at, table

if TYPE_CHECKING:
    from pathlib import Path

    from admitone.results.port import (
        Answers,
        ItemAnswer,
        TopAnswer,
        TrendAnswer,
        WindowLine,
        WindowTotals,
    )

Window = Annotated[
    str, typer.Option("--window", help="A window key, or the newest 1m, 1h, 1d, 1w, 1mo, all.")
]

Dimension = Annotated[str, typer.Option("--dimension", help="The list, such as url.")]
Where = Annotated[
    str | None, typer.Option("--where", metavar="ATTRIBUTE=VALUE", show_default=False)
]
Count = Annotated[int | None, typer.Option("-k", min=1, help="How many items.", show_default=False)]

_BAR = 24


def top(
    dimension: Dimension,
    window: Window = "1h",
    where: Where = None,
    k: Count = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the heaviest items, with bounds."""
    with _answers(home) as answers:
        answer = answers.top(dimension, window, where, k)
    if as_json:
        print_json(answer)
    else:
        print_top(answer)


def item(
    item_type: Annotated[str, typer.Argument(metavar="TYPE", help="The item's type, such as url.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The item.")],
    window: Window = "1h",
    first: Annotated[
        str | None, typer.Option("--from", help="The first window.", show_default=False)
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="The last window.", show_default=False)
    ] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show one item's estimate with bounds, or its history from one window to another."""
    one_window = first is None and last is None
    with _answers(home) as answers:
        if one_window:
            found = [answers.item(item_type, key, window)]
        else:
            found = answers.history(item_type, key, first, last)
    if as_json:
        print_json(found[0] if one_window else {"windows": found})
    else:
        print_item(item_type, key, found)


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
    with _answers(home) as answers:
        answer = answers.trend(dimension, window, where, k)
    if as_json:
        print_json(answer)
    else:
        print_trend(answer)


def windows(
    dimension: Annotated[
        str | None,
        typer.Option("--dimension", help="Show what this list amounts to.", show_default=False),
    ] = None,
    where: Where = None,
    size: Annotated[
        str | None,
        typer.Option("--size", help="Only 1m, 1h, 1d, 1w, 1mo or all.", show_default=False),
    ] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show which windows there are, and with --dimension what is in them."""
    if dimension is None and (where or size):
        raise typer.BadParameter("--where and --size need --dimension")
    with _answers(home) as answers:
        if dimension is None:
            found = answers.windows()
            if as_json:
                print_json({"windows": found})
            else:
                print_windows(found)
            return
        totals = answers.window_totals(dimension, where, size)
    if as_json:
        print_json({"dimension": dimension, "where": where, "windows": totals})
    else:
        print_totals(totals)


def print_top(answer: TopAnswer) -> None:
    """Print the heaviest items for a person."""
    from rich.markup import escape

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


def print_item(item_type: str, key: str, found: list[ItemAnswer]) -> None:
    """Print one item in one or more windows for a person."""
    from rich.markup import escape

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
    from rich.markup import escape

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


def print_windows(found: list[WindowLine]) -> None:
    """Print windows for a person."""
    shown = table("window", "start", "end", "complete", "kept in")
    for line in found:
        start, end = _to_minute(line["start"]), _to_minute(line["end"])
        shown.add_row(line["window"], start, end, _yes(line["complete"]), line["kept_in"])
    out().print(shown)


def print_totals(found: list[WindowTotals]) -> None:
    """Print windows with what is in them for a person."""
    shown = table(
        *("window", "#counted", "#different", "#late", "#error", "complete", "kept in", "as of")
    )
    for line in found:
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


@contextmanager
def _answers(home: Path | None) -> Iterator[Answers]:
    from admitone.analytics.answers import open_answers

    answers = open_answers(settings_at(home))
    try:
        yield answers
    finally:
        answers.close()


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
