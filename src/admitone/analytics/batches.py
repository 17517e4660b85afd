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
    Place,
    SourceProgress,
)
from admitone.core.replay_filter import Progress, Reached, Upstream
from admitone.core.sketches import SketchBytes


def gather_batch(
    table: pa.Table,
    topic_ids: Mapping[str, str],
    marks: Mapping[tuple[str, int], int],
    counted_at: int,
    ends: Mapping[str, Mapping[int, int]],
) -> CountedBatch:
    """Put progress and deltas of all tasks together; marks are those the batch was counted from.

    Marks move up to the batch's ends, by topic name and partition, even where the last offsets hold no record.
    """
    reads: dict[tuple[str, int], list[int]] = {}
    sources: dict[tuple[int, int], SourceProgress] = {}
    deltas: list[Delta] = []
    candidates: dict[tuple[str, str], list[frozenset[str]]] = defaultdict(list)
    upstream: dict[Place, dict[Upstream, Progress]] = defaultdict(dict)
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
        elif kind == "upstream":
            partition, producer, of, *numbers = orjson.loads(meta)
            progress = Progress(Reached(*numbers[:2]), Reached(*numbers[2:4]), *numbers[4:])
            moved = upstream[topic_ids[name], partition]
            earlier = moved.get((producer, of))
            moved[producer, of] = progress if earlier is None else earlier.beside(progress)
        else:
            attribute, *values = orjson.loads(meta)
            candidates[name, attribute].append(frozenset(values))
    for name in ends.keys() & topic_ids.keys():
        for partition, end in ends[name].items():
            if end > marks.get((name, partition), NOTHING_READ) + 1:
                read = reads.setdefault((name, partition), [NOTHING_READ, 0, 0, 0])
                read[0] = max(read[0], end - 1)
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
        upstream=upstream,
    )
