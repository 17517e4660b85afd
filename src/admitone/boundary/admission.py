"""The admission protocol.

For one block of deliveries of one source partition, in offset order:

1. Read      drop what lies at or below the mark; decode, validate, derive identity, hash and route
2. Claim     one ledger transaction decides every delivery and reserves what is new
3. Publish   one transport transaction carries what was reserved
4. Settle    one ledger transaction pins the offsets and moves the mark
5. Evidence  written later from the ledger's journal (`admitone.evidence`)

Ownership comes before step 1, always in this order: take the epoch, fence the producer of the same name, read the
epoch again, resolve what is in flight. A crash between any two steps leaves a block that the next
owner resolves by looking at the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from admitone.boundary.publishing import admitted_ordinals, outgoing
from admitone.boundary.reading import ReadBlock, read_block
from admitone.boundary.recovery import resolve
from admitone.core.decisions import RULES_VERSION, BlockState
from admitone.core.envelope import EnvelopeRules
from admitone.core.errors import IntegrityError
from admitone.core.replay import producer_id
from admitone.faults import crash_point
from admitone.ledger.columns import pack
from admitone.ledger.port import (
    Block,
    Blocked,
    Claim,
    Claimed,
    Destination,
    Ledger,
    Outcome,
    Source,
)
from admitone.transport.port import Topic, Transport

Clock = Callable[[], int]
_LONGEST_WAIT_S = 1.0


def wall_clock() -> int:
    """Return now in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class BoundaryOptions:
    """What the protocol needs to know besides its stores."""

    pipeline: str
    rules: EnvelopeRules
    max_block: int
    claim_lease_ms: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """A block that was decided."""

    block_id: int
    deliveries: int
    admitted: int


class Boundary:
    """Admits deliveries of a source topic; safe to run in as many processes as there are partitions."""

    def __init__(
        self,
        options: BoundaryOptions,
        ledger: Ledger,
        transport: Transport,
        clock: Clock = wall_clock,
    ) -> None:
        self.options = options
        self.ledger = ledger
        self.transport = transport
        self.clock = clock

    def source(self, topic: Topic, partition: int) -> Source:
        """Return the name of one partition of this incarnation of a topic."""
        options = self.options
        return Source(
            producer_id(options.pipeline, "boundary", self.transport.cluster, topic.topic_id),
            partition,
        )

    def start(self, topic: Topic) -> int:
        """Begin a new generation on a topic: fence the one before and resolve what it left."""
        for partition in range(topic.partitions):
            source = self.source(topic, partition)
            self.ledger.register_source(source, self.options.pipeline, topic.name, topic.topic_id)
        generation = self.ledger.take_generation(self.options.pipeline)
        self.recover(generation)
        return generation

    def recover(self, generation: int) -> None:
        """Resolve every block of this pipeline that is in flight, also of a topic that is gone."""
        in_flight = {block.source for block in self._in_flight()}
        for info in self.ledger.sources() if in_flight else ():
            if info.source in in_flight and info.pipeline == self.options.pipeline:
                self._resolve_all(info.source, generation)

    def own(self, topic: Topic, partition: int, generation: int) -> OwnedPartition:
        """Take over a source partition."""
        source = self.source(topic, partition)
        epoch, producer_epoch = self._resolve_all(source, generation)
        return OwnedPartition(self, topic, source, epoch, producer_epoch)

    def resolve_foreign(self, source: Source) -> None:
        """Resolve what another source has in flight, because its owner let the lease run out."""
        self._resolve_all(source, None)

    def _resolve_all(self, source: Source, generation: int | None) -> tuple[int, int]:
        epoch, producer_epoch = self._take_over(source, generation)
        for block in self._in_flight(source):
            resolve(block, epoch, self.ledger, self.transport, self.clock())
        return epoch, producer_epoch

    def _take_over(self, source: Source, generation: int | None) -> tuple[int, int]:
        epoch = self.ledger.take_epoch(source, generation)
        crash_point("boundary.owned")
        producer_epoch = self.transport.init_producer(self.producer_name(source))
        crash_point("boundary.fenced")
        self.ledger.check_epoch(source, epoch)
        if producer_epoch > epoch:
            # The epoch is always taken first, so the log can only be ahead of a ledger that went back.
            raise IntegrityError(
                f"The log knows epoch {producer_epoch} of {self.producer_name(source)}, the ledger only"
                f" {epoch}: the ledger is older than the log.",
                "restore the newest ledger; admitting with this one would publish events again",
            )
        crash_point("recovery.fenced")
        return epoch, producer_epoch

    def producer_name(self, source: Source) -> str:
        """Return the name under which a source partition publishes, and is fenced."""
        return f"boundary:{source.producer_id}:{source.partition}"

    def _in_flight(self, source: Source | None = None) -> list[Block]:
        return self.ledger.blocks(states=[BlockState.IN_FLIGHT], source=source)


