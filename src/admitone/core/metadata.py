"""Stream metadata by the column: Arrow arrays of twenty-byte keys, made and read without a loop.

A record says where it comes from in its key or, where the key is somebody's business key, in the header
`position`. Whoever reads records asks `positions_of`, so it does not matter which.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.replay import KEY_BYTES

POSITION_HEADER: Final = "position"
ORIGIN_HEADER: Final = "origin"
"""Where a record that is published late, or released, was first delivered."""
IDENTITY_HEADER: Final = "identity"
_LAYOUT: Final = np.dtype([("producer", ">i8"), ("partition", ">i4"), ("offset", ">i8")])

Longs = npt.NDArray[np.int64]


def encode(producer_id: int, partition: int, offsets: Longs) -> pa.BinaryArray:
    """Return the metadata of each offset of one source partition."""
    keys = np.empty(len(offsets), dtype=_LAYOUT)
    keys["producer"], keys["partition"], keys["offset"] = producer_id, partition, offsets
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(KEY_BYTES), len(offsets), [None, pa.py_buffer(keys.tobytes())]
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
    whole = pc.fill_null(pc.equal(pc.binary_length(keys), KEY_BYTES), False)
    fixed = keys.filter(whole).cast(pa.binary(KEY_BYTES))
    data = fixed.buffers()[1] or b""
    found = np.frombuffer(data, _LAYOUT, len(fixed), fixed.offset * KEY_BYTES)
    columns = (found[name].astype(np.int64) for name in ("producer", "partition", "offset"))
    return np.asarray(whole), Numbers(*columns)


def positions_of(keys: Any, headers: Any) -> pa.BinaryArray:
    """Return where each record says it comes from: its header `position`, or else its key."""
    keys = one_array(keys)
    rows, values = header_column(one_array(headers), POSITION_HEADER)
    if not len(rows):
        return keys
    fits = np.asarray(pc.fill_null(pc.equal(pc.binary_length(values), KEY_BYTES), False))
    fits &= np.append(rows[1:] != rows[:-1], True)  # The last of several is the one that counts.
    named = np.zeros(len(keys), dtype=bool)
    named[rows[fits]] = True
    replacing = values.filter(pa.array(fits)).cast(keys.type)
    return pc.replace_with_mask(keys, pa.array(named), replacing)


def header_column(headers: pa.ListArray, name: str) -> tuple[Longs, pa.Array]:
    """Return the rows that have a header, and its bytes there."""
    entries = headers.flatten()
    hits = np.flatnonzero(np.asarray(pc.equal(entries.field(0), name)))
    rows = np.asarray(headers.value_parent_indices())[hits].astype(np.int64)
    return rows, entries.field(1).take(pa.array(hits))


def one_array(column: Any) -> Any:
    """Return a column as a single array, however many chunks it has, or none."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if not column.num_chunks:
        return pa.array([], column.type)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
