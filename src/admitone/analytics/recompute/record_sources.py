"""Where admitted records can be had once more: the log, read by several processes, or the archive."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from admitone.analytics.batch_counter import BatchCounter
from admitone.analytics.counting import DELTA_SCHEMA, CountingPlan, build_deltas, count_batches
from admitone.analytics.port import (
    NOTHING_READ,
    CountedBatch,
    PartitionRead,
    Place,
    SketchStore,
)
from admitone.analytics.recompute.archive import archived_records
from admitone.analytics.store_state import Mark
from admitone.core.errors import IntegrityError
from admitone.core.replay_filter import Progress, Reached, Upstream
from admitone.core.sketches import SketchParameters
from admitone.evidence.evidence_store import EvidenceStore
from admitone.infra.clock import wall_clock
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport import open_transport
from admitone.transport.port import Topic, Transport

Marks = Mapping[Place, int]
"""The last counted offset by topic id and partition."""
Report = Callable[[str, int], None]
"""Told what is going on, and how many records were counted so far."""

_OFFSETS_AT_ONCE: Final = 100_000
_WORTH_A_POOL: Final = 200_000


class _Part(NamedTuple):
    """A stretch of one partition."""

    topic: Topic
    partition: int
    start: int
    end: int


class FromLog:
    """Reads the log from its beginning; each batch is a stretch of every partition, counted at the same time."""

    def __init__(self, settings: Settings, transport: Transport) -> None:
        self._settings = settings
        self._transport = transport
        names = [entry.topic for entry in settings.topics]
        found = transport.describe(names)
        self._topics = {state.topic.topic_id: state.topic for state in found.values()}

    def target(self, live: SketchStore) -> Marks:
        """Return up to where to count: where the live store is, or the end where it has nothing."""
        marks = {place: offset for place, offset in live.marks().items() if offset != NOTHING_READ}
        self._refuse_gaps(marks)
        if marks:
            return marks
        return {
            (topic.topic_id, partition): end - 1
            for topic in self._topics.values()
            for partition, end in enumerate(self._transport.ends(topic, readable=True))
            if end
        }

    def count(self, into: SketchStore, live: SketchStore, target: Marks, report: Report) -> None:
        """Count what lies between a store's marks and the target."""
        ids = {topic.name: topic.topic_id for topic in self._topics.values()}
        counting = BatchCounter(into, self._settings, ids)
        left = sum(part.end - part.start for part in self._missing(into, target))
        with _processes(left) as count_parts:
            while parts := list(self._next_parts(into, target)):
                plan, now = counting.plan(), wall_clock()
                work = [
                    (self._settings, plan, counting.parameters.sketch, now, part) for part in parts
                ]
                deltas = pa.concat_tables(count_parts(work))
                ends: dict[str, dict[int, int]] = defaultdict(dict)
                for part in parts:
                    ends[part.topic.name][part.partition] = part.end
                into.commit(counting.gather(plan, deltas, now, ends))
                report("counting", sum(mark.counted for mark in into.state().marks))

    def _missing(self, into: SketchStore, target: Marks) -> Iterator[_Part]:
        marks = into.marks()
        for (topic_id, partition), last in target.items():
            start = marks.get((topic_id, partition), NOTHING_READ) + 1
            if start <= last:
                yield _Part(self._topics[topic_id], partition, start, last + 1)

    def _next_parts(self, into: SketchStore, target: Marks) -> Iterator[_Part]:
        for part in self._missing(into, target):
            yield part._replace(end=min(part.end, part.start + _OFFSETS_AT_ONCE))

    def _refuse_gaps(self, marks: Marks) -> None:
        for topic_id, _ in marks:
            if topic_id not in self._topics:
                raise _not_enough("A topic that was counted is gone or was recreated")
        for topic in self._topics.values():
            for partition, start in enumerate(self._transport.starts(topic)):
                if start > 0:
                    raise _not_enough(
                        f"The first {start} offsets of partition {partition} of {topic.name!r} were removed"
                    )