class OwnedPartition:
    """One source partition under one epoch; the only thing that can admit from it."""

    def __init__(
        self, boundary: Boundary, topic: Topic, source: Source, epoch: int, producer_epoch: int
    ) -> None:
        self._boundary = boundary
        self._ledger = boundary.ledger
        self._transport = boundary.transport
        self._topic = topic
        self._source = source
        self._epoch = epoch
        self._producer = boundary.producer_name(source)
        self._producer_epoch = producer_epoch
        self._mark = self._ledger.mark(source)

    def admit(self, records: pa.Table) -> Iterator[Admitted]:
        """Decide every delivery above the mark, block by block."""
        limit = self._boundary.options.max_block
        for start in range(0, records.num_rows, limit):
            yield from self._admit_piece(records.slice(start, limit))

    def _admit_piece(self, records: pa.Table) -> Iterator[Admitted]:
        # 1. Read
        offsets = records["offset"].to_numpy()
        if (np.diff(offsets) <= 0).any():
            raise IntegrityError(
                f"Partition {self._source.partition} of {self._topic.name!r} came out of offset order.",
                "do not repartition or sort between the source and the boundary",
            )
        again = int(np.count_nonzero(offsets <= self._mark.offset))
        if again:
            self._ledger.count_re_reads(self._source, again)
            records = records.slice(again)
        if not records.num_rows:
            return
        rest = read_block(records, self._mark, self._boundary.options.rules)
        crash_point("boundary.read")
        waited = 0.0
        while rest.facts.num_rows:
            block, claimed = self._claim(rest)
            if isinstance(claimed, Blocked):
                waited = self._wait(claimed, waited)
                continue
            waited = 0.0
            yield self._publish_and_settle(block, claimed)
            rest = rest.tail(block.facts.num_rows)

    def _claim(self, block: ReadBlock) -> tuple[ReadBlock, Claimed | Blocked]:
        # 2. Claim: where a delivery cannot be decided yet, the block ends before it.
        while True:
            crash_point("boundary.claiming")
            claimed = self._ledger.claim(
                Claim(
                    source=self._source,
                    epoch=self._epoch,
                    after=self._mark,
                    facts=block.facts,
                    journal=pack(block.records),
                    destinations=self._destinations(),
                    retention_ms=self._boundary.options.rules.retention_ms,
                    rules=RULES_VERSION,
                    claimed_at=self._boundary.clock(),
                )
            )
            if isinstance(claimed, Claimed) or claimed.ordinal == 0:
                crash_point("boundary.claimed")
                return block, claimed
            block = block.head(claimed.ordinal)

    def _publish_and_settle(self, block: ReadBlock, claimed: Claimed) -> Admitted:
        # 3. Publish
        ordinals = admitted_ordinals(claimed.verdicts)
        bus_offsets = np.empty(len(ordinals), dtype=np.int64)
        published_at = None
        if len(ordinals):
            parts = outgoing(
                self._source,
                block,
                ordinals,
                self._boundary.options.rules.routes,
                self._boundary.clock(),
            )
            crash_point("boundary.publishing")
            appended = self._transport.append(
                self._producer,
                self._producer_epoch,
                {topic: table for topic, (_, table) in parts.items()},
            )
            for topic, (chosen, _) in parts.items():
                bus_offsets[np.searchsorted(ordinals, chosen)] = appended.offsets[topic].to_numpy()
            published_at = appended.published_at
        crash_point("boundary.published")
        # 4. Settle
        self._check_source_topic()
        crash_point("boundary.settling")
        self._ledger.conclude(
            claimed.block,
            self._epoch,
            Outcome(BlockState.SETTLED, bus_offsets, published_at, self._boundary.clock()),
        )
        self._mark = replace(
            self._mark,
            offset=claimed.block.last_offset,
            stream_time=block.facts["stream_time"][-1].as_py(),
        )
        crash_point("boundary.settled")
        return Admitted(claimed.block.block_id, claimed.block.deliveries, len(ordinals))

    def _destinations(self) -> tuple[Destination, ...]:
        topics = [
            self._transport.topic(route.topic) for route in self._boundary.options.rules.routes
        ]
        return tuple(
            Destination(
                topic.name,
                topic.topic_id,
                self._transport.offset_kind,
                tuple(self._transport.ends(topic)),
            )
            for topic in topics
        )

    def _check_source_topic(self) -> None:
        present = self._transport.topic(self._topic.name)
        if present.topic_id != self._topic.topic_id:
            raise IntegrityError(
                f"Topic {self._topic.name!r} was recreated while it was read.",
                "run again: the new topic is read from its beginning",
            )

    def _wait(self, blocked: Blocked, waited: float) -> float:
        """Wait, without any claims, until somebody else's block is decided; resolve it when its lease ran out."""
        assert blocked.by_block is not None
        held = [
            block
            for block in self._ledger.blocks(states=[BlockState.IN_FLIGHT])
            if block.block_id == blocked.by_block
        ]
        lease = self._boundary.options.claim_lease_ms
        if held and self._boundary.clock() - held[0].claimed_at > lease:
            self._boundary.resolve_foreign(held[0].source)
            return 0.0
        pause = min(0.01 + waited, _LONGEST_WAIT_S)
        time.sleep(pause)
        return pause
