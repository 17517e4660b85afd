"""The admission protocol.

For one block of deliveries of one source partition, in offset order:

1. Read      drop what lies at or below the mark; decode, validate, derive identity, hash and route
2. Claim     one ledger transaction decides every delivery and reserves what is new
3. Publish   one transport transaction carries what was reserved
4. Settle    one ledger transaction pins the offsets and moves the mark
5. Evidence  written later from the ledger's journal (`admitone.evidence`)

Ownership comes before step 1, always in this order: take the epoch, fence the producer of the same name, read the
epoch again, resolve what is in flight. A crash between any two steps leaves a block that the next
owner resolves by looking at the log. This file is about ownership; the steps are in `partition.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from admitone.boundary.destination_topics import Topics
from admitone.boundary.ledger_age import OLDER_REMEDY, refuse_older_ledger
from admitone.boundary.ledger_rollback import memory_of, new_memory
from admitone.boundary.log_owner import claim_log, refuse_another_ledger
from admitone.boundary.producers import stream_producer
from admitone.boundary.read import ReplayRules, Rules
from admitone.boundary.reconciliation import decides_now, reconcile
from admitone.boundary.recover import resolve
from admitone.boundary.topic_partition import TopicPartition
from admitone.core.contract import Contract
from admitone.core.decisions import BlockState
from admitone.core.errors import ContractDrift, IntegrityError, NotFound
from admitone.evidence.writer import EvidenceWriter
from admitone.governance.rules_in_force import Rules as RulesInForce
from admitone.infra.clock import Clock, stopwatch, wall_clock
from admitone.infra.crash_points import crash_point
from admitone.ledger.model import (
    ADMISSION_STORE,
    IDLE_AFTER_MS,
    SYNCHRONOUS_DOOR,
    Block,
    Source,
    SourceInfo,
)
from admitone.ledger.port import Ledger
from admitone.transport.port import Topic, Transport

Writable = Mapping[str, str]
"""The destination topics that are as agreed, each with the id it was accepted under."""


@dataclass(frozen=True, slots=True)
class BoundaryOptions:
    """What the protocol needs to know besides its stores."""

    pipeline: str
    reads: str
    """The topic whose deliveries are admitted."""
    rules: Rules
    in_force: RulesInForce
    """The same rules and all else that decides, as a document that is kept."""
    contracts: tuple[Contract, ...]
    max_block: int
    claim_lease_ms: int
    create_topics: bool = True
    check_interval_ms: int = 10_000
    quarantine_limit: float = 1.0
    quarantine_window: int = 1_000
    replays: ReplayRules | None = None
    """None where the source topic's replays are not filtered."""
    store: str = ADMISSION_STORE
    """Where identities are kept."""
    cache: int = 0
    """How many settled identities a process remembers, over all partitions of its topic."""
    idle_after_ms: int = IDLE_AFTER_MS


