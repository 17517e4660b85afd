"""Step 3, publish: what an admitted delivery looks like on its topic, and how to find it there again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.boundary.read import ReadBlock
from admitone.core.decisions import CODE_OF_VERDICT, Verdict
from admitone.core.errors import IntegrityError, NotFound, Unreadable
from admitone.core.routing import Route
from admitone.core.wire import (
    OFFSET,
    Header,
    admitted_headers,
    decode,
    encode,
    positions_of,
)
from admitone.ledger.model import Block, Destination, Source
from admitone.transport.headers import after_headers
from admitone.transport.port import OUTGOING_SCHEMA, Topic, Transport
from admitone.transport.topic_contract import still_there

Parts = dict[str, tuple[np.ndarray, pa.Table]]
"""For each topic, which lines go there and their records."""


def admitted_ordinals(verdicts: pa.Table) -> np.ndarray:
    """Return the deliveries of a block that are, or are to be, on the log."""
    return np.flatnonzero(verdicts["verdict"].to_numpy() == CODE_OF_VERDICT[Verdict.ADMITTED])


def to_publish(block: Block, verdicts: pa.Table) -> np.ndarray:
    """Return the deliveries of a claimed block that are to be on the log: all but what was refused."""
    planned = admitted_ordinals(verdicts)
    return planned[~np.isin(planned, block.refused)] if block.refused else planned


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Records on their way to the log, with what their keys and headers are made of, line by line."""

    source: Source
    numbers: np.ndarray
    facts: pa.Table
    records: pa.Table
    business_keys: list[str]
    origins: list[bytes] | None = None
    """The source positions they were first delivered at, where these are not what the keys say (EVD-8)."""

    @classmethod
    def of(cls, source: Source, block: ReadBlock, ordinals: np.ndarray) -> Outgoing:
        """Return the chosen deliveries of a block."""
        facts, records = (_taken(table, ordinals) for table in (block.facts, block.records))
        return cls(
            source,
            facts["offset"].to_numpy(),
            facts,
            records,
            [block.business_keys[row] for row in ordinals.tolist()],
        )

    def by_topic(self, topics: tuple[str, ...], routes: Iterable[Route], block: Block) -> Parts:
        """Return, for each topic, which lines go there and their records, in the order given."""
        by_name = {route.topic: route for route in routes}
        route = self.facts["route"].fill_null(-1).to_numpy()
        found = {}
        for number in np.unique(route).tolist():
            lines = np.flatnonzero(route == number)
            topic = topics[number]
            found[topic] = (lines, self._records(lines, block, by_name.get(topic)))
        return found

    def _records(self, lines: np.ndarray, block: Block, route: Route | None) -> pa.Table:
        facts, records = _taken(self.facts, lines), _taken(self.records, lines)
        business_keys = pa.array([self.business_keys[line] for line in lines.tolist()], pa.string())
        positions = encode(*self.source, self.numbers[lines])
        extra = {}
        if self.origins is not None:
            extra[Header.ORIGIN] = pa.array(
                [self.origins[line] for line in lines.tolist()], pa.binary()
            )
        key = positions
        if route is not None and (route.business_keyed or route.keeps_record):
            extra[Header.POSITION] = positions
            key = records["key"] if route.keeps_record else business_keys.cast(pa.binary())
        leaving = pa.table(
            [
                facts["partition"],
                key,
                records["value"],
                admitted_headers(
                    facts, business_keys, block.rules, block.claimed_at, block.block_id, extra
                ),
            ],
            names=OUTGOING_SCHEMA.names,
        )
        if route is not None and route.keeps_record:
            return after_headers(records["headers"], leaving)
        return leaving


