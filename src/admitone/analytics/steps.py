"""The steps of counting a batch that need no Spark: the plan before, and what is committed after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import pyarrow as pa

from admitone.analytics.batches import gather_batch
from admitone.analytics.counting import CountingPlan, count_batches
from admitone.analytics.deltas import DELTA_SCHEMA, build_deltas
from admitone.analytics.open import counting_parameters, item_rules
from admitone.analytics.port import CountedBatch, SketchStore
from admitone.settings import Settings

T = TypeVar("T")

Ends = Mapping[str, Mapping[int, int]]
"""The next offset after a batch, by topic name and partition."""


class Counting:
    """What is the same for every batch that is counted into a store."""

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
        """Put together what the store is asked to keep."""
        return gather_batch(deltas, self._ids, plan.marks, counted_at, ends)

    def _by_name(self, by_id: Mapping[tuple[str, int], T]) -> dict[tuple[str, int], T]:
        return {
            (self._names[topic_id], partition): value
            for (topic_id, partition), value in by_id.items()
            if topic_id in self._names
        }
