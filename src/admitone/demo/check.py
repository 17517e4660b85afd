"""Compares what a pipeline made of its traffic with what the traffic deserved, by the eyes of a user.

What is compared: the documents that commands print, the records on the log, the evidence files, and the answers.
Headers and columns are spelled here a second time on purpose: a check must not share mistakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import admitone
from admitone.demo.traffic import Truth
from admitone.demo.traffic.window_keys import window_span

Row = Mapping[str, Any]
_SIZES = ("minute", "hour", "day", "week", "month", "global")
_DAY_MS = 86_400_000


class Compared(NamedTuple):
    """How much was compared, and one sentence for each difference."""

    decisions: int
    answers: int
    bounds: int
    problems: list[str]


def check(
    settings: admitone.Settings, truth: Truth, rows: Sequence[Row], books: Mapping[str, Any]
) -> Compared:
    """Compare `decisions --jsonl`, `books --json`, the log and every answer with the truth."""
    problems = [
        *truth.check_decisions(rows),
        *truth.check_books(books),
        *check_log(admitone.open_transport(settings), settings, rows),
    ]
    answers = admitone.open_answers(settings)
    compared = bounds = 0
    for name in truth.lists:
        dimension, _, where = name.partition("|")
        for window in (window for size in _SIZES for window in kept_windows(truth, name, size)):
            try:
                answer = answers.top(dimension, window, where or None)
            except admitone.NotFound as missing:
                problems.append(f"{window} {name}: {missing.problem}")
                continue
            compared += 1
            bounds += len(answer["items"])
            problems += truth.check_top(answer)
    answers.close()
    return Compared(len(rows), compared, bounds, problems)


def kept_windows(truth: Truth, name: str, size: str) -> list[str]:
    """Return a list's windows without the minutes that late events fell into: minutes are not kept that long."""
    windows = truth.windows(name, size)
    if size != "minute":
        return windows
    newest = max(max(minutes, default=0) for minutes in truth.counts.values())
    return [window for window in windows if window_span(window)[0] > newest - _DAY_MS]


def check_log(
    transport: admitone.Transport, settings: admitone.Settings, rows: Iterable[Row]
) -> list[str]:
    """Compare the admitted topics with the pinned admissions, record by record."""
    topics = [*(entry.topic for entry in settings.topics), settings.dedup.destination]
    pinned = {_place(row["bus"]): row for row in rows if row["bus"] is not None}
    problems = []
    for name, state in transport.describe(topics).items():
        for partition, end in enumerate(transport.ends(state.topic)):
            for batch in transport.read(state.topic, partition, 0, end):
                for offset, identity, positions in _records(batch):
                    place = (name, partition, offset)
                    if identity is None and not positions and place not in pinned:
                        continue  # Another producer wrote it: nothing about it is ours.
                    row = pinned.pop(place, {"identity": None, "source": None})
                    if identity != row["identity"] or row["source"] not in positions:
                        problems.append(
                            f"{place} holds {identity} from {positions}, pinned is"
                            f" {row['identity']} from {row['source']}"
                        )
    return problems + [f"{place} is pinned but not on the log" for place in pinned]


def _place(bus: Mapping[str, Any]) -> tuple[str, int, int]:
    return bus["topic"], bus["partition"], bus["offset"]


def _records(batch: pa.RecordBatch) -> Iterator[tuple[int, str | None, list[dict[str, int]]]]:
    """Yield the offset of each record, its identity, and where it says it comes from."""
    columns = (batch.column(name).to_pylist() for name in ("offset", "key", "headers"))
    for offset, key, headers in zip(*columns, strict=True):
        named = {header["key"]: header["value"] for header in headers}
        said = (named.get("position", key), named.get("origin"))
        found = [admitone.StreamMetadata.from_bytes(position) for position in said]
        identity = named.get("identity")
        yield (
            offset,
            identity.hex() if identity else None,
            [position._asdict() for position in found if position is not None],
        )


def check_evidence(folder: Path, rows: Iterable[Row]) -> list[str]:
    """Compare the files below an evidence folder with the decisions: one row for each that calls for one."""
    expected: dict[str, list[tuple[Any, ...]]] = {"receipts": [], "archive": [], "quarantine": []}
    for row in rows:
        source = tuple(row["source"].values())
        if row["verdict"] == "ADMITTED":
            place = _place(row["bus"])
            expected["receipts"].append((*source, *place, row["identity"], row["payload_hash"]))
            expected["archive"].append((*source, *place, row["event_id"]))
        elif row["verdict"] == "QUARANTINED":
            expected["quarantine"].append((*source, row["reason"], row["event_id"]))
    source_columns = ["source_producer", "source_partition", "source_offset"]
    bus_columns = ["bus_topic", "bus_partition", "bus_offset"]
    columns = {
        "receipts": [*source_columns, *bus_columns, "identity", "payload_hash"],
        "archive": [*source_columns, *bus_columns, "event_id"],
        "quarantine": [*source_columns, "reason", "event_id"],
    }
    problems = []
    for kind, called_for in expected.items():
        wanted, found = Counter(called_for), Counter(_stored(folder, kind, columns[kind]))
        problems += [f"{kind}: no row {row}" for row in wanted - found]
        problems += [f"{kind}: unexpected row {row}" for row in found - wanted]
    return problems


def _stored(folder: Path, kind: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    for file in folder.glob(f"runs/*/{kind}/*.parquet"):
        table = pq.read_table(file, columns=columns)
        for values in zip(*(table[name].to_pylist() for name in columns), strict=True):
            yield tuple(value.hex() if isinstance(value, bytes) else value for value in values)
