"""What the log holds of a pipeline's sources beyond what the ledger knows, by the records' own headers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.boundary.producers import LATE, Producer
from admitone.core.errors import IntegrityError
from admitone.core.replay_filter import by_upstream
from admitone.core.wire import IDENTITY_BYTES, Header, Numbers, decode, header_column, positions_of
from admitone.ledger.columns import fixed_bytes
from admitone.ledger.model import NOTHING_DECIDED, STREAM, Block, KnownEnds, Source
from admitone.ledger.port import LedgerReader
from admitone.transport.port import HEADERS_TYPE, Topic, Transport

_NOT_THERE: Final = -1
_SCHEMA: Final = pa.schema(
    [
        ("source_offset", pa.int64()),
        ("identity", pa.binary(IDENTITY_BYTES)),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("bus_offset", pa.int64()),
        ("published_at", pa.int64()),
        ("run", pa.binary()),
        ("late", pa.int64()),
        ("block", pa.int64()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
"""`late` is a late publish's own number. No receipt names a run, and what was delivered is kept only for doors."""


@dataclass(frozen=True, slots=True)
class Published:
    """Records of one source on the log, in the order of their source offsets."""

    rows: pa.Table
    offsets: np.ndarray

    @classmethod
    def of(cls, pieces: Sequence[pa.Table]) -> Published:
        """Join what was found; refuse a position that is there twice."""
        rows = pa.concat_tables([_SCHEMA.empty_table(), *pieces]).sort_by("source_offset")
        offsets = rows["source_offset"].to_numpy()
        twice = offsets[:-1][np.diff(offsets) == 0]
        if len(twice):
            raise IntegrityError(
                f"The log holds what was admitted from source offset {twice[0]} twice.",
                "keep the log and the ledger as they are and compare them",
            )
        return cls(rows, offsets)

    @property
    def last(self) -> int:
        """Return the highest source offset that is there."""
        return int(self.offsets.max(initial=NOTHING_DECIDED))

    @property
    def last_block(self) -> int:
        """Return the highest number of a block that was admitted here; 0 where none is known."""
        return int(pc.max(self.rows["block"]).as_py() or 0)

    def find(self, wanted: np.ndarray) -> np.ndarray:
        """Return the row of each source offset, -1 where it is not on the log."""
        if not len(self.offsets):
            return np.full(len(wanted), _NOT_THERE)
        rows = np.searchsorted(self.offsets, wanted)
        rows[rows == len(self.offsets)] = 0
        return np.where(self.offsets[rows] == wanted, rows, _NOT_THERE)

    def between(self, first: int, last: int) -> np.ndarray:
        """Return the source offsets that are there, from the first to the last."""
        low, high = np.searchsorted(self.offsets, [first, last + 1])
        found: np.ndarray = self.offsets[low:high]
        return found


class Elsewhere:
    """Finds which sources published an identity, without holding more than a number of each."""

    def __init__(self, sources: Mapping[Source, Published]) -> None:
        self._sources = list(sources)
        heads = [_heads(found.rows["identity"]) for found in sources.values()]
        self._heads = np.concatenate([np.empty(0, np.uint64), *heads])
        self._owners = np.repeat(np.arange(len(heads)), [len(head) for head in heads])
        offsets = [found.offsets for found in sources.values()]
        self._offsets = np.concatenate([np.empty(0, np.int64), *offsets])
        self._order = np.argsort(self._heads, kind="stable")

    def of(self, identity: bytes) -> Iterator[tuple[Source, int]]:
        """Yield the source positions an identity was published for."""
        head = np.frombuffer(identity[:8], ">u8").astype(np.uint64)
        low, high = (
            int(np.searchsorted(self._heads, head, side, sorter=self._order)[0])
            for side in ("left", "right")
        )
        for row in self._order[low:high].tolist():
            yield self._sources[self._owners[row]], int(self._offsets[row])


class Gap(NamedTuple):
    """Offsets of a topic that the ledger does not know and the log no longer holds."""

    topic: str
    partition: int
    begin: int
    end: int


