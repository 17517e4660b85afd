"""Which records on the log this ledger knows, whatever run they are of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from admitone.core.decisions import BlockState
from admitone.core.wire import decode, positions_of
from admitone.ledger.model import Filter, Source
from admitone.ledger.port import LedgerReader
from admitone.transport.port import Topic, Transport

Longs = npt.NDArray[np.int64]
_BLOCKS_REMEMBERED = 64


class KnownRecords:
    """Asks one snapshot of the ledger about places on the log."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._in_doubt = _in_doubt(ledger)
        self._marks = {info.source: info.mark.offset for info in ledger.sources()}
        owned = {source.producer_id for source in (*self._marks, *ledger.late_numbers())}
        self.producers = np.array(sorted(owned), dtype=np.int64)
        """The producers whose records are of this ledger's pipelines."""
        self._places = lru_cache(maxsize=_BLOCKS_REMEMBERED)(self._places_of)

    def strangers(
        self, transport: Transport, topic: Topic, partition: int, offsets: Longs
    ) -> Iterator[int]:
        """Yield those of some neighbouring records of our producers that this ledger does not know."""
        first, last = int(offsets.min()), int(offsets.max())
        known = [
            places
            for block_id in self._ledger.blocks_in(topic.name, partition, first, last)
            for places in self._places(block_id, topic.name, partition)
        ]
        left = np.setdiff1d(offsets, np.concatenate(known)) if known else np.unique(offsets)
        if not len(left):
            return
        first, last = int(left[0]), int(left[-1])
        for batch in transport.read(topic, partition, first, last + 1):
            there = np.isin(batch.column("offset").to_numpy(), left)
            chosen = batch.filter(pa.array(there))
            decided = ~self._are_open(chosen)
            yield from chosen.column("offset").to_numpy()[decided].tolist()

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

    def _are_open(self, records: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Tell of records of our producers whose deliveries are not decided: in flight, of unknown fate, or to come."""
        _, numbers = decode(positions_of(records.column("key"), records.column("headers")))
        found = np.zeros(records.num_rows, dtype=bool)
        for source in {
            Source(*pair)
            for pair in zip(numbers.producers.tolist(), numbers.partitions.tolist(), strict=True)
        }:
            mine = (numbers.producers == source.producer_id) & (
                numbers.partitions == source.partition
            )
            offsets = numbers.offsets[mine]
            is_open = offsets > self._marks.get(source, np.iinfo(np.int64).max)
            for first, last in self._in_doubt.get(source, ()):
                is_open |= (offsets >= first) & (offsets <= last)
            found[mine] = is_open
        return found


def _in_doubt(ledger: LedgerReader) -> dict[Source, list[tuple[int, int]]]:
    """Return, by source, the stretches of deliveries whose blocks are in flight or of unknown fate."""
    found: dict[Source, list[tuple[int, int]]] = defaultdict(list)
    for block in ledger.blocks(states=[BlockState.IN_FLIGHT, BlockState.AMBIGUOUS]):
        found[block.source].append((block.first_offset, block.last_offset))
        plan = ledger.late(block.block_id)
        if plan is not None:
            found[plan.source].append((plan.first, plan.first + plan.records - 1))
    return found
