"""Headers of outgoing records, in either of two forms.

A list of names and values for each record, as a reader gets them; or a struct with a field for each name, where all
records of a table have the same headers. The second is made of whole columns, so it costs next to nothing to make.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.wire import Header
from admitone.transport.port import HEADERS_TYPE

Pairs = list[tuple[str, bytes]]


def listed(table: pa.Table) -> pa.Table:
    """Return outgoing records with their headers as lists."""
    headers = table["headers"].combine_chunks()
    if not pa.types.is_struct(headers.type):
        return table
    names, columns = [field.name for field in headers.type], headers.flatten()
    size, width = len(headers), len(names)
    by_row = pa.array(np.arange(size * width).reshape(width, size).T.ravel())
    entries = pa.StructArray.from_arrays(
        [
            pa.array(names, pa.string()).take(pa.array(np.tile(np.arange(width), size))),
            pa.concat_arrays(columns).take(by_row),
        ],
        fields=list(HEADERS_TYPE.value_type),
    )
    edges = pa.array(np.arange(0, size * width + 1, width, dtype=np.int32))
    column = pa.ListArray.from_arrays(edges, entries, type=HEADERS_TYPE)
    index = table.schema.get_field_index("headers")
    return table.set_column(index, pa.field("headers", HEADERS_TYPE), column)


def pairs_of(table: pa.Table) -> Iterator[Pairs]:
    """Yield the headers of each outgoing record as names and values."""
    headers = table["headers"].combine_chunks()
    if pa.types.is_struct(headers.type):
        names = [field.name for field in headers.type]
        for values in zip(*(column.to_pylist() for column in headers.flatten()), strict=True):
            yield list(zip(names, values, strict=True))
        return
    entries = headers.flatten()
    pairs = list(zip(entries.field(0).to_pylist(), entries.field(1).to_pylist(), strict=True))
    lengths = np.asarray(headers.value_lengths().fill_null(0))
    edges = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    for start, end in pairwise(edges):
        yield pairs[start:end]


def after_headers(came: pa.ChunkedArray, leaving: pa.Table) -> pa.Table:
    """Return outgoing records whose headers follow those they came with: of several the last one counts."""
    came = came.combine_chunks()
    entries = came.flatten()
    kept = np.asarray(pc.not_equal(entries.field(0), Header.ORIGIN))
    if not kept.any():
        return leaving
    leaving = listed(leaving)
    added = leaving["headers"].combine_chunks()
    rows = np.concatenate(
        [
            np.asarray(came.value_parent_indices())[kept],
            np.asarray(added.value_parent_indices()),
        ]
    )
    order = np.argsort(rows, kind="stable")
    joined = pa.concat_arrays([entries.filter(pa.array(kept)), added.flatten()])
    edges = np.searchsorted(rows[order], np.arange(len(came) + 1))
    column = pa.ListArray.from_arrays(
        pa.array(edges, pa.int32()), joined.take(pa.array(order)), type=HEADERS_TYPE
    )
    index = leaving.schema.get_field_index("headers")
    return leaving.set_column(index, pa.field("headers", HEADERS_TYPE), column)
