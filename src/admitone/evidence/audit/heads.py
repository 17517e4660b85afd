"""Second places for the heads of closings: what lies there does not change with the ledger.

Each place holds a line of JSON for every closing, in their order. A place that missed some is told them with the next.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, NamedTuple

import fsspec
import orjson
import pyarrow as pa

from admitone.core.errors import AdmitoneError
from admitone.ledger.model import ChainedClosing
from admitone.settings import Settings
from admitone.transport.port import OUTGOING_SCHEMA, Transport

_TOPIC: Final = "topic:"
_PRODUCER: Final = "admitone-heads"


class Head(NamedTuple):
    """The number of a closing, and the hash that names it."""

    number: int
    head: str


def tell_heads(
    settings: Settings, transport: Transport, chain: Sequence[ChainedClosing]
) -> list[str]:
    """Write to every second place the heads it does not have; return which could not be told, and why."""
    untold = []
    for place in settings.closing.heads:
        try:
            known = {head.number for head in heads_at(settings, transport, place)}
            missing = [closing for closing in chain if closing.number not in known]
            if missing:
                _append(settings, transport, place, missing)
        except (AdmitoneError, OSError, ValueError) as error:
            untold.append(f"{place}: {error}")
    return untold


def heads_at(settings: Settings, transport: Transport, place: str) -> list[Head]:
    """Return the heads that a second place holds."""
    if place.startswith(_TOPIC):
        topic = transport.topic(place.removeprefix(_TOPIC))
        start, end = transport.starts(topic)[0], transport.ends(topic, readable=True)[0]
        batches = transport.read(topic, 0, start, end)
        lines = [value for batch in batches for value in batch.column("value").to_pylist()]
    else:
        lines = _text(settings, place).splitlines()
    found = [orjson.loads(line) for line in lines if line]
    return [Head(int(line["number"]), str(line["head"])) for line in found]


def _append(
    settings: Settings, transport: Transport, place: str, missing: Sequence[ChainedClosing]
) -> None:
    lines = [
        orjson.dumps({"number": each.number, "head": each.head.hex(), "run_id": each.run_id})
        for each in missing
    ]
    if place.startswith(_TOPIC):
        epoch = transport.init_producer(_PRODUCER)
        columns = [[0] * len(lines), [None] * len(lines), lines, [[]] * len(lines)]
        records = pa.table(
            [pa.array(c, f.type) for c, f in zip(columns, OUTGOING_SCHEMA, strict=True)],
            schema=OUTGOING_SCHEMA,
        )
        transport.append(_PRODUCER, epoch, {place.removeprefix(_TOPIC): records})
        return
    data = b"".join(line + b"\n" for line in lines)
    if "://" in place:
        before = _text(settings, place)
        with fsspec.open(place, "wb", **settings.evidence.options) as file:
            file.write(before + data)
        return
    path = settings.resolve(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _text(settings: Settings, place: str) -> bytes:
    try:
        if "://" in place:
            with fsspec.open(place, "rb", **settings.evidence.options) as file:
                return bytes(file.read())
        return settings.resolve(place).read_bytes()
    except FileNotFoundError:
        return b""
