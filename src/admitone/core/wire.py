"""What a record carries beside its value: the only file that knows these bytes.

Stream metadata, twenty bytes that say where a record comes from; big-endian, so that byte order is offset order within
a producer and partition:

    producer id   int64    8 bytes   who wrote it and from which incarnation of which topic
    partition     int32    4 bytes   the source partition
    offset        int64    8 bytes   the source offset

Example: producer 1, partition 2, offset 3 is 0000000000000001 00000002 0000000000000003. It is a record's key or, where
the key is a business key, its header `position`; a reader asks `positions_of`, so it does not matter which.

Headers are UTF-8, numbers in decimal digits; hashes and positions are bytes. Of several with one name the last counts.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class Header:
    """The name of every header that is written or read."""

    # A delivery may say what its envelope does not.
    RUN_ID: Final = "runId"
    EVENT_CLASS: Final = "eventClass"

    # An admitted record always has these, in this order.
    IDENTITY: Final = "identity"
    RUN: Final = "run"
    CLASS: Final = "class"
    EVENT_ID: Final = "event-id"
    PAYLOAD_HASH: Final = "payload-hash"
    RULES: Final = "rules"
    BUSINESS_KEY: Final = "business-key"
    ADMITTED_AT: Final = "admitted-at"
    EVENT_TIME: Final = "event-time"
    STREAM_TIME: Final = "stream-time"
    BLOCK: Final = "block"
    """The number of its block in the ledger; `admitted-at` is when that was claimed, by the ledger's clock."""

    ORIGIN: Final = "origin"
    """Where a late publish or a released delivery was first delivered."""
    POSITION: Final = "position"
    """The stream metadata, where the key is something else."""
    FIRST_OFFSET: Final = "first-offset"
    """The lowest source offset of an aggregate, eight bytes; its stream metadata has the highest."""
    REASON: Final = "reason"
    """Why engine state did not judge a record."""


NAMING_HEADERS: Final = (Header.RUN_ID, Header.EVENT_CLASS)
ADMITTED_HEADERS: Final = (
    Header.IDENTITY, Header.RUN, Header.CLASS, Header.EVENT_ID, Header.PAYLOAD_HASH, Header.RULES,
    Header.BUSINESS_KEY, Header.ADMITTED_AT, Header.EVENT_TIME, Header.STREAM_TIME, Header.BLOCK,
)  # fmt: skip
_ONE: Final = struct.Struct(">qiq")
_MANY: Final = np.dtype([("producer", ">i8"), ("partition", ">i4"), ("offset", ">i8")])
POSITION_BYTES: Final = _ONE.size
PRODUCER: Final = slice(0, 8)
PARTITION: Final = slice(8, 12)
OFFSET: Final = slice(12, POSITION_BYTES)
UPSTREAM: Final = slice(0, PARTITION.stop)
"""Producer and source partition together: where offsets are counted."""
OFFSET_BYTES: Final = OFFSET.stop - OFFSET.start
IDENTITY_BYTES: Final = 32

Longs = npt.NDArray[np.int64]


class StreamMetadata(NamedTuple):
    """A source position that a record carries as its key."""

    producer_id: int
    partition: int
    offset: int

    def to_bytes(self) -> bytes:
        """Return the 20-byte record key."""
        return _ONE.pack(*self)

    @classmethod
    def from_bytes(cls, key: bytes | None) -> StreamMetadata | None:
        """Return the metadata a key holds, or None when the key is something else."""
        if key is None or len(key) != POSITION_BYTES:
            return None
        found = cls(*_ONE.unpack(key))
        return None if found.partition < 0 or found.offset < 0 else found


@lru_cache(maxsize=1_024)
def producer_id(pipeline: str, stream: str, cluster: str, topic_id: str) -> int:
    """Return the stable id of a producer reading one incarnation of one topic.

    The topic's identity is part of it, so a topic that was deleted and recreated starts a new
    producer instead of being taken for a replay of the old one.
    """
    digest = hashlib.sha256()
    for part in (pipeline, stream, cluster, topic_id):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return int.from_bytes(digest.digest()[:8], "big", signed=True)


def encode(producer_id: int, partition: int, offsets: Longs) -> pa.BinaryArray:
    """Return the metadata of each offset of one source partition."""
    keys = np.empty(len(offsets), dtype=_MANY)
    keys["producer"], keys["partition"], keys["offset"] = producer_id, partition, offsets
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(POSITION_BYTES), len(offsets), [None, pa.py_buffer(keys.tobytes())]
    )
    return fixed.cast(pa.binary())


