"""From admitted records to one sketch per minute and list: pure functions over Arrow batches, run by workers.

`count_batches` runs where the records are, one task per partition: it drops re-reads and replays, maps events to
items and sums them, by the column. `build_deltas` runs after its rows were brought together by minute and list, and
turns the sums into sketches. Between them travels one row per (list, minute), not one per item:

    kind     name        minute   payload (JSON)
    count    a list      minute   {item: weight}
    late     a list      minute   weight
    read     a topic     -        partition, last offset, counted, re-read, skipped
    source   -           -        producer id, source partition, stream time, append time, last block
    span     -           -        a span of the ledger's clock, and the last block claimed in it
    upstream a topic     -        partition, producer id, source partition, before and after, replayed, violations
    values   dimension   -        attribute, the new values a task reported before it ran out
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from admitone.analytics.active_sources import NO_BLOCK, newest_spans, spans_in
from admitone.analytics.admitted_records import (
    MISSING,
    Flags,
    Stamps,
    Stretch,
    above_marks,
    append_times,
    positions_in,
    source_progress,
    stamps_in,
)
from admitone.analytics.item_reader import ItemReader, Items
from admitone.analytics.port import NOTHING_READ, KeptValues, Place, UpstreamMarks
from admitone.analytics.store_state import SourceProgress
from admitone.core.items import OTHER, ItemRule, list_name
from admitone.core.replay_filter import Kind, Progress, Upstream, filter_replays
from admitone.core.sketches import ItemHashes, SketchParameters, WindowSketch
from admitone.core.windows import BEGINNING, END, MINUTE_MS
from admitone.core.wire import Longs

PARTIAL_SCHEMA: Final = pa.schema(
    [("kind", pa.string()), ("name", pa.string()), ("minute", pa.int64()), ("payload", pa.binary())]
)

DELTA_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("minute", pa.int64()),
        ("sketch", pa.binary()),
        ("summary", pa.binary()),
        ("meta", pa.binary()),
    ]
)

_FLUSH_ENTRIES: Final = 200_000
_DELTAS_PER_BATCH: Final = 500
_REPORTED_VALUES: Final = 4
"""How many times `max_values` new values a task reports of one attribute."""


@dataclass(frozen=True, slots=True)
class CountingPlan:
    """What a task needs to know; it is sent to workers with every batch."""

    rules: tuple[ItemRule, ...]
    marks: Mapping[tuple[str, int], int]
    kept: Mapping[tuple[str, str], KeptValues]
    lateness: int
    idle_after: int
    max_values: int
    filtered: frozenset[str] = frozenset()
    """The topics whose replays are dropped."""
    upstream: UpstreamMarks = field(default_factory=dict)
    """By topic name and partition."""


def count_batches(
    plan: CountingPlan, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Count the records of one task that lie above the marks."""
    task = _Task(plan)
    for batch in batches:
        if batch.num_rows:
            task.add(batch)
        if task.entries() > _FLUSH_ENTRIES:
            yield from task.flush()
    yield from task.flush()
    yield from task.progress()