class Boundary:
    """Admits deliveries of a source topic; safe to run in as many processes as there are partitions."""

    def __init__(
        self,
        options: BoundaryOptions,
        ledger: Ledger,
        transport: Transport,
        clock: Clock = wall_clock,
        writable: Writable | None = None,
        pause: Callable[[float], object] = time.sleep,
        stopwatch: Clock = stopwatch,
    ) -> None:
        self.options = options
        self.ledger = ledger
        self.transport = transport
        self.clock = clock
        self.stopwatch = stopwatch
        self.pause = pause
        self._writable = writable
        self._checked_at = stopwatch()
        self._first_seen: dict[tuple[Source, int], int] = {}

    @property
    def topics(self) -> Topics:
        """Return the destination topics under their contracts."""
        return Topics(self.options.contracts, self.ledger, self.transport)

    @property
    def writable(self) -> Writable:
        """Return the destination topics that are as agreed; they are looked at again after an interval."""
        due = self.stopwatch() - self._checked_at >= self.options.check_interval_ms
        return self.take_topics() if self._writable is None or due else self._writable

    def take_topics(self) -> Writable:
        """Look at the destination topics, and claim them for this ledger; raise when they are another one's."""
        self._checked_at, self._writable = self.stopwatch(), None
        writable, options = self.check_topics(), self.options
        topics = [contract.topic for contract in options.contracts]
        claim_log(self.ledger, self.transport, options.pipeline, topics)
        self._writable = writable
        return writable

    def check_topics(self) -> Writable:
        """Look at the destination topics; create and accept those that are new."""
        checked = self.topics.create_and_accept(self.clock(), create=self.options.create_topics)
        return {each.topic: each.live.topic_id for each in checked if each.live and each.as_agreed}

    def source(self, topic: Topic, partition: int) -> Source:
        """Return the name of one partition of this incarnation of a topic."""
        producer = stream_producer(self.options.pipeline, self.transport.cluster, topic)
        return Source(producer, partition)

    def start(self, topic: Topic) -> int:
        """Begin a new generation on a topic: fence the one before and resolve what it left."""
        self._must_fit_marks(topic)
        self.register(topic)
        self.must_know_its_log()
        generation = self.ledger.take_generation(self.options.pipeline)
        self.take_topics()
        self.recover(generation)
        for _ in reconcile(self, pipeline=self.options.pipeline):
            pass
        return generation

    def must_know_its_log(self) -> None:
        """Raise where the topics are another ledger's, or hold more of this pipeline than this one knows."""
        options = self.options
        topics = [contract.topic for contract in options.contracts]
        refuse_another_ledger(self.ledger, self.transport, options.pipeline, topics)
        refuse_older_ledger(self.ledger, self.transport, topics, {options.pipeline: options.reads})

    def keep_rules(self) -> None:
        """Keep the rules in force, before anything is decided by them."""
        self.ledger.keep_rules(self.options.in_force.hash, self.options.in_force.document)

    def register(self, topic: Topic) -> None:
        """Make the partitions of a topic known to the ledger, and the rules they are read by."""
        options = self.options
        self.keep_rules()
        for partition in range(topic.partitions):
            self.ledger.register_source(
                self.source(topic, partition), options.pipeline, topic.name, topic.topic_id,
                store=options.store,
            )  # fmt: skip

    def _must_fit_marks(self, topic: Topic) -> None:
        """Stop where upstream marks were made for another number of partitions: replays would pass (RPL-2)."""
        if self.options.replays is None:
            return
        registered = {
            info.source
            for info in self.ledger.sources()
            if (info.topic_id, info.pipeline) == (topic.topic_id, self.options.pipeline)
        }
        marked = any(seen.source in registered for seen in self.ledger.upstreams())
        if marked and len(registered) != topic.partitions:
            raise ContractDrift(
                f"Topic {topic.name!r} has {topic.partitions} partitions, the marks by which its replays are found were"
                f" made for {len(registered)}: what is written again may now reach a partition that does not know it.",
                "run once with filter_replays = false in [transport], which finds replays by their identities and"
                " takes the new partitions in; then turn it on again",
            )

    def recover(self, generation: int) -> None:
        """Resolve every block of this pipeline that was left in flight, also of a topic that is gone."""
        in_flight = {block.source: block for block in self.in_flight()}
        here = {(source, block.block_id) for source, block in in_flight.items()}
        self._first_seen = {seen: at for seen, at in self._first_seen.items() if seen in here}
        for info in self.ledger.sources() if in_flight else ():
            block = in_flight.get(info.source)
            mine = info.pipeline == self.options.pipeline
            if block is not None and mine and not self.is_at_work(info, block):
                self.resolve_all(info.source, generation)

    def is_at_work(self, info: SourceInfo, block: Block, *, look_once: bool = False) -> bool:
        """Tell whether a worker beside this pipeline is about to decide a block: a door, within its lease.

        Who looks once, as an operator does, cannot measure how long the block stays: the ledger's clock must do.
        """
        if look_once:
            return decides_now(self.ledger, info, block, self.options.claim_lease_ms)
        return info.door == SYNCHRONOUS_DOOR and not self.has_outlasted_its_lease(block)

    def has_outlasted_its_lease(self, block: Block) -> bool:
        """Tell whether this process has seen a block in flight for a whole lease.

        The worker that waits measures it itself: no clock that jumps, or differs between machines, seizes anything.
        """
        now = self.stopwatch()
        since = self._first_seen.setdefault((block.source, block.block_id), now)
        return now - since > self.options.claim_lease_ms

    def own(
        self,
        topic: Topic,
        partition: int,
        generation: int,
        session: str = "",
        begin: int | None = None,
        database: str | None = None,
    ) -> TopicPartition:
        """Take over a source partition, which the driver saw decided up to where this batch begins, in which database.

        What was settled in the same session before is remembered.
        """
        source = self.source(topic, partition)
        size = self.options.cache // topic.partitions
        memory = memory_of(source, size, session) if session else new_memory(size)
        memory.compare(self.ledger, source, begin)
        epochs = self.resolve_all(source, generation)
        return TopicPartition(self, source, generation, epochs, topic, memory, database)

    def resolve_all(self, source: Source, generation: int | None) -> tuple[int, int]:
        """Take a source over and resolve what it has in flight; return the epochs it is held under.

        Without a generation it is seized from the worker that let it lie.
        """
        epoch, producer_epoch = self.take_over(source, generation)
        for block in self.in_flight(source):
            resolve(block, epoch, self.ledger, self.transport, self.clock())
        return epoch, producer_epoch

    def take_over(
        self, source: Source, generation: int | None, *, catches_up: bool = False
    ) -> tuple[int, int]:
        """Take the epoch of a source, fence the worker that had it, and make sure that no other came later.

        A ledger that is read back catches up with the log's epoch first; any other is not behind it.
        """
        beyond = self.transport.last_epoch(self.producer_name(source)) if catches_up else 0
        epoch = self.ledger.take_epoch(source, generation, beyond)
        crash_point("boundary.owned")
        return epoch, self.fence(source, epoch)

    def fence(self, source: Source, epoch: int) -> int:
        """Fence the producer of a source that was taken over; return the producer's epoch."""
        name = self.producer_name(source)
        producer_epoch = self.transport.init_producer(name)
        crash_point("boundary.fenced")
        self.ledger.check_epoch(source, epoch)
        if producer_epoch > epoch:
            # The epoch is always taken first, so the log can only be ahead of a ledger that went back.
            raise IntegrityError(
                f"The log knows epoch {producer_epoch} of {name}, the ledger only"
                f" {epoch}: the ledger is older than the log.",
                OLDER_REMEDY,
            )
        crash_point("recovery.fenced")
        return producer_epoch

    def producer_name(self, source: Source) -> str:
        """Return the name under which a source partition publishes, and is fenced."""
        return f"boundary:{source.producer_id}:{source.partition}"

    def ambiguous(self, block_id: int) -> Block:
        """Return a block of unknown fate."""
        for block in self.ledger.blocks(states=[BlockState.AMBIGUOUS], ids=[block_id]):
            return block
        raise NotFound(
            f"No block {block_id} of unknown fate is there.",
            "admitone reconcile --dry-run lists them",
        )

    def in_flight(self, source: Source | None = None) -> list[Block]:
        """Return the blocks that are claimed and not decided yet."""
        return self.ledger.blocks(states=[BlockState.IN_FLIGHT], source=source)

    def expire(self) -> None:
        """Forget the keys of this boundary's store that are older than the retention."""
        options = self.options
        self.ledger.expire_segments(
            options.rules.retention_ms, options.idle_after_ms, options.store
        )

    def upkeep(self, evidence: EvidenceWriter, journal_retention_ms: int) -> None:
        """Write what evidence is pending, then drop what is kept long enough."""
        evidence.write_pending(self.clock())
        self.ledger.expire_journal(self.clock() - journal_retention_ms)
        self.expire()

    def close(self) -> None:
        """Let go of the log and the ledger."""
        self.transport.close()
        self.ledger.close()
