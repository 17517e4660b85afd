"""How far behind the queries are, from the log's ends and the marks."""

from __future__ import annotations

from dataclasses import dataclass

from admitone.analytics.open import open_sketch_reader
from admitone.core.decisions import BlockState
from admitone.core.errors import NotFound
from admitone.ledger.open import open_ledger
from admitone.settings import Settings
from admitone.transport.open import open_transport
from admitone.transport.port import Transport


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
            _partitions(self._transport, self._settings.transport.raw_topic, decided),
            tuple(
                partition
                for entry in self._settings.topics
                for partition in _partitions(self._transport, entry.topic, counted)
            ),
            sum(block.deliveries for block in unsettled if block.state is BlockState.IN_FLIGHT),
            sum(block.deliveries for block in unsettled if block.state is BlockState.AMBIGUOUS),
            pending,
            sum(info.re_read for info in sources),
        )


def _partitions(
    transport: Transport, name: str, done: dict[tuple[str, int], int]
) -> tuple[PartitionLag, ...]:
    try:
        topic = transport.topic(name)
    except NotFound:
        return ()
    starts, ends = transport.starts(topic), transport.ends(topic)
    return tuple(
        PartitionLag(name, number, done.get((topic.topic_id, number), starts[number]), end)
        for number, end in enumerate(ends)
    )
