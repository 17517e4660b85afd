"""How far behind the queries are, from the log's ends and the marks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from admitone.analytics.open import open_sketch_reader
from admitone.analytics.port import Mark
from admitone.core.contract import Checked
from admitone.core.decisions import BlockState
from admitone.core.errors import NotFound
from admitone.evidence.contract import check_topics
from admitone.ledger.open import open_ledger
from admitone.ledger.port import UpstreamInfo
from admitone.settings import Settings
from admitone.transport.contract import destination_contracts, raw_contract
from admitone.transport.open import open_transport
from admitone.transport.port import Topic


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


class Replays(NamedTuple):
    """What a reader was given again by those who write what it reads."""

    replayed: int = 0
    order_violations: int = 0


_NO_REPLAYS = Replays()


@dataclass(frozen=True, slots=True)
class Lag:
    """Everything that is waiting for somebody."""

    raw: tuple[PartitionLag, ...]
    admitted: tuple[PartitionLag, ...]
    in_flight: int
    ambiguous: int
    pending_evidence: int
    re_read: int
    drift: tuple[Checked, ...] = ()
    """Topics that are not as agreed."""
    raw_replays: Replays = _NO_REPLAYS
    admitted_replays: Replays = _NO_REPLAYS

    @property
    def undecided(self) -> int:
        """Return how many deliveries wait for their decision."""
        return sum(partition.behind for partition in self.raw)

    @property
    def decided(self) -> int:
        """Return how many deliveries of the present raw topic are decided."""
        return sum(partition.records for partition in self.raw)

    @property
    def counted(self) -> int:
        """Return how many records of the present admitted topics are counted."""
        return sum(partition.records for partition in self.admitted)

    @property
    def uncounted(self) -> int:
        """Return how many admitted records wait to be counted."""
        return sum(partition.behind for partition in self.admitted)

    def idle(self, *, boundary: bool, analytics: bool) -> bool:
        """Tell whether the chosen queries have nothing left to do."""
        decided = self.undecided == 0 and self.in_flight == 0 and self.pending_evidence == 0
        return (decided or not boundary) and (self.uncounted == 0 or not analytics)


class LagMeter:
    """Measures again and again without opening its stores each time.

    It looks whether what is left of a partition holds any record at all, unless somebody reads it anyway.
    """

    def __init__(self, settings: Settings, *, look: bool = True) -> None:
        self._settings = settings
        self._look = look
        self._transport = open_transport(settings)
        self._ledger = open_ledger(settings)
        self._counts = open_sketch_reader(settings)
        self._seen: dict[tuple[str, int], PartitionLag] = {}
        self._reached: dict[tuple[str, int, int, int], int] = {}
        self._drift: tuple[Checked, ...] = ()
        self._drift_due = time.monotonic()

    def measure(self) -> Lag:
        """Return how far behind the queries are now."""
        # Readers before the log: then a record that arrives in between counts as waiting.
        mine = self._settings.pipeline.name
        sources = [info for info in self._ledger.sources() if info.pipeline == mine]
        owned = {info.source for info in sources}
        decided = {
            (info.topic_id, info.source.partition): _Reached(info.next_offset, info.decided)
            for info in sources
        }
        upstreams = [seen for seen in self._ledger.upstreams() if seen.source in owned]
        marks = self._counts.state().marks
        counted = {
            (mark.topic_id, mark.partition): _Reached(mark.offset + 1, mark.counted)
            for mark in marks
        }
        unsettled = [
            block
            for block in self._ledger.blocks(states=[BlockState.IN_FLIGHT, BlockState.AMBIGUOUS])
            if block.source in owned
        ]
        pending = len(self._ledger.pending_evidence(mine))
        return Lag(
            self._partitions(self._settings.transport.raw_topic, decided),
            tuple(
                partition
                for entry in self._settings.topics
                for partition in self._partitions(entry.topic, counted)
            ),
            sum(block.deliveries for block in unsettled if block.state is BlockState.IN_FLIGHT),
            sum(block.deliveries for block in unsettled if block.state is BlockState.AMBIGUOUS),
            pending,
            sum(info.re_read for info in sources),
            self._drifted(),
            _replays(upstreams),
            _replays(marks),
        )

    def _drifted(self) -> tuple[Checked, ...]:
        """Return the topics that are not as agreed, without those that the first start makes."""
        if time.monotonic() >= self._drift_due:
            wanted = self._settings.transport
            contracts = (raw_contract(self._settings), *destination_contracts(self._settings))
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
            starts, ends = (
                self._transport.starts(topic),
                self._transport.ends(topic, readable=True),
            )
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
    return Replays(sum(one.replayed for one in seen), sum(one.order_violations for one in seen))