def find_published(
    transport: Transport,
    topics: Sequence[str],
    ends: KnownEnds,
    producers: Mapping[int, Producer],
    receipts: Callable[[], Iterable[pa.Table]],
) -> dict[Source, Published]:
    """Return what these topics hold of a pipeline behind the known ends.

    Receipts speak for what the log no longer holds, if they do for every offset of it.
    """
    pieces: dict[Source, list[pa.Table]] = defaultdict(list)
    gaps: list[Gap] = []

    def add(found: Iterable[tuple[Source, pa.Table]]) -> None:
        for source, piece in found:
            if piece.num_rows:
                pieces[source].append(piece)

    for state in transport.describe(topics).values():
        topic = state.topic
        known = ends.get((topic.name, topic.topic_id), ())
        for partition, start in enumerate(transport.starts(topic)):
            begin = known[partition] if partition < len(known) else 0
            if start > begin:
                gaps.append(Gap(topic.name, partition, begin, start))
            first = max(start, begin)
            add(_records(transport, topic, partition, first, producers))
    for gap, files in zip(gaps, _within(receipts() if gaps else (), gaps), strict=True):
        add(_from_receipts(gap, files, producers))
    return {source: Published.of(found) for source, found in pieces.items()}


def known_ends(ledger: LedgerReader, in_flight: Sequence[Block]) -> KnownEnds:
    """Return up to where the log holds nothing that the ledger does not know.

    What the ledger does not know was claimed, and so appended, after every claim that it knows; and a claim notes the
    ends of its topics. What is in flight may lie right behind its own.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for choose, blocks in ((max, ledger.last_blocks()), (min, in_flight)):
        for block in blocks:
            for place in block.destinations:
                key = place.topic, place.topic_id
                both = zip_longest(found.get(key, place.ends), place.ends, fillvalue=0)
                found[key] = [choose(ends) for ends in both]
    return found


def _records(
    transport: Transport,
    topic: Topic,
    partition: int,
    begin: int,
    producers: Mapping[int, Producer],
) -> Iterator[tuple[Source, pa.Table]]:
    for batch in transport.read(topic, partition, begin, transport.ends(topic)[partition]):
        positions = positions_of(batch.column("key"), batch.column("headers"))
        keyed, numbers = decode(positions)
        records = pa.Table.from_batches([batch]).filter(pa.array(keyed))
        for source, lines in _by_source(numbers):
            mine, offsets = records.take(pa.array(lines)), numbers.offsets[lines]
            producer = producers.get(source.producer_id)
            if producer is None:
                continue
            if producer.kind == LATE:
                # Also those whose numbers are planned already: a plan may have been noted without its publish.
                yield from _late(mine, offsets, topic)
            else:
                yield source, _found(mine, offsets, topic, whole=producer.kind != STREAM)


def _late(records: pa.Table, late: np.ndarray, topic: Topic) -> Iterator[tuple[Source, pa.Table]]:
    """Yield late publishes by the positions they were first delivered at."""
    _, origins = decode(_header(records, Header.ORIGIN))
    for source, lines in _by_source(origins):
        rows = pa.array(lines)
        found = _found(records.take(rows), origins.offsets[lines], topic, whole=False)
        index = found.schema.get_field_index("late")
        yield source, found.set_column(index, "late", pa.array(late[lines]))


def _within(files: Iterable[pa.Table], gaps: Sequence[Gap]) -> list[pa.Table]:
    """Return, for each gap, the receipts of records that lay in it; several files may hold the same."""
    found: list[dict[int, pa.Table]] = [{} for _ in gaps]
    for receipts in files:
        for number, (topic, partition, begin, end) in enumerate(gaps):
            offset = receipts["bus_offset"]
            here = pc.and_(
                pc.and_(
                    pc.equal(receipts["bus_topic"], topic),
                    pc.equal(receipts["bus_partition"], partition),
                ),
                pc.and_(pc.greater_equal(offset, begin), pc.less(offset, end)),
            )
            rows = receipts.filter(here)
            for row, place in enumerate(rows["bus_offset"].to_pylist()):
                found[number][place] = rows.slice(row, 1)
    return [pa.concat_tables(rows.values()) if rows else None for rows in found]


def _from_receipts(
    gap: Gap, receipts: pa.Table | None, producers: Mapping[int, Producer]
) -> Iterator[tuple[Source, pa.Table]]:
    if receipts is None or receipts.num_rows != gap.end - gap.begin:
        raise IntegrityError(
            f"Offsets {gap.begin} to {gap.end - 1} of {gap.topic!r} partition {gap.partition} are gone from the log,"
            " the ledger does not know what they held, and there are not receipts for all of them.",
            "restore a newer copy of the ledger: one that is not older than what the log still keeps",
        )
    numbers = Numbers(
        *(receipts[f"source_{name}"].to_numpy() for name in ("producer", "partition", "offset"))
    )
    for source, lines in _by_source(numbers):
        producer = producers.get(source.producer_id)
        if producer is not None and producer.kind != STREAM:
            raise IntegrityError(
                "What came through a door is gone from the log, and the ledger does not know it.",
                "restore a newer copy of the ledger",
            )
        if producer is not None:
            yield source, _from_rows(receipts.take(pa.array(lines)))


def _from_rows(rows: pa.Table) -> pa.Table:
    names = {"topic": "bus_topic", "partition": "bus_partition"}
    return pa.table(
        [
            pa.nulls(rows.num_rows, field.type)
            if field.name in ("run", "late", "value", "headers")
            else rows[names.get(field.name, field.name)].cast(field.type)
            for field in _SCHEMA
        ],
        schema=_SCHEMA,
    )


def _by_source(numbers: Numbers) -> Iterator[tuple[Source, np.ndarray]]:
    for upstream, rows in by_upstream(numbers.producers, numbers.partitions):
        yield Source(*upstream), rows


def _found(records: pa.Table, offsets: np.ndarray, topic: Topic, *, whole: bool) -> pa.Table:
    size = records.num_rows
    return pa.table(
        [
            pa.array(offsets),
            _header(records, Header.IDENTITY).cast(pa.binary(IDENTITY_BYTES)),
            pa.repeat(topic.name, size),
            records["partition"],
            records["offset"],
            pc.divide(records["timestamp"].cast(pa.int64()), 1_000),
            _header(records, Header.RUN),
            pa.nulls(size, pa.int64()),
            _blocks(records),
            records["value"] if whole else pa.nulls(size, pa.binary()),
            records["headers"] if whole else pa.nulls(size, HEADERS_TYPE),
        ],
        schema=_SCHEMA,
    )


def _blocks(records: pa.Table) -> pa.Array:
    """Return the number of each record's block; none where an older release admitted it."""
    rows, values = header_column(records["headers"].combine_chunks(), Header.BLOCK)
    found = np.zeros(records.num_rows, np.int64)
    found[rows] = values.cast(pa.string()).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return pa.array(found, mask=found == 0)


def _header(records: pa.Table, name: str) -> pa.Array:
    """Return a header that every record must have; of several the last one counts."""
    rows, values = header_column(records["headers"].combine_chunks(), name)
    last = np.append(rows[1:] != rows[:-1], True) if len(rows) else np.empty(0, bool)
    if not np.array_equal(rows[last], np.arange(records.num_rows)):
        raise IntegrityError(
            f"A record of ours at {records['topic'][0]}:{records['partition'][0]} has no header {name!r}.",
            "keep the log and the ledger as they are and compare them",
        )
    return values.filter(pa.array(last))


def _heads(identities: pa.ChunkedArray) -> np.ndarray:
    words = np.frombuffer(fixed_bytes(identities.combine_chunks()), ">u8")
    return words.reshape(-1, IDENTITY_BYTES // 8)[:, 0].astype(np.uint64)
