"""`quarantine`: what was not admitted, with its original bytes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admitone.cli.ledger import decided, print_decisions
from admitone.cli.output import (
    Home,
    Json,
    JsonLines,
    Run,
    err,
    out,
    print_json,
    print_lines,
    settings_at,
    table,
)
from admitone.core.decisions import Reason, Verdict

if TYPE_CHECKING:
    from admitone.settings import Settings

app = typer.Typer(
    help="What was not admitted, and why.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("list")
def list_quarantined(
    run: Run = None,
    reason: Annotated[
        Reason | None, typer.Option(help="Only this reason.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most this many.", min=1, show_default=False)
    ] = None,
    home: Home = None,
    as_json: Json = False,
    as_lines: JsonLines = False,
) -> None:
    """List quarantined deliveries."""
    from rich.markup import escape

    from admitone.ledger.port import Filter

    rows = islice(
        decided(settings_at(home), Filter(run_id=run, verdict=Verdict.QUARANTINED, reason=reason)),
        limit,
    )
    if as_lines:
        print_lines(rows)
        return
    if as_json:
        print_json({"quarantined": list(rows)})
        return
    listed = list(islice(rows, 51))
    if not listed:
        err().print("nothing is in quarantine")
        return
    shown = table("id", "run", "event", "class", "reason", "source", "first", "decided at")
    for row in listed[:50]:
        first = row["first"]
        shown.add_row(
            row["id"],
            escape(row["run_id"]),
            escape(row["event_id"] or "-"),
            escape(row["event_class"] or "-"),
            row["reason"],
            f"{row['source']['partition']}:{row['source']['offset']}",
            f"{first['partition']}:{first['offset']}" if first else "-",
            row["decided_at"],
        )
    out().print(shown)
    if len(listed) > 50:
        err().print("the first 50; --jsonl lists all, admitone quarantine show ID shows one")


@app.command("show")
def show(
    record: Annotated[str, typer.Argument(metavar="ID", help="The id that list shows.")],
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show one quarantined delivery with its original bytes and the first admission it contradicts."""
    settings = settings_at(home)
    row, value, first_row, first_value = _load(settings, record)
    if as_json:
        print_json(
            {
                **row,
                "envelope": _text(value),
                "first_decision": first_row,
                "first_envelope": _text(first_value),
            }
        )
        return
    print_decisions([row])
    console = out()
    console.print("[bold]delivered[/]")
    console.print(_text(value) or "(no longer kept)", markup=False, soft_wrap=True)
    if first_row is not None:
        console.print("\n[bold]admitted first[/]")
        console.print(_text(first_value) or "(no longer kept)", markup=False, soft_wrap=True)


def _load(
    settings: Settings, record: str
) -> tuple[dict[str, Any], bytes | None, dict[str, Any] | None, bytes | None]:
    from admitone.core.errors import NotFound
    from admitone.evidence.originals import original
    from admitone.ledger.open import open_ledger
    from admitone.ledger.port import Filter

    unknown = NotFound(f"There is no quarantined delivery {record!r}.", "admitone quarantine list")
    block_text, _, ordinal_text = record.partition("-")
    if not (block_text.isdecimal() and ordinal_text.isdecimal()):
        raise unknown
    ledger = open_ledger(settings)
    folder = settings.resolve(settings.evidence.path)
    found = next(
        (
            row
            for row in decided(settings, Filter(verdict=Verdict.QUARANTINED))
            if row["id"] == record
        ),
        None,
    )
    if found is None:
        raise unknown
    value = original(ledger, folder, int(block_text), int(ordinal_text))
    if found["first"] is None:
        return found, value, None, None
    first = found["first"]
    wanted = Filter(source=(first["producer_id"], first["partition"], first["offset"]))
    first_row = next(decided(settings, wanted))
    first_block, _, first_ordinal = first_row["id"].partition("-")
    return found, value, first_row, original(ledger, folder, int(first_block), int(first_ordinal))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="backslashreplace")
