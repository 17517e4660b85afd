"""Records as Arrow bytes, thousands to a value: what travels so keeps its types and costs Spark a few rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

_BYTES_AT_ONCE = 8 << 20


def pack(batch: pa.RecordBatch) -> list[bytes]:
    """Return a batch as a few values, each of a bounded size."""
    pieces = max(1, -(-batch.nbytes // _BYTES_AT_ONCE))
    rows = max(1, -(-batch.num_rows // pieces))
    packed = []
    for start in range(0, batch.num_rows, rows):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch.slice(start, rows))
        packed.append(sink.getvalue().to_pybytes())
    return packed


def unpack(packed: bytes | pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Yield what `pack` put into one value."""
    yield from pa.ipc.open_stream(packed)
