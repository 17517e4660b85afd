"""What was decided and why, as rows a person or a program can read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.decisions import (
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    REASON_CODES,
    VERDICT_CODES,
    Reason,
    Verdict,
)
from admitone.core.replay import StreamMetadata
from admitone.ledger.port import Block, LedgerReader
from admitone.ledger.positions import Positions

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which decisions are wanted; None means any."""

    run_id: str | None = None
    verdict: Verdict | None = None
    reason: Reason | None = None
    event_id: str | None = None
    event_class: str | None = None
    identity: bytes | None = None
    source: tuple[int | None, int, int] | None = None
    bus: tuple[str, int, int] | None = None
    since: int | None = None
    until: int | None = None

    def skips(self, block: Block) -> bool:
        """Tell whether no delivery of a block can be wanted, from its row alone."""
        if self.run_id is not None and self.run_id not in block.runs:
            return True
        decided = block.decided_at or 0
        if self.since is not None and decided < self.since:
            return True
        if self.until is not None and decided > self.until:
            return True
        if self.bus is not None and self.bus[0] not in {d.topic for d in block.destinations}:
            return True
        if self.source is None:
            return False
        producer, partition, offset = self.source
        return (
            (producer is not None and producer != block.source.producer_id)
            or partition != block.source.partition
            or not block.first_offset <= offset <= block.last_offset
        )

    def matches(
        self, block: Block, facts: pa.Table, verdicts: pa.Table, bus: pa.Table | None
    ) -> np.ndarray:
        """Return the ordinals of a block that are wanted."""
        wanted = np.ones(facts.num_rows, dtype=bool)

        def narrow(column: pa.ChunkedArray, value: Any) -> None:
            nonlocal wanted
            wanted &= np.asarray(pc.fill_null(pc.equal(column, value), False))

        if self.run_id is not None:
            narrow(facts["run"].cast(pa.string()), self.run_id)
        if self.event_class is not None:
            narrow(facts["class"].cast(pa.string()), self.event_class)
        if self.verdict is not None:
            narrow(verdicts["verdict"], CODE_OF_VERDICT[self.verdict])
        if self.reason is not None:
            narrow(verdicts["reason"], CODE_OF_REASON[self.reason])
        if self.event_id is not None:
            narrow(facts["event_id"], self.event_id)
        if self.identity is not None:
            narrow(facts["identity"], pa.scalar(self.identity, pa.binary(32)))
        if self.source is not None:
            narrow(facts["offset"], self.source[2])
        if self.bus is not None:
            topic = [place.topic for place in block.destinations].index(self.bus[0])
            narrow(facts["route"], topic)
            narrow(facts["partition"], self.bus[1])
            narrow(
                bus["bus_offset"] if bus is not None else pa.nulls(len(wanted), pa.int64()),
                self.bus[2],
            )
        return np.flatnonzero(wanted)


def decisions(ledger: LedgerReader, wanted: Filter) -> Iterator[Row]:
    """Yield the wanted decisions in the order they were made."""
    positions = Positions(ledger)
    for block, facts, verdicts, bus in ledger.decided(wanted.skips):
        rows = wanted.matches(block, facts, verdicts, bus)
        if len(rows):
            yield from _rows(block, facts, verdicts, bus, rows, positions)


def _rows(
    block: Block,
    facts: pa.Table,
    verdicts: pa.Table,
    bus: pa.Table | None,
    rows: np.ndarray,
    positions: Positions,
) -> Iterator[Row]:
    chosen = pa.array(rows)
    offsets = bus["bus_offset"].take(chosen).to_pylist() if bus is not None else [None] * len(rows)
    decided_at = iso(block.decided_at)
    published_at = iso(block.published_at)
    for ordinal, fact, verdict, bus_offset in zip(
        rows.tolist(),
        facts.take(chosen).to_pylist(),
        verdicts.take(chosen).to_pylist(),
        offsets,
        strict=True,
    ):
        first = None
        if verdict["first_block"] is not None:
            first = source_document(positions.of(verdict["first_block"], verdict["first_ordinal"]))
        yield {
            "run_id": fact["run"],
            "event_class": fact["class"],
            "event_id": fact["event_id"],
            "verdict": str(VERDICT_CODES[verdict["verdict"]]),
            "reason": REASON_CODES[verdict["reason"]],
            "source": source_document(StreamMetadata(*block.source, fact["offset"])),
            "bus": None
            if bus_offset is None
            else {
                "topic": block.destinations[fact["route"]].topic,
                "partition": fact["partition"],
                "offset": bus_offset,
                "offset_kind": block.destinations[fact["route"]].offset_kind,
                "published_at": published_at,
            },
            "identity": fact["identity"].hex() if fact["identity"] else None,
            "payload_hash": fact["payload_hash"].hex() if fact["payload_hash"] else None,
            "first": first,
            "decided_at": decided_at,
            "id": f"{block.block_id}-{ordinal}",
        }


def source_document(position: StreamMetadata) -> dict[str, int]:
    """Return a source position as the documents spell it."""
    return position._asdict()


def iso(moment_ms: int | None) -> str | None:
    """Return a moment as ISO-8601 in UTC with milliseconds."""
    if moment_ms is None:
        return None
    text = datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