class _Task:
    """What one task has read and not handed over yet."""

    def __init__(self, plan: CountingPlan) -> None:
        self._plan = plan
        self._reader = ItemReader(plan.rules)
        self._waiting: dict[int, list[pa.Table]] = defaultdict(list)
        self._late: dict[tuple[str, int], int] = defaultdict(int)
        self._reads: dict[tuple[str, int], list[int]] = {}
        self._sources: dict[tuple[int, int], SourceProgress] = {}
        self._spans: dict[int, int] = {}
        self._upstream = {place: dict(marks) for place, marks in plan.upstream.items()}
        self._moved: dict[Place, dict[Upstream, Progress]] = {}
        self._reported: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._overflowed: set[tuple[str, str]] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count one batch."""
        fresh, seen = above_marks(batch, self._plan.marks, NOTHING_READ)
        positions = positions_in(batch)
        for stretch, _, _ in seen:
            if stretch.topic in self._plan.filtered:
                self._drop_replays(positions, stretch, fresh)
        stamps = stamps_in(batch)
        streams, events = stamps.stream_times, stamps.event_times
        readable = fresh & (streams != MISSING) & (events >= BEGINNING) & (events < END)
        values = batch.column("value").filter(pa.array(readable)).to_pylist()
        understood, items = self._reader.read(values)
        self._sort_out(items, streams[readable], events[readable])
        readable[readable] = understood
        for stretch, highest, re_read in seen:
            counted = int((stretch.rows & readable).sum())
            skipped = int((stretch.rows & fresh).sum()) - counted
            read = self._reads.setdefault(
                (stretch.topic, stretch.partition), [NOTHING_READ, 0, 0, 0]
            )
            read[0] = max(read[0], highest)
            read[1] += counted
            read[2] += re_read
            read[3] += skipped
        if readable.any():
            self._advance(positions, append_times(batch), stamps, readable)

    def _advance(self, positions: Any, appended: Longs, stamps: Stamps, readable: Flags) -> None:
        """Note how far sources came, and when the ledger claimed what was read."""
        numbered = (stamps.claimed_at != MISSING) & (stamps.blocks > NO_BLOCK)
        source_progress(
            positions.filter(pa.array(readable)),
            stamps.stream_times[readable],
            appended[readable],
            np.where(numbered, stamps.blocks, NO_BLOCK)[readable],
            self._sources,
        )
        numbered &= readable
        found = spans_in(
            stamps.claimed_at[numbered], stamps.blocks[numbered], self._plan.idle_after
        )
        self._spans = newest_spans([*self._spans.items(), *found.items()])

    def _drop_replays(self, positions: Any, stretch: Stretch, fresh: Flags) -> None:
        """Take out of the fresh rows of a partition what was written to it before."""
        rows = np.flatnonzero(stretch.rows & fresh)
        place = (stretch.topic, stretch.partition)
        marks = self._upstream.setdefault(place, {})
        found = filter_replays(positions.take(pa.array(rows)), None, marks)
        fresh[rows[found.kinds == Kind.REPLAYED]] = False
        marks.update(found.marks({}))
        moved = self._moved.setdefault(place, {})
        for upstream, progress in found.progress.items():
            earlier = moved.get(upstream)
            moved[upstream] = progress if earlier is None else earlier.then(progress)

    def _sort_out(self, found: Iterable[Items], streams: Longs, events: Longs) -> None:
        """Put late items aside, and the others where they wait to be summed."""
        minutes = events // MINUTE_MS * MINUTE_MS
        # At exactly end + lateness the minute is complete: nothing on time can follow from a partition that is there.
        late = streams >= minutes + MINUTE_MS + self._plan.lateness
        for items in found:
            rule = self._plan.rules[items.rule]
            lists = [
                pa.repeat(rule.dimension, len(items.rows)),
                *map(partial(self._lists, rule.dimension), rule.group_by, items.values),
            ]
            is_late = late[items.rows]
            # Lists by their number: an attribute may be called as one of the other columns.
            table = pa.table(
                [pa.array(minutes[items.rows]), pa.array(items.weights), items.keys, *lists],
                ["minute", "weight", "key", *map(str, range(len(lists)))],
            )
            if is_late.any():
                self._add_late(table.filter(pa.array(is_late)))
                table = table.filter(pa.array(~is_late))
            if table.num_rows:
                self._waiting[items.rule].append(table)

    def _add_late(self, items: pa.Table) -> None:
        for name in items.column_names[3:]:
            sums = items.group_by([name, "minute"]).aggregate([("weight", "sum")])
            for row in sums.to_pylist():
                if row[name] is not None:
                    self._late[row[name], row["minute"]] += row["weight_sum"]

    def _lists(self, dimension: str, attribute: str, values: pa.StringArray) -> pa.StringArray:
        """Return the list each value of an attribute is counted in; none where there is no value."""
        encoded = values.dictionary_encode()
        names = [
            list_name(dimension, attribute, self._kept_value(dimension, attribute, value))
            for value in encoded.dictionary.to_pylist()
        ]
        return pa.array(names, pa.string()).take(encoded.indices)

    def _kept_value(self, dimension: str, attribute: str, value: str) -> str:
        """Return the value whose list counts this one; see `analytics.kept_values`."""
        place = (dimension, attribute)
        kept = self._plan.kept.get(place)
        if kept is not None and (value in kept.values or kept.closed):
            return value if value in kept.values else OTHER
        reported = self._reported[place]
        if value not in reported:
            if len(reported) >= _REPORTED_VALUES * self._plan.max_values:
                self._overflowed.add(place)
                return OTHER
            reported.add(value)
        return value

    def entries(self) -> int:
        """Return how many items wait to be summed."""
        return sum(table.num_rows for waiting in self._waiting.values() for table in waiting)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Hand over the sums and begin again."""
        rows: list[tuple[Any, ...]] = [
            ("late", *place, orjson.dumps(weight)) for place, weight in self._late.items()
        ]
        for waiting in self._waiting.values():
            items = pa.concat_tables(waiting)
            for name in items.column_names[3:]:
                rows += _sums(items, name)
        self._waiting.clear()
        self._late.clear()
        if rows:
            yield _batch_of(rows, PARTIAL_SCHEMA)

    def progress(self) -> Iterator[pa.RecordBatch]:
        """Hand over how far the task came."""
        rows: list[tuple[str, str, list[Any]]] = []
        for (topic, partition), read in self._reads.items():
            rows.append(("read", topic, [partition, *read]))
        for source, times in self._sources.items():
            rows.append(("source", "", [*source, *times]))
        rows += [("span", "", [*span]) for span in self._spans.items()]
        for (topic, partition), moved in self._moved.items():
            for upstream, (before, after, *counts) in moved.items():
                rows.append(("upstream", topic, [partition, *upstream, *before, *after, *counts]))
        for dimension, attribute in self._overflowed:
            values = self._reported[dimension, attribute]
            rows.append(("values", dimension, [attribute, *values]))
        if rows:
            told = [(kind, name, 0, orjson.dumps(payload)) for kind, name, payload in rows]
            yield _batch_of(told, PARTIAL_SCHEMA)


