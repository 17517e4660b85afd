"""Appending lines of JSON to the raw log."""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import orjson
import pyarrow as pa
from typing_extensions import TypedDict

from admitone.core.errors import NeedsFence
from admitone.core.wire import run_header
from admitone.transport.port import HEADERS_TYPE, OUTGOING_SCHEMA, Topic, Transport

_LINES_AT_ONCE = 50_000
_BYTES_AT_ONCE = 64 << 20


class IngestDocument(TypedDict):
    """How many deliveries an ingestion appended, and to which partitions."""

    topic: str
    deliveries: int
    blank_lines: int
    partitions: dict[str, int]


@dataclass(slots=True)
class Ingested:
    """What an ingestion appended, and where."""

    topic: str
    deliveries: int = 0
    blank: int = 0
    partitions: Counter[int] = field(default_factory=Counter)

    def document(self) -> IngestDocument:
        """Return it as the interface spells it."""
        return {
            "topic": self.topic,
            "deliveries": self.deliveries,
            "blank_lines": self.blank,
            "partitions": {str(number): n for number, n in sorted(self.partitions.items())},
        }


def ingest_lines(
    transport: Transport, topic: Topic, lines: Iterable[bytes], run_id: str | None = None
) -> Iterator[Ingested]:
    """Append every line as a delivery; yield the running total after each append.

    Deliveries of one event id go to one partition, so order within a file is order for an event. What a line is
    worth is for the boundary to decide: only blank lines are left out, and counted.
    """
    producer = f"ingest:{uuid.uuid4().hex}"
    epoch = transport.init_producer(producer)
    total = Ingested(topic.name)
    chunk: list[bytes] = []
    size = 0
    for raw in lines:
        line = raw.rstrip(b"\r\n")
        if not line.strip():
            total.blank += 1
            continue
        chunk.append(line)
        size += len(line)
        if len(chunk) >= _LINES_AT_ONCE or size >= _BYTES_AT_ONCE:
            epoch = _append(transport, topic, producer, epoch, chunk, run_id, total)
            yield total
            chunk, size = [], 0
    if chunk:
        _append(transport, topic, producer, epoch, chunk, run_id, total)
    yield total


def _append(
    transport: Transport,
    topic: Topic,
    producer: str,
    epoch: int,
    chunk: list[bytes],
    run_id: str | None,
    total: Ingested,
) -> int:
    """Append lines and count them; return the epoch to go on with."""
    partitions = [partition_of_line(line, topic.partitions) for line in chunk]
    table = pa.table(
        [
            pa.array(partitions, pa.int32()),
            pa.nulls(len(chunk), pa.binary()),
            pa.array(chunk, pa.binary()),
            pa.array([run_header(run_id)], HEADERS_TYPE).take(pa.array([0] * len(chunk))),
        ],
        schema=OUTGOING_SCHEMA,
    )
    while True:
        try:
            transport.append(producer, epoch, {topic.name: table})
            break
        except NeedsFence:
            # Nobody else has this name.
            epoch = transport.init_producer(producer)
    total.deliveries += len(chunk)
    total.partitions.update(partitions)
    return epoch


def partition_of_line(line: bytes, partitions: int) -> int:
    """Return the partition of the line's event id, or of its bytes where there is none."""
    try:
        event_id = orjson.loads(line)["metadata"]["eventId"]
        key = event_id.encode()
    except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
        key = line
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") % partitions
