"""How far behind the queries are, from the log's ends and the marks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from typing_extensions import TypedDict

from admitone.analytics import open_sketch_reader
from admitone.analytics.store_state import Mark
from admitone.core.contract import Checked
from admitone.core.decisions import BlockState
from admitone.core.errors import NotFound
from admitone.evidence.topic_check import check_topics
from admitone.ledger import open_ledger_reader
from admitone.ledger.model import UpstreamInfo
from admitone.settings import Settings
from admitone.spark.checkpoints import StateFigures, committed_ends, read_figures, state_checkpoint
from admitone.transport import open_transport
from admitone.transport.port import Topic
from admitone.transport.topic_contract import dedup_contracts, destination_contracts, raw_contract


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: how far its reader came, and how far the log goes."""

    topic: str
    partition: int
    done: int
    end: int
    records: int = 0
    """How many it got through: fewer than offsets where transactions leave their marks on the log."""

    @property
    def behind(self) -> int:
        """Return how many offsets are waiting, which is how many records at most."""
        return self.end - self.done


class _Reached(NamedTuple):
    """The next offset of a reader, None where it never read, and how many records it got through."""

    offset: int | None
    records: int


class Replays(TypedDict):
    """What a reader was given again by the producers of what it reads."""

    replayed: int
    order_violations: int


class Waiting(TypedDict):
    """How much waits for its decision, to be counted, to be settled, to be found out, or for its evidence."""

    undecided: int
    uncounted: int
    in_flight: int
    ambiguous: int
    pending_evidence: int


@dataclass(frozen=True, slots=True)
class QueryLag:
    """What waits for one query; only one that decides on the ledger has more than its partitions."""

    partitions: tuple[PartitionLag, ...]
    in_flight: int = 0
    ambiguous: int = 0
    pending_evidence: int = 0
    re_read: int = 0
    replays: Replays = field(default_factory=lambda: _replays([]))
    figures: StateFigures = field(default_factory=StateFigures)
    """What engine state says about itself (DED-9)."""

    @property
    def waiting(self) -> int:
        """Return how many records wait to be decided or counted."""
        return sum(partition.behind for partition in self.partitions)

    @property
    def done(self) -> int:
        """Return how many records of the present topics are decided or counted."""
        return sum(partition.records for partition in self.partitions)

    @property
    def idle(self) -> bool:
        """Tell whether nothing is left to do."""
        return not (self.waiting or self.in_flight or self.pending_evidence)


@dataclass(frozen=True, slots=True)
class Lag:
    """Everything that waits for a query, a worker or an operator."""

    boundary: QueryLag
    analytics: QueryLag
    dedup: QueryLag | None
    """The dedup pipeline on the ledger, where it ever ran."""
    state: QueryLag | None
    """The dedup pipeline on engine state, where it ever ran."""
    drift: tuple[Checked, ...]
    """Topics that are not as agreed."""

    @property
    def queries(self) -> tuple[tuple[str, tuple[PartitionLag, ...]], ...]:
        """Return the partitions that each query reads, by its name."""
        named = {"dedup": self.dedup, "dedup on state": self.state}
        return (
            ("boundary", self.boundary.partitions),
            ("analytics", self.analytics.partitions),
            *((name, lag.partitions) for name, lag in named.items() if lag is not None),
        )

    def waiting(self) -> Waiting:
        """Return how much waits, as the interface spells it."""
        return {
            "undecided": self.boundary.waiting,
            "uncounted": self.analytics.waiting,
            "in_flight": self.boundary.in_flight,
            "ambiguous": self.boundary.ambiguous,
            "pending_evidence": self.boundary.pending_evidence,
        }

    def idle(
        self, *, boundary: bool, analytics: bool, dedup: bool = False, state: bool = False
    ) -> bool:
        """Tell whether the chosen queries have nothing left to do."""
        lags = (self.boundary, self.analytics, self.dedup, self.state)
        chosen = zip(lags, (boundary, analytics, dedup, state), strict=True)
        return all(lag is not None and lag.idle for lag, wanted in chosen if wanted)


