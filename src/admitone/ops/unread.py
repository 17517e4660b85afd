"""Deliveries of a run that lie on the raw log and are not decided yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson
import pyarrow as pa

from admitone.core.errors import NotFound, RunIsRed
from admitone.core.wire import NAMING_HEADERS, Header, naming_headers, said_outside
from admitone.ledger.port import LedgerReader
from admitone.ops.stores import Stores
from admitone.transport.port import Topic, Transport

_LOOKED_AT: Final = 200_000
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Unread:
    """What lies behind the marks."""

    of_run: int
    others: int
    not_looked_at: int
    """Offsets beyond those that were looked at: each may hold a delivery of the run."""

    @property
    def any(self) -> bool:
        """Tell whether something may still come to the run."""
        return bool(self.of_run or self.not_looked_at)

    def __str__(self) -> str:
        """Return what is said of it to an operator."""
        more = f", and up to {self.not_looked_at:,} not looked at" if self.not_looked_at else ""
        return f"{self.of_run:,} of its deliveries lie unread on the raw log{more}"


def unread(stores: Stores, run_id: str) -> Unread:
    """Look at the raw log behind the marks of the boundary."""
    of_run = others = left = 0
    for topic, partition, start, end in _behind(stores):
        room = max(_LOOKED_AT - of_run - others, 0)
        for batch in stores.transport.read(topic, partition, start, min(start + room, end)):
            found = sum(_runs(batch, stores.settings.pipeline.run_id, run_id))
            of_run, others = of_run + found, others + batch.num_rows - found
        left += max(end - start - room, 0)
    return Unread(of_run, others, left)


def wait_until_read(
    stores: Stores, run_id: str, patience_s: float, tell: Callable[[str], None]
) -> None:
    """Wait until everything that is on the raw log now is decided; raise where that takes too long."""
    ends = {(topic.topic_id, partition): end for topic, partition, _, end in _behind(stores)}
    deadline = time.monotonic() + patience_s
    while True:
        left = sum(
            max(ends.get((topic.topic_id, partition), start) - start, 0)
            for topic, partition, start, _ in _behind(stores)
        )
        if not left:
            return
        tell(f"waiting for {left:,} undecided deliveries")
        if time.monotonic() >= deadline:
            raise RunIsRed(
                f"Run {run_id!r} stays open: {left:,} offsets of the raw log are still undecided after"
                f" {patience_s:g} s.",
                "start the pipeline, admitone run, or wait longer with --patience",
            )
        time.sleep(_PAUSE_S)


def _behind(stores: Stores) -> Iterator[tuple[Topic, int, int, int]]:
    """Yield each partition of the raw topic that was not read to its end: from where to where."""
    transport: Transport = stores.transport
    ledger: LedgerReader = stores.ledger
    try:
        topic = transport.topic(stores.settings.transport.raw_topic)
    except NotFound:
        return
    reached = {
        info.source.partition: info.next_offset
        for info in ledger.sources()
        if info.topic_id == topic.topic_id and info.pipeline == stores.settings.pipeline.name
    }
    starts, ends = transport.starts(topic), transport.ends(topic, readable=True)
    for partition, (first, end) in enumerate(zip(starts, ends, strict=True)):
        start = max(reached.get(partition) or first, first)
        start = transport.next_record(topic, partition, start, end)
        if start < end:
            yield topic, partition, start, end


def _runs(batch: pa.RecordBatch, default_run: str, run_id: str) -> Iterator[bool]:
    """Yield of each delivery whether it names this run, as the boundary would read it."""
    outside = naming_headers(batch.column("headers"))
    for row, value in enumerate(batch.column("value").to_pylist()):
        said = said_outside(outside.get(row, {}), default_run)
        try:
            named = orjson.loads(value or b"")["metadata"].get(Header.RUN_ID, said[Header.RUN_ID])
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            named = said.get(NAMING_HEADERS[0])
        yield named == run_id
