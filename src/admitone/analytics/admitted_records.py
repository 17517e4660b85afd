"""What counting needs from admitted records, read a whole Arrow column at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from admitone.analytics.store_state import SourceProgress
from admitone.core.replay_filter import by_upstream
from admitone.core.wire import POSITION_BYTES, Header, Longs, decode, positions_of

MISSING: Final = np.iinfo(np.int64).min
FOREIGN_SOURCE: Final = (0, -1)
"""The source of records without stream metadata: their time counts too."""

HEADERS_READ: Final = (Header.STREAM_TIME, Header.EVENT_TIME, Header.ADMITTED_AT, Header.BLOCK)
"""The headers of an admitted record that counting needs."""
NUMBERS: Final = ("stream_time", "event_time", "admitted_at", "block")
POSITION: Final = "position"
"""The columns they come in where the source has taken them out of the headers already."""

Flags = npt.NDArray[np.bool_]


class Stretch(NamedTuple):
    """The rows of a batch that come from one partition of the admitted log."""

    topic: str
    partition: int
    rows: Flags


def stretches(batch: pa.RecordBatch) -> Iterator[Stretch]:
    """Yield the partitions a batch holds; Spark's own sources put one into a task."""
    topics = batch.column("topic").dictionary_encode()
    partitions = longs(batch.column("partition"))
    places = (longs(topics.indices) << 32) | partitions
    for place in np.unique(places).tolist():
        yield Stretch(topics.dictionary[place >> 32].as_py(), place & 0xFFFFFFFF, places == place)


def _header_numbers(headers: Any) -> Iterator[Longs]:
    """Yield the decimal numbers under each header that counting needs, `MISSING` where there is none."""
    parents = longs(pc.list_parent_indices(headers))
    entries = headers.flatten()
    keys, values = entries.field(0), entries.field(1)
    for name in HEADERS_READ:
        chosen = pc.fill_null(pc.equal(keys, name), False)
        numbers = np.full(len(headers), MISSING, np.int64)
        numbers[parents[chosen.to_numpy(zero_copy_only=False)]] = _decimals(values.filter(chosen))
        yield numbers


def positions_in(batch: pa.RecordBatch) -> Any:
    """Return where each record says it comes from."""
    if POSITION not in batch.schema.names:
        return positions_of(batch.column("key"), batch.column("headers"))
    named, keys = batch.column(POSITION), batch.column("key")
    if named.null_count == len(named):
        return keys
    fits = pc.fill_null(pc.equal(pc.binary_length(named), POSITION_BYTES), False)
    return pc.if_else(fits, named, keys)


class Stamps(NamedTuple):
    """What is stamped on each record, in the order of `HEADERS_READ`; `MISSING` where there is none."""

    stream_times: Longs
    event_times: Longs
    claimed_at: Longs
    blocks: Longs


def stamps_in(batch: pa.RecordBatch) -> Stamps:
    """Return the numbers stamped on each record."""
    if NUMBERS[0] in batch.schema.names:
        return Stamps(*(longs(pc.fill_null(batch.column(name), MISSING)) for name in NUMBERS))
    return Stamps(*_header_numbers(batch.column("headers")))


def append_times(batch: pa.RecordBatch) -> Longs:
    """Return the log's own time of each record, in milliseconds."""
    return longs(batch.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False))


def source_progress(
    positions: Any,
    stream_times: Longs,
    appended: Longs,
    blocks: Longs,
    into: dict[tuple[int, int], SourceProgress],
) -> None:
    """Raise stream time, append time and block of the source partitions that records come from."""
    for source, rows in _by_source(positions):
        found = SourceProgress(*(int(of[rows].max()) for of in (stream_times, appended, blocks)))
        into[source] = SourceProgress(*map(max, into.get(source, found), found))


def _by_source(positions: Any) -> Iterator[tuple[tuple[int, int], Longs]]:
    """Yield the rows of each source partition; records without stream metadata share one of their own."""
    whole, (producers, partitions, offsets) = decode(positions)
    known = (partitions >= 0) & (offsets >= 0)
    rows = np.flatnonzero(whole)[known]
    for source, members in by_upstream(producers[known], partitions[known]):
        yield source, rows[members]
    if len(rows) < len(whole):
        yield FOREIGN_SOURCE, np.setdiff1d(np.arange(len(whole)), rows)


def above_marks(
    batch: pa.RecordBatch, marks: Mapping[tuple[str, int], int], nothing: int
) -> tuple[Flags, list[tuple[Stretch, int, int]]]:
    """Return which rows are new, and per partition its highest new offset and its re-reads."""
    offsets = longs(batch.column("offset"))
    fresh = np.zeros(len(offsets), np.bool_)
    seen = []
    for stretch in stretches(batch):
        mark = marks.get((stretch.topic, stretch.partition), nothing)
        new = stretch.rows & (offsets > mark)
        fresh |= new
        highest = int(offsets[new].max()) if new.any() else mark
        seen.append((stretch, highest, int(stretch.rows.sum() - new.sum())))
    return fresh, seen


def longs(column: Any) -> Longs:
    """Return an integer column without nulls as numpy."""
    return np.asarray(column.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _decimals(values: Any) -> Longs:
    try:
        return longs(pc.fill_null(values.cast(pa.string()).cast(pa.int64()), MISSING))
    except pa.ArrowInvalid:
        # One malformed header must not stop the log: judge each by itself.
        return np.array([_decimal(value) for value in values.to_pylist()], np.int64)


def _decimal(value: bytes | None) -> int:
    try:
        number = int(value or b"")
    except ValueError:
        return MISSING
    return number if MISSING < number < -MISSING else MISSING
