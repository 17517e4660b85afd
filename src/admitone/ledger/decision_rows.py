"""What was decided and why, as rows a person or a program can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import TypedDict

from admitone.core.decisions import (
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    REASON_CODES,
    VERDICT_CODES,
    Action,
    Reason,
    Verdict,
)
from admitone.core.moments import iso
from admitone.core.wire import StreamMetadata
from admitone.ledger.model import Block, Decided, Filter, Source
from admitone.ledger.outcomes import disposed
from admitone.ledger.port import LedgerReader


class Positions:
    """Looks up where deliveries, named by block and ordinal, were read; remembers the blocks it read."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._block = lru_cache(maxsize=256)(self._read)

    def of(self, block_id: int, ordinal: int) -> StreamMetadata:
        """Return where the delivery was read."""
        source, offsets = self._block(block_id)
        return StreamMetadata(*source, int(offsets[ordinal]))

    def _read(self, block_id: int) -> tuple[Source, np.ndarray]:
        (block,) = self._ledger.blocks(ids=[block_id])
        facts, _, _ = self._ledger.columns(block_id)
        return block.source, facts["offset"].to_numpy()


class SourcePartition(TypedDict):
    """A partition of what a producer writes."""

    producer_id: int
    partition: int


class SourcePosition(SourcePartition):
    """Where a delivery came from."""

    offset: int


class BusPlace(TypedDict):
    """Where an admitted event is on the log."""

    topic: str
    partition: int
    offset: int
    offset_kind: str
    published_at: str | None


class ResolutionNote(TypedDict):
    """What was done later about a delivery."""

    action: Action
    at: str | None
    author: str
    reason: str


class Decision(TypedDict):
    """What was decided about one delivery, and why."""

    run_id: str
    event_class: str | None
    event_id: str | None
    verdict: Verdict
    reason: Reason | None
    source: SourcePosition
    bus: BusPlace | None
    identity: str | None
    payload_hash: str | None
    first: SourcePosition | None
    upstream: SourcePosition | None
    decided_at: str | None
    rules: str | None
    """The hash of the rules it was made under; decisions of older versions name none."""
    resolution: ResolutionNote | None
    id: str


class Decisions(TypedDict):
    """Decisions in the order they were made."""

    decisions: list[Decision]


def decisions(ledger: LedgerReader, wanted: Filter) -> Iterator[Decision]:
    """Yield the wanted decisions in the order they were made."""
    positions = Positions(ledger)
    for decided in ledger.decided(wanted):
        rows = _matching(wanted, decided)
        if len(rows):
            yield from _rows(decided, rows, positions, _later(ledger, decided.block))


def decisions_of(decided: Decided, positions: Positions) -> list[Decision]:
    """Return the decisions of one decided block, in the order of its deliveries."""
    return list(_rows(decided, np.arange(decided.facts.num_rows), positions, {}))


def in_quarantine(ledger: LedgerReader, wanted: Filter) -> dict[int, list[int]]:
    """Return the wanted deliveries that are in quarantine and nothing was done about, by block."""
    wanted = replace(wanted, verdict=Verdict.QUARANTINED)
    found: dict[int, list[int]] = {}
    for decided in ledger.decided(wanted):
        number = decided.block.block_id
        done = disposed(ledger.resolutions([number]))
        chosen = _matching(wanted, decided).tolist()
        waiting = [ordinal for ordinal in chosen if ordinal not in done]
        if waiting:
            found[number] = waiting
    return found


def _later(ledger: LedgerReader, block: Block) -> dict[int, ResolutionNote]:
    """Return what was done last about each delivery of a block that something was done about."""
    return {
        ordinal: {
            "action": resolution.action,
            "at": iso(resolution.at),
            "author": resolution.author,
            "reason": resolution.reason,
        }
        for resolution in ledger.resolutions([block.block_id])
        for ordinal in resolution.changes["ordinal"].to_pylist()
    }


def _matching(wanted: Filter, decided: Decided) -> np.ndarray:
    """Return the ordinals of a block that are wanted."""
    block, facts, verdicts, bus = decided
    chosen = np.ones(facts.num_rows, dtype=bool)

    def narrow(column: pa.ChunkedArray, value: Any) -> None:
        nonlocal chosen
        chosen &= np.asarray(pc.fill_null(pc.equal(column, value), False))

    if wanted.run_id is not None:
        narrow(facts["run"].cast(pa.string()), wanted.run_id)
    if wanted.event_class is not None:
        narrow(facts["class"].cast(pa.string()), wanted.event_class)
    if wanted.verdict is not None:
        narrow(verdicts["verdict"], CODE_OF_VERDICT[wanted.verdict])
    if wanted.reason is not None:
        narrow(verdicts["reason"], CODE_OF_REASON[wanted.reason])
    if wanted.event_id is not None:
        narrow(facts["event_id"], wanted.event_id)
    if wanted.identity is not None:
        narrow(facts["identity"], pa.scalar(wanted.identity, pa.binary(32)))
    if wanted.record is not None:
        chosen &= np.arange(len(chosen)) == wanted.record[1]
    if wanted.after is not None and wanted.after[0] == block.block_id:
        chosen &= np.arange(len(chosen)) > wanted.after[1]
    if wanted.source is not None:
        narrow(facts["offset"], wanted.source[2])
    if wanted.bus is not None:
        topic = [place.topic for place in block.destinations].index(wanted.bus[0])
        narrow(facts["route"], topic)
        narrow(facts["partition"], wanted.bus[1])
        narrow(
            bus["bus_offset"] if bus is not None else pa.nulls(len(chosen), pa.int64()),
            wanted.bus[2],
        )
    return np.flatnonzero(chosen)


def _rows(
    decided: Decided, rows: np.ndarray, positions: Positions, later: Mapping[int, ResolutionNote]
) -> Iterator[Decision]:
    block, facts, verdicts, bus = decided
    chosen = pa.array(rows)
    offsets = bus["bus_offset"].take(chosen).to_pylist() if bus is not None else [None] * len(rows)
    decided_at = iso(block.decided_at)
    published_at = iso(block.published_at)
    rules = block.rules_hash.hex() if block.rules_hash else None
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
        upstream = StreamMetadata.from_bytes(fact.get("upstream"))
        yield {
            "run_id": fact["run"],
            "event_class": fact["class"],
            "event_id": fact["event_id"],
            "verdict": VERDICT_CODES[verdict["verdict"]],
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
            "upstream": None if upstream is None else source_document(upstream),
            "decided_at": decided_at,
            "rules": rules,
            "resolution": later.get(ordinal),
            "id": f"{block.block_id}-{ordinal}",
        }


def source_document(position: StreamMetadata) -> SourcePosition:
    """Return a source position as the documents spell it."""
    return cast(SourcePosition, position._asdict())


def partition_document(source: Source) -> SourcePartition:
    """Return a source as the documents spell it."""
    return cast(SourcePartition, source._asdict())