def _taken(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Return some rows of a table, in their order; all of them need no copy."""
    return table if len(rows) == table.num_rows else table.take(pa.array(rows))


def origins_of(headers: pa.ChunkedArray) -> list[bytes]:
    """Return the original position that each released delivery names."""
    return [
        next(entry["value"] for entry in entries if entry["key"] == Header.ORIGIN)
        for entries in headers.to_pylist()
    ]


def destinations_of(transport: Transport, topics: Sequence[str]) -> tuple[Destination, ...]:
    """Return topics as they are now: which incarnation, and how far they go.

    One that is missing has neither: it is nobody's destination until it is there again.
    """
    return tuple(_destination(transport, name) for name in topics)


def _destination(transport: Transport, name: str) -> Destination:
    try:
        topic = transport.topic(name)
        return Destination(
            name, topic.topic_id, transport.offset_kind, tuple(transport.ends(topic))
        )
    except NotFound:
        return Destination(name, "", transport.offset_kind, ())


class Placed(NamedTuple):
    """Where records are on the log, in the order they were asked for; no offsets where none of them is there."""

    bus_offsets: np.ndarray | None
    published_at: int | None


def append(transport: Transport, producer: str, epoch: int, parts: Parts) -> Placed:
    """Append records in one transaction; return where each line went."""
    appended = transport.append(
        producer, epoch, {topic: table for topic, (_, table) in parts.items()}
    )
    bus_offsets = np.empty(sum(len(lines) for lines, _ in parts.values()), dtype=np.int64)
    for topic, (lines, _) in parts.items():
        bus_offsets[lines] = appended.offsets[topic].to_numpy()
    return Placed(bus_offsets, appended.published_at)


def used(
    destinations: tuple[Destination, ...], facts: pa.Table, ordinals: np.ndarray
) -> tuple[Destination, ...]:
    """Return the destinations that the chosen deliveries go to."""
    routes = np.unique(facts["route"].fill_null(-1).to_numpy()[ordinals])
    return tuple(destinations[number] for number in routes.tolist())


def look_for_block(
    transport: Transport, block: Block, facts: pa.Table, ordinals: np.ndarray
) -> Placed | None:
    """Search the log for the chosen deliveries of a block, under their own positions."""
    wanted = facts["offset"].to_numpy()[ordinals]
    places = used(block.destinations, facts, ordinals)
    return look(
        transport, block, block.source, (block.first_offset, block.last_offset), wanted, places
    )


def look(
    transport: Transport,
    block: Block,
    source: Source,
    span: tuple[int, int],
    wanted: np.ndarray,
    destinations: Iterable[Destination],
) -> Placed | None:
    """Search the log for all of the wanted records, behind the fence; None when the log cannot tell.

    Everything is read from the position that was noted when the block was claimed up to the end of the log,
    the uncommitted part included: a position that is gone, another topic under the name, or a topic whose compaction
    may have removed a record, means "unknown", never "absent". One topic that was read and holds none of its records
    is enough to prove all of them absent, because an append is all or nothing.
    """
    low, high = encode(*source, np.array(span)).to_pylist()
    offsets: dict[int, int] = {}
    published_at: int | None = None
    absent = unknown = False
    for destination in destinations:
        before = len(offsets)
        try:
            replaced = False
            for batch in _since(transport, destination):
                positions = positions_of(batch.column("key"), batch.column("headers"))
                # A position is the key of one record only: what has another key may have replaced one of ours.
                replaced |= not _keyed_by_position(batch.column("key"), positions)
                hits = pc.and_kleene(
                    pc.greater_equal(positions, low), pc.less_equal(positions, high)
                )
                matched = batch.filter(hits)
                for position, offset, moment in zip(
                    positions.filter(hits).to_pylist(),
                    matched.column("offset").to_pylist(),
                    matched.column("timestamp").cast(pa.int64()).to_pylist(),
                    strict=True,
                ):
                    offsets[int.from_bytes(position[OFFSET], "big")] = offset
                    published_at = moment // 1_000
            # Asked last: a topic may begin to be compacted while it is read.
            replaced = replaced and _compacts(transport, destination)
        except (NotFound, Unreadable):
            unknown = True
        else:
            unknown |= replaced
            absent |= len(offsets) == before and not replaced
    if not offsets and (absent or not unknown):
        return Placed(None, None)
    if unknown and len(offsets) < len(wanted):
        return None
    if offsets.keys() != set(wanted.tolist()):
        raise IntegrityError(
            f"Block {block.block_id} claimed {len(wanted)} records, the log holds {len(offsets)} of"
            " its range: an append is all or nothing.",
            "keep the log and the ledger as they are and compare them",
        )
    found = np.array([offsets[number] for number in wanted.tolist()], dtype=np.int64)
    return Placed(found, published_at)


def _compacts(transport: Transport, noted: Destination) -> bool:
    """Tell whether a topic is compacted now, whatever was configured."""
    state = transport.describe([noted.topic]).get(noted.topic)
    return state is not None and state.keeping is not None and state.keeping.compacts


def _keyed_by_position(keys: pa.Array, positions: pa.Array) -> bool:
    whole, _ = decode(keys)
    return bool(whole.all()) and keys.equals(positions)


def _since(transport: Transport, noted: Destination) -> Iterator[pa.RecordBatch]:
    """Yield what a topic holds from the noted ends on; `NotFound` where it is another one or no longer holds it.

    Where a part of it is unreadable the rest is read all the same: what is looked for may lie there.
    """
    if still_there(transport, noted.topic, noted.topic_id) is None:
        raise NotFound(f"Topic {noted.topic!r} is not the one that was written to.")
    topic = Topic(noted.topic, noted.topic_id, len(noted.ends))
    starts, ends = transport.starts(topic), transport.ends(topic)
    hidden = None
    for partition, end in enumerate(noted.ends):
        if starts[partition] > end:
            raise NotFound(f"Topic {noted.topic!r} no longer holds what followed offset {end}.")
        try:
            yield from transport.read(topic, partition, end, ends[partition])
        except Unreadable as error:
            # It was waited for once; what can be read by now must do.
            hidden, ends = error, transport.ends(topic, readable=True)
    if hidden is not None:
        raise hidden
