"""The columns of a block: what each delivery was, what was decided, and where it went.

A block's row holds three compressed Arrow tables, one line for each delivery in offset order (its *ordinal*):

    facts      written at the claim    what step 1 read: run, class, event id, identity, hash, times, route
    verdicts   written at the claim    verdict, reason, the first delivery it refers to
    bus        written at settlement   the offset an admitted delivery got on its topic

One file knows these bytes. Codes are positions in `core.decisions`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.errors import IntegrityError
from admitone.core.wire import POSITION_BYTES, one_array

UPSTREAM_TYPE = pa.binary(POSITION_BYTES)

FACTS_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("append_time", pa.int64()),
        ("run", pa.dictionary(pa.int32(), pa.string())),
        ("class", pa.dictionary(pa.int32(), pa.string())),
        ("event_id", pa.string()),
        ("identity", pa.binary(32)),
        ("payload_hash", pa.binary(32)),
        ("event_time", pa.int64()),
        ("stream_time", pa.int64()),
        ("reason", pa.uint8()),
        ("route", pa.int16()),
        ("partition", pa.int32()),
        ("upstream", UPSTREAM_TYPE),
    ]
)
"""A delivery that was not decoded has neither identity nor hash; without a reason it is a replay. `upstream` is its
stream metadata where replays are filtered; blocks that were claimed before there was a filter lack the column."""

VERDICTS_SCHEMA = pa.schema(
    [
        ("verdict", pa.uint8()),
        ("reason", pa.uint8()),
        ("first_block", pa.int64()),
        ("first_ordinal", pa.int32()),
    ]
)

BUS_SCHEMA = pa.schema([("bus_offset", pa.int64())])

CHANGES_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int32()),
        ("verdict", pa.uint8()),
        ("reason", pa.uint8()),
        ("bus_offset", pa.int64()),
    ]
)
"""What a resolution says about deliveries of a block that was decided before."""

_COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1))
_AS_IT_IS = pa.ipc.IpcWriteOptions()
_SMALL = 4_096
"""So few bytes are not worth the half millisecond that a compressor for each of their columns takes."""


def pack(table: pa.Table) -> bytes:
    """Return a table as bytes, compressed where it is not small."""
    # What its buffers take is known at once; what its rows take of them is counted column by column.
    is_small = table.get_total_buffer_size() <= _SMALL or table.nbytes <= _SMALL
    options = _AS_IT_IS if is_small else _COMPRESSED
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def unpack(packed: bytes) -> pa.Table:
    """Return the table behind such bytes."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(packed)) as reader:
            return reader.read_all()
    except (OSError, pa.ArrowException) as error:
        raise IntegrityError(
            f"Columns of the ledger cannot be read: {error}.", "restore the ledger from a backup"
        ) from error


def logical_digest(*tables: pa.Table) -> bytes:
    """Return a hash over the logical rows, whatever file format or compression carries them."""
    digest = hashlib.sha256()
    for table in tables:
        for name, column in zip(table.column_names, table.columns, strict=True):
            digest.update(name.encode())
            _add_column(digest, one_array(column))
    return digest.digest()


def _add_column(digest: hashlib._Hash, column: pa.Array) -> None:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        digest.update(np.packbits(np.asarray(column.is_valid())).tobytes())
        column = column.drop_null()
    else:
        digest.update(_all_there(len(column)))
    if pa.types.is_list(column.type):
        digest.update(np.asarray(pc.list_value_length(column)).tobytes())
        entries = column.flatten()
        for index in range(entries.type.num_fields):
            _add_column(digest, entries.field(index))
    elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        digest.update(np.asarray(pc.binary_length(column)).tobytes())
        digest.update(string_bytes(column))
    elif pa.types.is_fixed_size_binary(column.type):
        digest.update(fixed_bytes(column))
    elif pa.types.is_timestamp(column.type):
        digest.update(np.asarray(column.cast(pa.int64())).tobytes())
    else:
        digest.update(column.to_numpy(zero_copy_only=False).tobytes())


def _all_there(size: int) -> bytes:
    """Return the bits of so many values that are all there."""
    whole, rest = divmod(size, 8)
    return b"\xff" * whole + (bytes([0xFF00 >> rest & 0xFF]) if rest else b"")


def string_bytes(column: pa.StringArray) -> memoryview:
    """Return the bytes of a string or binary column without nulls, end to end."""
    if not len(column):
        return memoryview(b"")
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(data or b"")[edges[0] : edges[-1]]


def digest_words(column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return digests as four numbers each; whatever is there where there is none."""
    words: npt.NDArray[np.uint64] = np.frombuffer(fixed_bytes(one_array(column)), dtype="<u8")
    return words.reshape(-1, 4)


def fixed_bytes(column: pa.FixedSizeBinaryArray) -> memoryview:
    """Return the bytes of a fixed-size column without nulls, end to end."""
    width = column.type.byte_width
    start = column.offset * width
    return memoryview(column.buffers()[1] or b"")[start : start + len(column) * width]