class FromArchive:
    """Reads the archive, whatever became of the log; progress is the live store's, where it has any."""

    def __init__(self, settings: Settings, ledger: LedgerReader, store: EvidenceStore) -> None:
        self._settings = settings
        self._ledger = ledger
        self._store = store
        self._topics = {entry.topic for entry in settings.topics}

    def target(self, live: SketchStore) -> Marks:
        """Return up to where to count; an empty store has no limit."""
        return live.marks()

    def count(self, into: SketchStore, live: SketchStore, target: Marks, report: Report) -> None:
        """Count what lies between a store's marks and the target."""
        begun = into.marks()
        if begun and begun == (target or begun):
            return
        counting = BatchCounter(into, self._settings, {name: name for name in self._topics})
        plan = replace(counting.plan(), marks={}, upstream={}, filtered=frozenset())
        sources, spans = live.sources(), live.spans()
        reached = _Reached()
        for records in archived_records(self._ledger, self._store, self._topics):
            chosen = reached.add(_within(records, begun, target))
            now = wall_clock()
            deltas = counting.count(plan, chosen.to_batches(), now)
            batch = counting.gather(plan, deltas, now, {})
            if sources:
                batch = replace(batch, sources=sources, spans=spans)
            into.commit(replace(batch, reads=[], upstream={}))
            report("counting", reached.records)
        now = wall_clock()
        reads = reached.reads(begun, target, live.state().marks)
        # Only the log knows which producer wrote what to it, or a store that has read it.
        into.commit(CountedBatch(reads, sources, [], now, spans=spans, upstream=_moved(into, live)))


RecordSource = FromLog | FromArchive


class _Reached:
    """How far each partition of each incarnation of a topic was read."""

    def __init__(self) -> None:
        self.records = 0
        self._marks: dict[Place, Mark] = {}

    def add(self, records: pa.Table) -> pa.Table:
        """Note some records, and return them as a log would."""
        self.records += records.num_rows
        ends = records.group_by(["topic", "topic_id", "partition"]).aggregate(
            [("offset", "max"), ("offset", "count")]
        )
        for row in ends.to_pylist():
            place = (row["topic_id"], row["partition"])
            before = self._marks.get(place, Mark(row["topic"], *place, NOTHING_READ))
            self._marks[place] = before._replace(
                offset=max(before.offset, row["offset_max"]),
                counted=before.counted + row["offset_count"],
            )
        return records.drop_columns(["topic_id"])

    def reads(self, begun: Marks, target: Marks, live: Iterable[Mark]) -> list[PartitionRead]:
        """Return the marks to set: the target's, or how far the archive goes where there is no target."""
        found = []
        for mark in [
            m for m in live if (m.topic_id, m.partition) in target
        ] or self._marks.values():
            place = (mark.topic_id, mark.partition)
            before = begun.get(place, NOTHING_READ)
            # The live store may have gone on since the target was set; and no mark ever moves back.
            last = max(before, target.get(place, mark.offset))
            counted = self._marks[place].counted if place in self._marks else 0
            found.append(PartitionRead(mark.topic, *place, before, last, counted, 0, 0))
        return found


def _not_enough(what: str) -> IntegrityError:
    return IntegrityError(
        f"{what}, so the log alone does not give the same answers.",
        "admitone recompute --from-archive",
    )


def _within(records: pa.Table, begun: Marks, target: Marks) -> pa.Table:
    """Return the records above some marks, and up to others where there are any."""
    places = list(
        zip(records["topic_id"].to_pylist(), records["partition"].to_pylist(), strict=True)
    )
    above = pa.array([begun.get(place, NOTHING_READ) for place in places], pa.int64())
    chosen = pc.greater(records["offset"], above)
    if target:
        limit = pa.array([target.get(place, NOTHING_READ) for place in places], pa.int64())
        chosen = pc.and_(chosen, pc.less_equal(records["offset"], limit))
    return records.filter(chosen)


def _moved(into: SketchStore, live: SketchStore) -> Mapping[Place, Mapping[Upstream, Progress]]:
    """Return what brings the marks of replays to where the live store has them."""
    known = into.upstream_marks()
    return {
        place: {
            upstream: Progress(known.get(place, {}).get(upstream, Reached()), after, 0, 0)
            for upstream, after in seen.items()
        }
        for place, seen in live.upstream_marks().items()
    }


_Work = tuple[Settings, CountingPlan, SketchParameters, int, _Part]


def _count_part(work: _Work) -> pa.Table:
    settings, plan, parameters, now, (topic, partition, start, end) = work
    transport = open_transport(settings)
    try:
        counted = count_batches(plan, transport.read(topic, partition, start, end))
        return pa.Table.from_batches(build_deltas(parameters, now, counted), DELTA_SCHEMA)
    finally:
        transport.close()


@contextmanager
def _processes(offsets: int) -> Iterator[Callable[[Iterable[_Work]], Iterable[pa.Table]]]:
    """Count parts in as many processes as there are cores, or in this one where it is not worth it."""
    if offsets < _WORTH_A_POOL:
        yield partial(map, _count_part)
        return
    # Spawned, not forked: connections that are open here do not survive a fork.
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        yield partial(pool.map, _count_part)
