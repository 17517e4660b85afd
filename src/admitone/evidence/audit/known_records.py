"""Which records on the log this ledger knows, whatever run they are of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from admitone.core.contract import Keeping
from admitone.core.decisions import BlockState
from admitone.core.wire import decode, positions_of
from admitone.ledger.model import Filter, Source
from admitone.ledger.port import LedgerReader
from admitone.transport.port import Topic, Transport

Longs = npt.NDArray[np.int64]
_BLOCKS_REMEMBERED = 64


class KnownRecords:
    """Asks one snapshot of the ledger about places on the log."""

    def __init__(self, ledger: LedgerReader, compacted: frozenset[str]) -> None:
        self._ledger = ledger
        self._compacted = compacted
        self._late = ledger.late_numbers()
        self._marks = {info.source: info.mark.offset for info in ledger.sources()}
        owned = {source.producer_id for source in (*self._marks, *self._late)}
        self.producers = np.array(sorted(owned), dtype=np.int64)
        """The producers whose records are of this ledger's pipelines."""
        self._places = lru_cache(maxsize=_BLOCKS_REMEMBERED)(self._places_of)
        self._keeping: dict[str, Keeping | None] = {}

    def compacts(self, topic: str) -> bool:
        """Tell whether single records of a topic may be gone."""
        return topic in self._compacted

    def keeping(self, transport: Transport, topic: str) -> Keeping | None:
        """Return how a topic's records are kept now; None where the log keeps everything."""
        if topic not in self._keeping:
            state = transport.describe([topic]).get(topic)
            self._keeping[topic] = None if state is None else state.keeping
        return self._keeping[topic]

    def strangers(
        self, transport: Transport, topic: str, topic_id: str, partition: int, offsets: Longs
    ) -> Iterator[int]:
        """Yield those of some neighbouring records of our producers that this ledger does not know."""
        first, last = int(offsets.min()), int(offsets.max())
        known = [
            places
            for block_id in self._ledger.blocks_in(topic, partition, first, last)
            for places in self._places(block_id, topic, partition)
        ]
        left = np.setdiff1d(offsets, np.concatenate(known)) if known else np.unique(offsets)
        for offset in left.tolist():
            if not self._is_open(
                transport, Topic(topic, topic_id, partition + 1), partition, offset
            ):
                yield offset

    def _places_of(self, block_id: int, topic: str, partition: int) -> list[Longs]:
        found = []
        for block, facts, _, bus in self._ledger.decided(Filter(record=(block_id, 0))):
            if bus is None:
                continue
            names = [place.topic == topic for place in block.destinations]
            routes = facts["route"].fill_null(-1).to_numpy()
            there = np.isin(routes, np.flatnonzero(names)) & (
                facts["partition"].fill_null(-1).to_numpy() == partition
            )
            offsets = bus["bus_offset"].fill_null(-1).to_numpy()[there]
            found.append(offsets[offsets >= 0])
        return found

    def _is_open(self, transport: Transport, topic: Topic, partition: int, offset: int) -> bool:
        """Tell whether a record's delivery is not decided yet: its block is in flight, of unknown fate, or to come."""
        for batch in transport.read(topic, partition, offset, offset + 1):
            positions = positions_of(batch.column("key"), batch.column("headers"))
            _, numbers = decode(positions)
            for producer, part, number in zip(*(each.tolist() for each in numbers), strict=True):
                source = Source(producer, part)
                if number > self._marks.get(source, np.iinfo(np.int64).max):
                    return True
                if self._in_doubt(source, number):
                    return True
        return False

    def _in_doubt(self, source: Source, number: int) -> bool:
        for block in self._ledger.blocks(states=[BlockState.IN_FLIGHT, BlockState.AMBIGUOUS]):
            if block.source == source and block.first_offset <= number <= block.last_offset:
                return True
            plan = self._ledger.late(block.block_id)
            if plan is None or plan.source != source:
                continue
            if plan.first <= number < plan.first + plan.records:
                return True
        return False
