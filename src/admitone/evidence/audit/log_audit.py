"""Does every admission that is still on the log lie where the ledger says?

References are collected block by block and compared in portions, partition by partition, so that neither the run nor
the log is ever held whole. What retention or the deletion of a topic took away is counted, not missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.errors import IntegrityError
from admitone.core.wire import (
    IDENTITY_BYTES,
    POSITION_BYTES,
    Header,
    encode,
    header_column,
    positions_of,
)
from admitone.ledger.columns import fixed_bytes
from admitone.ledger.model import Source
from admitone.transport.port import Transport
from admitone.transport.topic_contract import still_there

_AT_ONCE = 200_000
_WIDEST_GAP = 20_000
_EXAMPLES = 5


class _Place(NamedTuple):
    topic: str
    topic_id: str
    partition: int
    late: bool


class _Expected(NamedTuple):
    offsets: np.ndarray
    identities: np.ndarray
    positions: np.ndarray


class LogAudit:
    """Collects references to the log and compares them with what is there."""

    def __init__(self, transport: Transport, compacted: frozenset[str] = frozenset()) -> None:
        self._transport = transport
        self._compacted = compacted
        self._waiting: defaultdict[_Place, list[_Expected]] = defaultdict(list)
        self._held = 0
        self.compared = 0
        self.gone = 0
        self.wrong = 0
        self.examples: list[str] = []

    def expect(
        self, source: Source, topic_ids: dict[str, str], admitted: pa.Table, late: bool
    ) -> None:
        """Add admissions: facts with their `topic` and `bus_offset`; late ones carry their origin."""
        topics = admitted["topic"].combine_chunks().dictionary_encode()
        names, codes = topics.dictionary.to_pylist(), np.asarray(topics.indices)
        partitions = admitted["partition"].to_numpy()
        offsets = admitted["bus_offset"].to_numpy()
        identities = _matrix(admitted["identity"].combine_chunks(), IDENTITY_BYTES)
        keys = _matrix(encode(*source, admitted["offset"].to_numpy()), POSITION_BYTES)
        places = codes.astype(np.int64) << 32 | partitions
        for code in np.unique(places).tolist():
            chosen = places == code
            topic = names[code >> 32]
            place = _Place(topic, topic_ids.get(topic, ""), code & 0xFFFFFFFF, late)
            self._waiting[place].append(
                _Expected(offsets[chosen], identities[chosen], keys[chosen])
            )
        self._held += admitted.num_rows
        if self._held >= _AT_ONCE:
            self.compare()

    def compare(self) -> None:
        """Compare everything that was collected so far."""
        for place, portions in self._waiting.items():
            expected = _Expected(
                *(np.concatenate(column) for column in zip(*portions, strict=True))
            )
            order = np.argsort(expected.offsets, kind="stable")
            self._compare(place, _Expected(*(column[order] for column in expected)))
        self._waiting.clear()
        self._held = 0

    def _compare(self, place: _Place, expected: _Expected) -> None:
        topic = still_there(self._transport, place.topic, place.topic_id)
        if topic is None:
            self.gone += len(expected.offsets)
            return
        there = expected.offsets >= self._transport.starts(topic)[place.partition]
        self.gone += int(np.count_nonzero(~there))
        expected = _Expected(*(column[there] for column in expected))
        right = np.zeros(len(expected.offsets), dtype=bool)
        seen = np.zeros(len(expected.offsets), dtype=bool)
        try:
            for start, end in _stretches(expected.offsets):
                for batch in self._transport.read(topic, place.partition, start, end):
                    _match(batch, expected, place.late, seen, right)
        except IntegrityError as error:
            self.examples.append(error.problem)
        if not seen.all():
            # Retention may have moved on meanwhile, and compaction takes single records.
            start = self._transport.starts(topic)[place.partition]
            lost = ~seen & ((expected.offsets < start) | (place.topic in self._compacted))
            self.gone += int(np.count_nonzero(lost))
            right |= lost
            seen &= ~lost
        self.compared += int(np.count_nonzero(seen | ~right))
        for index in np.flatnonzero(~right).tolist():
            self.wrong += 1
            if len(self.examples) < _EXAMPLES:
                what = "holds another event" if seen[index] else "holds nothing"
                self.examples.append(
                    f"{place.topic}:{place.partition}:{expected.offsets[index]} {what}"
                )


def _match(
    batch: pa.RecordBatch, expected: _Expected, late: bool, seen: np.ndarray, right: np.ndarray
) -> None:
    offsets = batch.column("offset").to_numpy()
    rows = np.searchsorted(expected.offsets, offsets)
    rows[rows == len(expected.offsets)] = 0
    hits = np.flatnonzero(expected.offsets[rows] == offsets)
    if not len(hits):
        return
    rows = rows[hits]
    headers = batch.column("headers").take(pa.array(hits))
    identities = _header_matrix(headers, Header.IDENTITY, IDENTITY_BYTES)
    if late:
        positions = _header_matrix(headers, Header.ORIGIN, POSITION_BYTES)
    else:
        keys = batch.column("key").take(pa.array(hits))
        positions = _matrix(positions_of(keys, headers), POSITION_BYTES)
    seen[rows] = True
    right[rows] = (identities == expected.identities[rows]).all(axis=1) & (
        positions == expected.positions[rows]
    ).all(axis=1)


def _header_matrix(headers: pa.Array, name: str, width: int) -> np.ndarray:
    rows, values = header_column(headers, name)
    found = np.zeros((len(headers), width), dtype=np.uint8)
    found[rows] = _matrix(values, width)
    return found


def _matrix(column: pa.Array, width: int) -> np.ndarray:
    """Return the bytes of a column as lines of equal width; zeros where a value has another length."""
    fits = pc.fill_null(pc.equal(pc.binary_length(column), width), False)
    lines = np.zeros((len(column), width), dtype=np.uint8)
    values = column.filter(fits).cast(pa.binary(width))
    lines[np.asarray(fits)] = np.frombuffer(fixed_bytes(values), dtype=np.uint8).reshape(-1, width)
    return lines


def _stretches(offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the ranges to read, leaving out where nothing is expected for long."""
    if not len(offsets):
        return
    breaks = np.flatnonzero(np.diff(offsets) > _WIDEST_GAP) + 1
    for piece in np.split(offsets, breaks):
        yield int(piece[0]), int(piece[-1]) + 1
