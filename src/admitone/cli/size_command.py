"""`size`: what a load needs on disk, on the network and in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from admitone.cli.output import Home, Json, number, out, present, settings_at, table

if TYPE_CHECKING:
    from admitone.core.sizing import Load, Size
    from admitone.settings import Settings

_STEPS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def size(
    profile: Annotated[
        str | None, typer.Option(help="Begin with a documented load: repeating or unique.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Events a second (default 1000).")] = None,
    retention: Annotated[str | None, typer.Option(help="How long keys are kept: 100d.")] = None,
    duplicates: Annotated[
        float | None, typer.Option(help="Share of events whose key came before (default 0).")
    ] = None,
    key_bytes: Annotated[int | None, typer.Option(help="Event id (default 36).")] = None,
    value_bytes: Annotated[int | None, typer.Option(help="Envelope (default 475).")] = None,
    replication: Annotated[int | None, typer.Option(help="Copies of the log.")] = None,
    standbys: Annotated[
        int | None, typer.Option(help="Standbys that follow log and ledger (default 0).")
    ] = None,
    readers: Annotated[int | None, typer.Option(help="Readers of the log (default 1).")] = None,
    log_retention: Annotated[
        str | None, typer.Option(help="How long the log keeps records.")
    ] = None,
    archive_share: Annotated[
        float | None,
        typer.Option(help="What compression leaves of an envelope (default: measured)."),
    ] = None,
    store: Annotated[str | None, typer.Option(help="sqlite or postgresql.")] = None,
    trigger: Annotated[str | None, typer.Option(help="Interval of batches.")] = None,
    *,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Tell how large it gets; what is not given is taken from the configuration, and else from the model."""
    from admitone.core.sizing import size_of

    try:
        load = _load(
            settings_at(home),
            profile,
            rate=rate,
            retention_ms=_ms("--retention", retention),
            duplicates=duplicates,
            key_bytes=key_bytes,
            value_bytes=value_bytes,
            replication=replication,
            standbys=standbys,
            readers=readers,
            log_retention_ms=_ms("--log-retention", log_retention),
            archive_share=archive_share,
            store=store,
            trigger_ms=_ms("--trigger", trigger),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    found = size_of(load)
    present(found, as_json, print_size)


def print_size(found: Size) -> None:
    """Print what a load needs for a person."""
    shown = table("", "what", "#size", "why")
    for group, lines in _groups(found).items():
        for position, line in enumerate(lines):
            shown.add_row(group if position == 0 else "", *line)
        shown.add_section()
    console = out()
    console.print(shown)
    console.print(
        f"measured by {found.model.measured_by}; bytes are decimal, logs before compression",
        style="dim",
    )


def _load(settings: Settings, profile: str | None, **given: Any) -> Load:
    from admitone.core.sizing import ARCHIVE_SHARE, POSTGRESQL, PROFILES, SQLITE, Load

    if profile is None:
        base = Load(
            retention_ms=settings.dedup.retention,
            replication=settings.transport.raw_replication,
            partitions=settings.transport.raw_partitions,
            log_retention_ms=settings.transport.raw_retention,
            journal_retention_ms=settings.evidence.journal_retention,
            archive_share=ARCHIVE_SHARE if settings.evidence.archive else 0.0,
            store=POSTGRESQL if settings.ledger.url.startswith("postgres") else SQLITE,
        )
    elif profile in PROFILES:
        base = PROFILES[profile]
    else:
        raise ValueError(f"profile: expected {' or '.join(PROFILES)}, got {profile!r}")
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def _ms(name: str, text: str | None) -> int | None:
    from admitone.core.durations import parse_duration_ms

    try:
        return None if text is None else parse_duration_ms(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _groups(found: Size) -> dict[str, list[tuple[str, str, str]]]:
    from admitone.core.durations import format_duration
    from admitone.core.sizing import COSTS

    load, cost = found.load, COSTS[found.load.store]
    window = format_duration(load.retention_ms)
    standbys = f"with {load.standbys} standby{'s' if load.standbys != 1 else ''}"
    copies = (
        f"x ({load.replication} + {load.standbys} + {load.readers}): replication, standbys, readers"
    )
    kept_log = f"{format_duration(load.log_retention_ms)}, copies: {load.replication}"
    ledger, evidence, network = found.ledger, found.evidence, found.network
    return {
        "events": [
            ("a day", number(found.events.per_day), f"{load.rate:,g} a second"),
            ("in the window", number(found.events.in_window), window),
        ],
        "keys": [
            ("a day", number(found.keys.per_day), f"duplicates: {load.duplicates:.4g}"),
            ("in the window", number(found.keys.in_window), "only the first of a key is stored"),
            ("in a segment", number(found.keys.in_segment), ""),
            ("at peak", number(found.keys.at_peak), "before the oldest segment is dropped"),
        ],
        "segments": [
            ("interval", format_duration(found.segments.interval_ms), "half the window, at least 1m"),
            ("live at peak", str(found.segments.live_at_peak), format_duration(found.segments.span_ms)),
        ],
        "ledger": [
            ("keys at peak", _bytes(ledger.keys), f"{cost.key:.1f} bytes a key in {load.store}"),
            ("columns a day", _bytes(ledger.columns_per_day), "every delivery's decision; kept for good"),
            (f"columns in {window}", _bytes(ledger.columns), ""),
            ("journal", _bytes(ledger.journal), format_duration(load.journal_retention_ms)),
            ("together", _bytes(ledger.total), "keys at peak, columns of the window, journal"),
            ("in all", _bytes(ledger.with_standbys), standbys),
        ],
        "evidence": [
            ("receipts a day", _bytes(evidence.receipts_per_day), "kept for good"),
            (f"receipts in {window}", _bytes(evidence.receipts), ""),
            ("archive a day", _bytes(evidence.archive_per_day), f"{load.archive_share:.0%} of an envelope is left"),
            (f"archive in {window}", _bytes(evidence.archive), ""),
        ],
        "broker disk": [
            ("raw log", _bytes(found.broker.raw), kept_log),
            ("admitted log", _bytes(found.broker.admitted), kept_log),
            ("together", _bytes(found.broker.total), ""),
        ],
        "network": [
            ("ingest", _bytes(network.ingest, "/s"), f"{load.key_bytes} + {load.value_bytes} bytes an event"),
            ("raw log", _bytes(network.raw, "/s"), copies),
            ("admitted log", _bytes(network.admitted, "/s"), copies),
            ("ledger", _bytes(network.ledger_to_standbys, "/s"), "stored keys and columns, to its standbys"),
            ("together", _bytes(network.total, "/s"), ""),
        ],
        "memory": [
            ("pipeline", _bytes(found.memory.pipeline), "driver, JVM and workers"),
            ("ledger", _bytes(found.memory.key_index), "keys of the open segment, to claim at full speed"),
            ("reads", f"{number(found.memory.reads_per_second)}/s", "from disk, if nothing of it is in memory"),
        ],
        "trigger": [
            ("recommended", format_duration(found.trigger.recommended_ms), "a block's fixed part is at most a tenth"),
            ("used here", format_duration(found.trigger.used_ms), f"blocks of {number(found.trigger.block)}"),
        ],
        "model error": [
            (
                f"{each.what}, {each.store}",
                f"{each.lowest:+.1%} to {each.highest:+.1%}",
                "against the measurement",
            )
            for each in found.model.errors
        ],
    }  # fmt: skip


def _bytes(amount: float, unit: str = "") -> str:
    step = 0
    while amount >= 999.5 and step < len(_STEPS) - 1:
        amount, step = amount / 1000, step + 1
    return f"{amount:,.3g} {_STEPS[step]}{unit}"