def _sums(items: pa.Table, by: str) -> Iterator[tuple[Any, ...]]:
    """Yield one row for each list and minute: the weight of each item in it."""
    items = items.filter(pc.is_valid(items[by]))
    sums = items.group_by([by, "minute", "key"], use_threads=False).aggregate([("weight", "sum")])
    sums = sums.sort_by([(by, "ascending"), ("minute", "ascending")])
    edges = np.append(np.flatnonzero(_begins(sums, (by, "minute"))), sums.num_rows)
    minutes, names = sums["minute"].to_numpy(), sums[by]
    keys, weights = sums["key"].to_pylist(), sums["weight_sum"].to_pylist()
    for start, end in pairwise(edges.tolist()):
        counts = dict(zip(keys[start:end], weights[start:end], strict=True))
        yield "count", names[start].as_py(), int(minutes[start]), orjson.dumps(counts)


def _begins(sums: pa.Table, places: Iterable[str]) -> Flags:
    """Return which rows of a sorted table begin another list or minute."""
    begins = np.zeros(sums.num_rows, np.bool_)
    begins[:1] = True
    for place in places:
        codes = np.asarray(sums[place].combine_chunks().dictionary_encode().indices)
        begins[1:] |= codes[1:] != codes[:-1]
    return begins


def build_deltas(
    parameters: SketchParameters, counted_at: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Sum equal items and build one sketch per minute and list; progress rows pass through."""
    sums: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    late: dict[tuple[str, int], int] = defaultdict(int)
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        for kind, name, minute, payload in zip(
            *(c.to_pylist() for c in batch.columns), strict=True
        ):
            if kind == "count":
                sums[name, minute].append(payload)
            elif kind == "late":
                late[name, minute] += orjson.loads(payload)
            else:
                rows.append((kind, name, minute, b"", b"", payload))
    hashes = ItemHashes(parameters)
    for place in sums.keys() | late.keys():
        sketch = WindowSketch(parameters)
        sketch.update(_summed(sums.get(place, ())), hashes)
        sketch.late = late.get(place, 0)
        sketch.updated_at = counted_at
        rows.append(("delta", *place, *sketch.to_bytes()))
        if len(rows) >= _DELTAS_PER_BATCH:
            yield _batch_of(rows, DELTA_SCHEMA)
            rows = []
    yield _batch_of(rows, DELTA_SCHEMA)


def _summed(payloads: Iterable[bytes]) -> dict[str, int]:
    total: dict[str, int] = {}
    for payload in payloads:
        counts = orjson.loads(payload)
        if len(counts) > len(total):
            total, counts = counts, total
        for item, weight in counts.items():
            total[item] = total.get(item, 0) + weight
    return total


def _batch_of(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
