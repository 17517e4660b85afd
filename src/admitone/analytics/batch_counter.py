"""The driver's part of counting a batch, without Spark: the plan before, and what is committed after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

import orjson
import pyarrow as pa

from admitone.analytics import counting_parameters, item_rules
from admitone.analytics.active_sources import newest_spans
from admitone.analytics.counting import DELTA_SCHEMA, CountingPlan, build_deltas, count_batches
from admitone.analytics.port import (
    NOTHING_READ,
    CountedBatch,
    Delta,
    PartitionRead,
    Place,
    SketchStore,
)
from admitone.analytics.store_state import SourceProgress
from admitone.core.replay_filter import Progress, Reached, Upstream
from admitone.core.sketches import SketchBytes
from admitone.settings import Settings

T = TypeVar("T")

Ends = Mapping[str, Mapping[int, int]]
"""The next offset after a batch, by topic name and partition."""


class BatchCounter:
    """Makes what workers need before a batch, and what the store keeps after it."""

    def __init__(
        self, store: SketchStore, settings: Settings, topic_ids: Mapping[str, str]
    ) -> None:
        self.parameters = counting_parameters(settings)
        self._store = store
        self._rules = item_rules(settings)
        self._ids = dict(topic_ids)
        self._names = {topic_id: name for name, topic_id in topic_ids.items()}
        self._filtered = frozenset(t.topic for t in settings.topics if t.filter_replays)

    def plan(self) -> CountingPlan:
        """Return what workers need to know: marks and kept values as they are now."""
        return CountingPlan(
            rules=self._rules,
            marks=self._by_name(self._store.marks()),
            kept=self._store.kept_values(),
            lateness=self.parameters.lateness,
            idle_after=self.parameters.idle_after,
            max_values=self.parameters.max_values,
            filtered=self._filtered,
            upstream=self._by_name(self._store.upstream_marks()),
        )

    def count(
        self, plan: CountingPlan, records: Iterable[pa.RecordBatch], counted_at: int
    ) -> pa.Table:
        """Count records in this process, as workers would."""
        deltas = build_deltas(self.parameters.sketch, counted_at, count_batches(plan, records))
        return pa.Table.from_batches(deltas, DELTA_SCHEMA)

    def gather(
        self, plan: CountingPlan, deltas: pa.Table, counted_at: int, ends: Ends
    ) -> CountedBatch:
        """Return what the store is asked to keep."""
        return gather_batch(deltas, self._ids, plan.marks, counted_at, ends)

    def _by_name(self, by_id: Mapping[tuple[str, int], T]) -> dict[tuple[str, int], T]:
        return {
            (self._names[topic_id], partition): value
            for (topic_id, partition), value in by_id.items()
            if topic_id in self._names
        }


def gather_batch(
    table: pa.Table,
    topic_ids: Mapping[str, str],
    marks: Mapping[tuple[str, int], int],
    counted_at: int,
    ends: Ends,
) -> CountedBatch:
    """Put progress and deltas of all tasks together; marks are those the batch was counted from.

    Marks move up to the batch's ends, by topic name and partition, even where the last offsets hold no record.
    """
    reads: dict[tuple[str, int], list[int]] = {}
    sources: dict[tuple[int, int], SourceProgress] = {}
    spans: list[tuple[int, int]] = []
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
            producer, partition, *times = orjson.loads(meta)
            before = sources.get((producer, partition), times)
            sources[producer, partition] = SourceProgress(*map(max, before, times))
        elif kind == "span":
            span, block = orjson.loads(meta)
            spans.append((span, block))
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
            PartitionRead(topic, topic_ids[topic], partition, marks.get(place, NOTHING_READ), *read)
            for place, read in reads.items()
            for topic, partition in [place]
        ],
        sources=sources,
        spans=newest_spans(spans),
        deltas=deltas,
        counted_at=counted_at,
        candidates=candidates,
        upstream=upstream,
    )
