"""From admitted records to one delta per minute and list: two pure functions over Arrow batches.

`count_batches` runs where the records are, one task per partition: it drops re-reads and replays, maps
events to items and sums them in dictionaries. `build_deltas` runs after its rows were brought together by
minute and list, and turns the sums into sketches. Between them travels one row per (list, minute),
not one per item:

    kind     name        minute   payload (JSON)
    count    a list      minute   {item: weight}
    late     a list      minute   weight
    read     a topic     -        partition, last offset, counted, re-read, skipped
    source   -           -        producer id, source partition, stream time, append time
    upstream a topic     -        partition, producer id, source partition, before and after, replayed, violations
    values   dimension   -        attribute, the new values a task reported before it ran out
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from admitone.analytics.port import NOTHING_READ, KeptValues, Place, UpstreamMarks
from admitone.analytics.records import (
    MISSING,
    Flags,
    Stretch,
    above_marks,
    append_times,
    header_numbers,
    source_progress,
)
from admitone.core.countmin import Cells
from admitone.core.items import OTHER, ItemRule, Reading, list_name
from admitone.core.metadata import positions_of
from admitone.core.replay_filter import Kind, Progress, Upstream, filter_replays
from admitone.core.sketches import SketchParameters, WindowSketch
from admitone.core.windows import BEGINNING, END, MINUTE_MS

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
_ROWS_PER_BATCH: Final = 500
_REPORTED_VALUES: Final = 4
"""How many times `max_values` new values a task reports of one attribute."""

HEADERS_READ: Final = ("stream-time", "event-time")
"""The headers of an admitted record that counting needs."""


@dataclass(frozen=True, slots=True)
class CountingPlan:
    """What a task needs to know; it is sent to workers with every batch."""

    rules: tuple[ItemRule, ...]
    marks: Mapping[tuple[str, int], int]
    kept: Mapping[tuple[str, str], KeptValues]
    lateness: int
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
    cells = _CellTable(parameters)
    for place in sums.keys() | late.keys():
        sketch = WindowSketch(parameters)
        counts = _summed(sums.get(place, ()))
        sketch.update(counts, *cells.of(counts))
        sketch.late = late.get(place, 0)
        sketch.updated_at = counted_at
        rows.append(("delta", *place, *sketch.to_bytes()))
        if len(rows) >= _ROWS_PER_BATCH:
            yield _batch(rows, DELTA_SCHEMA)
            rows = []
    yield _batch(rows, DELTA_SCHEMA)


class _Task:
    """The sums of one task."""

    def __init__(self, plan: CountingPlan) -> None:
        self._plan = plan
        self._rules: dict[str, list[tuple[int, Callable[[Any], Reading | None]]]] = {}
        for number, rule in enumerate(plan.rules):
            self._rules.setdefault(rule.event_type, []).append((number, rule.reader()))
        self._counts: dict[tuple[str, int], dict[str, int]] = {}
        self._late: dict[tuple[str, int], int] = defaultdict(int)
        self._targets: dict[tuple[int, int, tuple[str | None, ...]], list[dict[str, int]]] = {}
        self._reads: dict[tuple[str, int], list[int]] = {}
        self._sources: dict[tuple[int, int], tuple[int, int]] = {}
        self._upstream = {place: dict(marks) for place, marks in plan.upstream.items()}
        self._moved: dict[Place, dict[Upstream, Progress]] = {}
        self._reported: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._overflowed: set[tuple[str, str]] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Count one batch."""
        fresh, seen = above_marks(batch, self._plan.marks, NOTHING_READ)
        positions = positions_of(batch.column("key"), batch.column("headers"))
        for stretch, _, _ in seen:
            if stretch.topic in self._plan.filtered:
                self._drop_replays(positions, stretch, fresh)
        streams, events = header_numbers(batch.column("headers"), HEADERS_READ)
        readable = fresh & (streams != MISSING) & (events >= BEGINNING) & (events < END)
        readable[readable] = self._count(batch, readable, streams, events)
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
            appended = append_times(batch)[readable]
            source_progress(
                positions.filter(pa.array(readable)), streams[readable], appended, self._sources
            )

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

    def _count(self, batch: pa.RecordBatch, rows: Any, streams: Any, events: Any) -> list[bool]:
        values = batch.column("value").filter(pa.array(rows)).to_pylist()
        minutes = events[rows] // MINUTE_MS * MINUTE_MS
        # Late at exactly end + lateness: see `folding.is_late`.
        late = streams[rows] >= minutes + MINUTE_MS + self._plan.lateness
        rules, targets = self._rules, self._targets
        loads = orjson.loads
        understood = []
        for value, minute, is_late in zip(values, minutes.tolist(), late.tolist(), strict=True):
            try:
                envelope = loads(value)
                payload = envelope["payload"]
                for number, read in rules.get(envelope["metadata"]["eventType"], ()):
                    found = read(payload)
                    if found is None:
                        continue
                    key, attributes, weight = found
                    if is_late:
                        for name in self._lists(number, attributes):
                            self._late[name, minute] += weight
                        continue
                    place = (number, minute, attributes)
                    counters = targets.get(place)
                    if counters is None:
                        counters = targets[place] = self._counters(number, minute, attributes)
                    for counts in counters:
                        counts[key] = counts.get(key, 0) + weight
                understood.append(True)
            except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
                understood.append(False)
        return understood

    def _counters(
        self, number: int, minute: int, values: tuple[str | None, ...]
    ) -> list[dict[str, int]]:
        return [self._counts.setdefault((name, minute), {}) for name in self._lists(number, values)]

    def _lists(self, number: int, values: tuple[str | None, ...]) -> list[str]:
        rule = self._plan.rules[number]
        names = [rule.dimension]
        for attribute, value in zip(rule.group_by, values, strict=True):
            if value is not None:
                kept = self._kept_value(rule.dimension, attribute, value)
                names.append(list_name(rule.dimension, attribute, kept))
        return names

    def _kept_value(self, dimension: str, attribute: str, value: str) -> str:
        """Return the value whose list counts this one; see `analytics.values`."""
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
        """Return how many sums are held."""
        return sum(map(len, self._counts.values()))

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Hand over the sums and begin again."""
        rows = [("count", *place, orjson.dumps(c)) for place, c in self._counts.items() if c]
        rows += [("late", *place, orjson.dumps(weight)) for place, weight in self._late.items()]
        self._counts.clear()
        self._late.clear()
        self._targets.clear()
        if rows:
            yield _batch(rows, PARTIAL_SCHEMA)

    def progress(self) -> Iterator[pa.RecordBatch]:
        """Hand over how far the task came."""
        rows: list[tuple[Any, ...]] = [
            ("read", topic, 0, orjson.dumps([partition, *read]))
            for (topic, partition), read in self._reads.items()
        ]
        rows += [
            ("source", "", 0, orjson.dumps([*source, *times]))
            for source, times in self._sources.items()
        ]
        rows += [
            ("upstream", topic, 0, orjson.dumps([partition, *upstream, *before, *after, *counts]))
            for (topic, partition), moved in self._moved.items()
            for upstream, (before, after, *counts) in moved.items()
        ]
        rows += [
            (
                "values",
                dimension,
                0,
                orjson.dumps([attribute, *self._reported[dimension, attribute]]),
            )
            for dimension, attribute in self._overflowed
        ]
        if rows:
            yield _batch(rows, PARTIAL_SCHEMA)


class _CellTable:
    """Cells and hash of every item of a task, computed once however many lists it is in."""

    def __init__(self, parameters: SketchParameters) -> None:
        self._width = parameters.width
        self._depth = parameters.depth
        self._rows: dict[str, int] = {}
        self._cells: Cells = np.zeros((1024, parameters.depth), np.int64)
        self._hashes: list[int] = []

    def of(self, items: Iterable[str]) -> tuple[Cells, list[int]]:
        """Return the cells (one row each) and the distinct hashes of some items."""
        known = self._rows
        rows = [known[item] if item in known else self._learn(item) for item in items]
        return self._cells[rows], [self._hashes[row] for row in rows]

    def _learn(self, item: str) -> int:
        row = self._rows[item] = len(self._hashes)
        if row == len(self._cells):
            self._cells = np.concatenate([self._cells, np.zeros_like(self._cells)])
        encoded = item.encode()
        digests = [xxhash.xxh3_64_intdigest(encoded, seed) for seed in range(self._depth)]
        self._cells[row] = [seed * self._width + d % self._width for seed, d in enumerate(digests)]
        # The first row's seed is 0, which is also what the distinct count hashes with.
        self._hashes.append(digests[0] - (1 << 63))
        return row


def _summed(payloads: Iterable[bytes]) -> dict[str, int]:
    total: dict[str, int] = {}
    for payload in payloads:
        counts = orjson.loads(payload)
        if len(counts) > len(total):
            total, counts = counts, total
        for item, weight in counts.items():
            total[item] = total.get(item, 0) + weight
    return total


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
