"""Facts of deliveries that nobody sent: for benchmarks of the ledger alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from admitone.ledger.columns import FACTS_SCHEMA, UPSTREAM_TYPE

START_MS = 1_760_000_000_000
RUN, EVENT_CLASS = "bench", "page_view"


def blocks(total: int, size: int, *, seed: int = 1, first: int = 0) -> Iterator[pa.Table]:
    """Yield the facts of so many new deliveries, block by block; identities and hashes are random."""
    for start in range(first, first + total, size):
        yield block(start, min(size, first + total - start), seed)


def block(start: int, size: int, seed: int) -> pa.Table:
    """Return the facts of one block of new deliveries, always the same for a start and a seed."""
    random = np.random.default_rng((seed, start))
    offsets = np.arange(start, start + size)
    times = START_MS + offsets
    columns = [
        pa.array(offsets),
        pa.array(times),
        pa.array([RUN] * size).dictionary_encode(),
        pa.array([EVENT_CLASS] * size).dictionary_encode(),
        pa.array([event_id(number) for number in range(start, start + size)]),
        _digests(random, size),
        _digests(random, size),
        pa.array(times),
        pa.array(times),
        pa.array(np.zeros(size, np.uint8)),
        pa.array(np.zeros(size, np.int16)),
        pa.array((offsets % 4).astype(np.int32)),
        pa.nulls(size, UPSTREAM_TYPE),
    ]
    return pa.table(
        [
            column.cast(field.type) if column.type != field.type else column
            for column, field in zip(columns, FACTS_SCHEMA, strict=True)
        ],
        schema=FACTS_SCHEMA,
    )


def event_id(number: int) -> str:
    """Return the id of the delivery at an offset."""
    return f"event-{number:012d}"


def _digests(random: np.random.Generator, size: int) -> pa.Array:
    data = random.bytes(32 * size)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), size, [None, pa.py_buffer(data)])
