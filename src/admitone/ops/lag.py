"""How far behind the queries are, from the log's ends and the marks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from admitone.analytics.open import open_sketch_reader
from admitone.core.decisions import BlockState
from admitone.core.errors import NotFound
from admitone.ledger.open import open_ledger
from admitone.settings import Settings
from admitone.transport.open import open_transport
from admitone.transport.port import Topic


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition: how far its reader came, and how far the log goes."""

    topic: str
    partition: int
    done: int
    end: int

    @property
    def behind(self) -> int:
        """Return how many records are waiting."""
        return self.end - self.done


@dataclass(frozen=True, slots=True)
class Lag:
    """Everything that is waiting for somebody."""

    raw: tuple[PartitionLag, ...]
    admitted: tuple[PartitionLag, ...]
    in_flight: int
    ambiguous: int
    pending_evidence: int
    re_read: int

    @property
    def undecided(self) -> int:
        """Return how many deliveries wait for their decision."""
        return sum(partition.behind for partition in self.raw)

    @property
    def decided(self) -> int:
        """Return how many deliveries of the present raw topic are decided."""
        return sum(partition.done for partition in self.raw)

    @property
    def uncounted(self) -> int:
        """Return how many admitted records wait to be counted."""
        return sum(partition.behind for partition in self.admitted)

    def idle(self, *, boundary: bool, analytics: bool) -> bool:
        """Tell whether the chosen queries have nothing left to do."""
        decided = self.undecided == 0 and self.in_flight == 0 and self.pending_evidence == 0
        return (decided or not boundary) and (self.uncounted == 0 or not analytics)


class LagMeter:
    """Measures again and again without opening its stores each time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._transport = open_transport(settings)
        self._ledger = open_ledger(settings)
        self._counts = open_sketch_reader(settings)
        self._seen: dict[tuple[str, int], PartitionLag] = {}
        self._reached: dict[tuple[str, int, int, int], int] = {}

    def measure(self) -> Lag:
        """Return how far behind the queries are now."""
        # Readers before the log: then a record that arrives in between counts as waiting.
        mine = self._settings.pipeline.name
        sources = [info for info in self._ledger.sources() if info.pipeline == mine]
        owned = {info.source for info in sources}
        decided = {(info.topic_id, info.source.partition): info.mark.offset + 1 for info in sources}
        counted = {
            (mark.topic_id, mark.partition): mark.offset + 1 for mark in self._counts.state().marks
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
        )

    def _partitions(self, name: str, done: dict[tuple[str, int], int]) -> tuple[PartitionLag, ...]:
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
            lag = PartitionLag(name, number, done.get((topic.topic_id, number), start), end)
            moved = self._seen.get((name, number), lag) != lag
            self._seen[name, number] = lag
            found.append(lag if moved or not lag.behind else self._looked_at(topic, lag))
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