class Numbers(NamedTuple):
    """The columns of stream metadata."""

    producers: Longs
    partitions: Longs
    offsets: Longs


def decode(keys: Any) -> tuple[npt.NDArray[np.bool_], Numbers]:
    """Return which keys hold twenty bytes, and the numbers in those that do."""
    keys = one_array(keys)
    whole = pc.fill_null(pc.equal(pc.binary_length(keys), POSITION_BYTES), False)
    fixed = keys.filter(whole).cast(pa.binary(POSITION_BYTES))
    data = fixed.buffers()[1] or b""
    found = np.frombuffer(data, _MANY, len(fixed), fixed.offset * POSITION_BYTES)
    columns = (found[name].astype(np.int64) for name in ("producer", "partition", "offset"))
    return np.asarray(whole), Numbers(*columns)


def positions_of(keys: Any, headers: Any) -> pa.BinaryArray:
    """Return where each record says it comes from: its header `position`, or else its key."""
    keys = one_array(keys)
    rows, values = header_column(headers, Header.POSITION)
    if not len(rows):
        return keys
    fits = np.asarray(pc.fill_null(pc.equal(pc.binary_length(values), POSITION_BYTES), False))
    fits &= np.append(rows[1:] != rows[:-1], True)  # The last of several is the one that counts.
    named = np.zeros(len(keys), dtype=bool)
    named[rows[fits]] = True
    replacing = values.filter(pa.array(fits)).cast(keys.type)
    return pc.replace_with_mask(keys, pa.array(named), replacing)


def admitted_headers(
    facts: pa.Table,
    business_keys: pa.Array,
    rules: int,
    admitted_at: int,
    block_id: int,
    extra: Mapping[str, pa.Array],
) -> pa.StructArray:
    """Return the headers of admitted records, column by column, from what a block's facts say of them."""
    size = facts.num_rows
    columns = {
        Header.IDENTITY: facts["identity"],
        Header.RUN: facts["run"].cast(pa.string()),
        Header.CLASS: facts["class"].cast(pa.string()),
        Header.EVENT_ID: facts["event_id"],
        Header.PAYLOAD_HASH: facts["payload_hash"],
        Header.RULES: _repeated(rules, size),
        Header.BUSINESS_KEY: business_keys,
        Header.ADMITTED_AT: _repeated(admitted_at, size),
        Header.EVENT_TIME: facts["event_time"].cast(pa.string()),
        Header.STREAM_TIME: facts["stream_time"].cast(pa.string()),
        Header.BLOCK: _repeated(block_id, size),
        **extra,
    }
    names = [*ADMITTED_HEADERS, *extra]
    return pa.StructArray.from_arrays(
        [one_array(columns[name].cast(pa.binary())) for name in names], names=names
    )


def _repeated(number: int, size: int) -> pa.Array:
    return pa.repeat(pa.scalar(b"%d" % number), size)


def header_column(headers: Any, name: str) -> tuple[Longs, pa.Array]:
    """Return the rows that have a header, and its bytes there."""
    headers = one_array(headers)
    entries = headers.flatten()
    hits = np.flatnonzero(np.asarray(pc.equal(entries.field(0), name)))
    rows = np.asarray(headers.value_parent_indices())[hits].astype(np.int64)
    return rows, entries.field(1).take(pa.array(hits))


def naming_headers(headers: Any) -> dict[int, dict[str, bytes]]:
    """Return what headers say about who an event is, by row; most deliveries have none."""
    found: dict[int, dict[str, bytes]] = {}
    headers = one_array(headers)
    if len(headers.flatten()):
        for name in NAMING_HEADERS:
            rows, values = header_column(headers, name)
            for row, value in zip(rows.tolist(), values.to_pylist(), strict=True):
                found.setdefault(row, {})[name] = value or b""
    return found


def said_outside(headers: Mapping[str, bytes], default_run: str) -> dict[str, str | None]:
    """Return what is said outside an envelope about who it is; None where bytes are no text."""
    return {Header.RUN_ID: default_run} | {n: header_text(value) for n, value in headers.items()}


def header_text(value: bytes) -> str | None:
    """Return the text of a header, or None where its bytes are no text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def header_list(headers: Iterable[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """Return headers as a column of records holds them."""
    return [{"key": name, "value": value} for name, value in headers]


def run_header(run_id: str | None) -> list[dict[str, Any]]:
    """Return the headers of a delivery whose run was named beside it."""
    return [] if run_id is None else header_list([(Header.RUN_ID, run_id.encode())])


def one_array(column: Any) -> Any:
    """Return a column as a single array, however many chunks it has, or none."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if not column.num_chunks:
        return pa.array([], column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