class LagMeter:
    """Measures again and again without opening its stores each time.

    It looks whether what is left of a partition holds any record at all, unless a query reads it anyway.
    """

    def __init__(self, settings: Settings, *, look: bool = True) -> None:
        self._settings = settings
        self._look = look
        self._transport = open_transport(settings)
        self._ledger = open_ledger_reader(settings)
        self._counts = open_sketch_reader(settings)
        self._seen: dict[tuple[str, int], PartitionLag] = {}
        self._reached: dict[tuple[str, int, int, int], int] = {}
        self._drift: tuple[Checked, ...] = ()
        self._drift_due = time.monotonic()

    def measure(self) -> Lag:
        """Return how far behind the queries are now."""
        # Readers before the log: then a record that arrives in between counts as waiting.
        sources, upstreams = self._ledger.sources(), self._ledger.upstreams()
        marks = self._counts.state().marks
        counted = {
            (mark.topic_id, mark.partition): _Reached(mark.offset + 1, mark.counted)
            for mark in marks
        }
        unsettled = self._ledger.blocks(states=[BlockState.IN_FLIGHT, BlockState.AMBIGUOUS])

        def deciding(pipeline: str, topic: str) -> QueryLag:
            """Return how far a pipeline on the ledger is."""
            owned = {info.source: info for info in sources if info.pipeline == pipeline}
            left = Counter[BlockState]()
            for block in unsettled:
                left[block.state] += block.deliveries if block.source in owned else 0
            reached = {
                (info.topic_id, source.partition): _Reached(info.next_offset, info.decided)
                for source, info in owned.items()
            }
            return QueryLag(
                self._partitions(topic, reached),
                left[BlockState.IN_FLIGHT],
                left[BlockState.AMBIGUOUS],
                len(self._ledger.pending_evidence(pipeline)),
                sum(info.re_read for info in owned.values()),
                _replays([seen for seen in upstreams if seen.source in owned]),
            )

        settings = self._settings
        has_dedup = any(info.pipeline == settings.dedup_pipeline for info in sources)
        admitted = (self._partitions(entry.topic, counted) for entry in settings.topics)
        return Lag(
            deciding(settings.pipeline.name, settings.transport.raw_topic),
            QueryLag(tuple(chain.from_iterable(admitted)), replays=_replays(marks)),
            deciding(settings.dedup_pipeline, settings.dedup_source) if has_dedup else None,
            self._state(),
            self._drifted(dedup_runs=has_dedup),
        )

    def _state(self) -> QueryLag | None:
        """Return how far the dedup pipeline on engine state is; None where it never ran."""
        name = self._settings.dedup_source
        found = self._transport.describe([name]).get(name)
        if found is None:
            return None
        checkpoint = state_checkpoint(self._settings, found.topic)
        done = committed_ends(checkpoint)
        if done is None:
            return None
        ends = done.get(name, done.get(found.topic.topic_id, {}))
        reached = {
            (found.topic.topic_id, number): _Reached(end, end) for number, end in ends.items()
        }
        return QueryLag(self._partitions(name, reached), figures=read_figures(checkpoint))

    def _drifted(self, *, dedup_runs: bool) -> tuple[Checked, ...]:
        """Return the topics that are not as agreed, without those that the first start makes."""
        if time.monotonic() >= self._drift_due:
            wanted = self._settings.transport
            contracts = [raw_contract(self._settings), *destination_contracts(self._settings)]
            if dedup_runs:
                contracts += dedup_contracts(self._settings)
            self._drift = tuple(
                checked
                for checked in check_topics(contracts, self._ledger, self._transport)
                if not (checked.as_agreed or (checked.is_new and wanted.create_topics))
            )
            self._drift_due = time.monotonic() + wanted.check_interval / 1_000
        return self._drift

    def _partitions(
        self, name: str, reached: dict[tuple[str, int], _Reached]
    ) -> tuple[PartitionLag, ...]:
        try:
            topic = self._transport.topic(name)
            starts = self._transport.starts(topic)
            ends = self._transport.ends(topic, readable=True)
        except NotFound:
            return ()
        found = []
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            offset, records = reached.get((topic.topic_id, number), _Reached(None, 0))
            lag = PartitionLag(name, number, start if offset is None else offset, end, records)
            moved = self._seen.get((name, number), lag) != lag
            self._seen[name, number] = lag
            look = self._look and lag.behind and lag.done >= start and not moved
            found.append(self._looked_at(topic, lag) if look else lag)
        return tuple(found)

    def _looked_at(self, topic: Topic, lag: PartitionLag) -> PartitionLag:
        """Return how far a reader came, counting what is no record: transactions leave markers behind."""
        key = (topic.topic_id, lag.partition, lag.done, lag.end)
        if key not in self._reached:
            self._reached = {
                kept: reached for kept, reached in self._reached.items() if kept[:2] != key[:2]
            }
            self._reached[key] = self._transport.next_record(
                topic, lag.partition, lag.done, lag.end
            )
        return replace(lag, done=self._reached[key])


def _replays(seen: Sequence[UpstreamInfo] | Sequence[Mark]) -> Replays:
    return {
        "replayed": sum(one.replayed for one in seen),
        "order_violations": sum(one.order_violations for one in seen),
    }
