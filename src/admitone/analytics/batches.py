"""A counted batch, put together from the rows `build_deltas` returned."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import orjson
import pyarrow as pa

from admitone.analytics.port import (
    NOTHING_READ,
    CountedBatch,
    Delta,
    PartitionRead,
    SourceProgress,
)
from admitone.core.sketches import SketchBytes


def gather_batch(
    table: pa.Table,
    topic_ids: Mapping[str, str],
    marks: Mapping[tuple[str, int], int],
    counted_at: int,
) -> CountedBatch:
    """Put progress and deltas of all tasks together; marks are those the batch was counted from."""
    reads: dict[tuple[str, int], list[int]] = {}
    sources: dict[tuple[int, int], SourceProgress] = {}
    deltas: list[Delta] = []
    candidates: dict[tuple[str, str], list[frozenset[str]]] = defaultdict(list)
    for kind, name, minute, sketch, summary, meta in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        if kind == "delta":
            deltas.append(Delta(name, minute, SketchBytes(sketch, summary, meta)))
        elif kind == "read":
            partition, last, *counters = orjson.loads(meta)
            read = reads.setdefault((name, partition), [NOTHING_READ, 0, 0, 0])
            read[0] = max(read[0], last)
            read[1:] = [sum(pair) for pair in zip(read[1:], counters, strict=True)]
        elif kind == "source":
            producer, partition, stream_time, append_time = orjson.loads(meta)
            before = sources.get((producer, partition), SourceProgress(stream_time, append_time))
            sources[producer, partition] = SourceProgress(
                max(before.stream_time, stream_time), max(before.append_time, append_time)
            )
        else:
            attribute, *values = orjson.loads(meta)
            candidates[name, attribute].append(frozenset(values))
    return CountedBatch(
        reads=[
            PartitionRead(
                topic,
                topic_ids[topic],
                partition,
                marks.get((topic, partition), NOTHING_READ),
                *read,
            )
            for (topic, partition), read in reads.items()
        ],
        sources=sources,
        deltas=deltas,
        counted_at=counted_at,
        candidates=candidates,
    )
