"""One source partition under one epoch: the steps of the admission protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from admitone.boundary.destination_topics import drifted_since, refuse_recreated
from admitone.boundary.publish import (
    Outgoing,
    Placed,
    admitted_ordinals,
    append,
    destinations_of,
    to_publish,
    used,
)
from admitone.boundary.read import ReadBlock, ReplayRules, read_block
from admitone.boundary.recover import resolve
from admitone.core.decisions import RULES_VERSION, BlockState
from admitone.core.errors import (
    ContractDrift,
    Fenced,
    IntegrityError,
    MarkMoved,
    NeedsFence,
    NotWritten,
    RecordsRefused,
    ServiceUnreachable,
)
from admitone.core.replay_filter import Reached, Upstream
from admitone.infra.clock import pauses
from admitone.infra.crash_points import crash_point
from admitone.ledger.columns import pack
from admitone.ledger.model import (
    Block,
    Blocked,
    Claim,
    Claimed,
    Destination,
    KnownRepeats,
    Mark,
    Outcome,
    Source,
    Stale,
)
from admitone.ledger.upstream_marks import marks_of, progress_of

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.01, 0.25


@dataclass(frozen=True, slots=True)
class Admitted:
    """A block that was decided."""

    block_id: int
    deliveries: int
    admitted: int


class OwnedPartition:
    """One source partition under one epoch; the only thing that can admit from it.

    Each kind of source is a class of its own: a partition of a topic (`TopicPartition`), a slot of the synchronous door
    (`doors.py`), the door of released deliveries (`release.py`), a source that is read back (`restore`). They say what
    is special about them; the steps are here.
    """

    def __init__(
        self,
        boundary: Boundary,
        source: Source,
        generation: int | None,
        epochs: tuple[int, int],
        replays: ReplayRules | None = None,
        database: str | None = None,
    ) -> None:
        self._boundary = boundary
        self._options = boundary.options
        self._ledger = boundary.ledger
        self._transport = boundary.transport
        self.source = source
        self._generation = generation
        self._epoch, self._producer_epoch = epochs
        self._producer = boundary.producer_name(source)
        self.mark = self._ledger.mark(source)
        """How far the partition is decided."""
        self._database = database or self._ledger.database()
        self._replays = replays
        self._upstream = self._upstream_marks()
        self._allow(boundary.writable)

    def look_at_topics(self) -> None:
        """Admit to the topics that are as agreed now; a door holds a partition for long and asks from time to time."""
        self._allow(self._boundary.writable)

    def admit(self, records: pa.Table) -> Iterator[Admitted]:
        """Decide every delivery above the mark, block by block."""
        limit = self._options.max_block
        for start in range(0, records.num_rows, limit):
            yield from self._admit_piece(records.slice(start, limit))

    def read(self, records: pa.Table) -> ReadBlock:
        """Judge deliveries by themselves (step 1); nothing is decided."""
        after = self._judged_after()
        return read_block(
            records, after, self._rules, self.source.partition, self._replays, self._upstream
        )

    def _admit_piece(self, records: pa.Table) -> Iterator[Admitted]:
        # 1. Read
        offsets = records["offset"].to_numpy()
        if (np.diff(offsets) <= 0).any():
            raise IntegrityError(
                f"Partition {self.source.partition} of producer {self.source.producer_id} came out of offset order.",
                "do not repartition or sort between the source and the boundary",
            )
        again = int(np.count_nonzero(offsets <= self.mark.offset))
        if again:
            self._ledger.count_re_reads(self.source, again)
            records = records.slice(again)
        if not records.num_rows:
            return
        rest = self.read(records)
        crash_point("boundary.read")
        waits = pauses(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        while rest.facts.num_rows:
            destinations = self._destinations()
            drifted = drifted_since(self._writable, destinations, self._rules.routes, rest.facts)
            if drifted:
                self._leave_out(drifted)
                rest = self.read(rest.records)
                continue
            block, claimed = self._claim(rest, destinations)
            if isinstance(claimed, Blocked):
                self._wait(claimed, waits)
                continue
            waits = pauses(_FIRST_WAIT_S, _LONGEST_WAIT_S)
            self._check_circuit(claimed)
            yield self._publish_and_settle(block, claimed)
            rest = rest.tail(block.facts.num_rows)

    # What kinds of source do otherwise.

    def _judged_after(self) -> Mark:
        """Return the mark whose stream time deliveries are judged by."""
        return self.mark

    def _destinations(self) -> tuple[Destination, ...]:
        """Return the destinations as they are."""
        return destinations_of(self._transport, [route.topic for route in self._rules.routes])

    def _leave_out(self, drifted: set[str]) -> None:
        """Admit no more to topics that are not what they were when they were looked at."""
        self._allow({t: i for t, i in self._writable.items() if t not in drifted})

    def _known(self, facts: pa.Table) -> KnownRepeats | None:
        """Return which deliveries repeat what this worker remembers to be settled."""

    def _after_closing(self, facts: pa.Table) -> np.ndarray | None:
        """Return which deliveries came after their run was closed, where the ledger does not know that yet."""

    def _known_is_stale(self) -> None:
        """Take note that the ledger knows better than what was remembered."""

    def _check_circuit(self, claimed: Claimed) -> None:
        """Give a block back undecided when it would send too much to quarantine."""

    def _check_source(self) -> None:
        """Raise where deliveries no longer come from where they were read."""

    def _outgoing(self, block: ReadBlock, ordinals: np.ndarray) -> Outgoing:
        return Outgoing.of(self.source, block, ordinals)

    def _settled(self, block: ReadBlock, claimed: Claimed, outcome: Outcome) -> Admitted:
        """Return what is to be said of a block that was settled."""
        row = claimed.block
        assert outcome.bus_offsets is not None
        return Admitted(row.block_id, row.deliveries, len(outcome.bus_offsets))

    # The steps.

    def _allow(self, writable: Mapping[str, str]) -> None:
        """Admit to these topics only, under these ids."""
        self._writable = writable
        routes = self._options.rules.routes
        drifted = frozenset(n for n, route in enumerate(routes) if route.topic not in writable)
        self._rules = replace(self._options.rules, drifted=drifted)

    def _claim(
        self, block: ReadBlock, destinations: tuple[Destination, ...]
    ) -> tuple[ReadBlock, Claimed | Blocked]:
        # 2. Claim: where a delivery cannot be decided yet, the block ends before it.
        while True:
            crash_point("boundary.claiming")
            asked = Claim(
                source=self.source,
                epoch=self._epoch,
                after=self.mark,
                facts=block.facts,
                journal=pack(block.records),
                destinations=destinations,
                retention_ms=self._rules.retention_ms,
                rules=RULES_VERSION,
                rules_hash=self._options.in_force.hash,
                upstream=self._upstream if self._replays else None,
                known=self._known(block.facts),
                after_closing=self._after_closing(block.facts),
                database=self._database,
            )
            try:
                claimed = self._ledger.claim(asked)
            except Stale:
                self._known_is_stale()
                continue
            if isinstance(claimed, Claimed) or claimed.ordinal == 0:
                crash_point("boundary.claimed")
                return block, claimed
            block = block.head(claimed.ordinal)

    def _publish_and_settle(self, block: ReadBlock, claimed: Claimed) -> Admitted:
        try:
            placed, refused = self._publish(block, claimed)
        except NotWritten:
            # Certain, also where looking could not tell: a topic may have gone since the claim.
            self._give_back(claimed.block)
            raise
        except Exception as error:
            if isinstance(error, Fenced):
                # A log also fences a client that was silent for long: the ledger knows whether another succeeded it.
                self._ledger.check_epoch(self.source, self._epoch)
                error = ServiceUnreachable(error.problem, "run again, which looks for it")
            state = self._find_out(claimed.block, error)
            settled = len(admitted_ordinals(claimed.verdicts)) if state is BlockState.SETTLED else 0
            return Admitted(claimed.block.block_id, claimed.block.deliveries, settled)
        crash_point("boundary.published")
        # 4. Settle
        self._check_source()
        try:
            ordinals = to_publish(claimed.block, claimed.verdicts)
            places = used(claimed.block.destinations, block.facts, ordinals)
            refuse_recreated(self._transport, places)
        except ContractDrift as drift:
            self._find_out(claimed.block, drift)
            return Admitted(claimed.block.block_id, claimed.block.deliveries, 0)
        crash_point("boundary.settling")
        outcome = Outcome(BlockState.SETTLED, *placed, self._boundary.clock(), refused)
        decided = block.facts, claimed.verdicts
        self._ledger.conclude(claimed.block, self._epoch, outcome, decided)
        self.mark = replace(
            self.mark,
            offset=claimed.block.last_offset,
            stream_time=block.facts["stream_time"][-1].as_py(),
        )
        for upstream, progress in progress_of(block.facts, self._upstream).items():
            self._upstream[upstream] = progress.after
        crash_point("boundary.settled")
        return self._settled(block, claimed, outcome)

    def _publish(self, block: ReadBlock, claimed: Claimed) -> tuple[Placed, tuple[int, ...]]:
        """Return where a block's records went on the log, and which of them the broker refused."""
        # 3. Publish: what the broker certainly refuses is left out and the rest goes on.
        row = claimed.block
        topics = tuple(place.topic for place in row.destinations)
        while True:
            ordinals = to_publish(row, claimed.verdicts)
            if not len(ordinals):
                return Placed(np.empty(0, dtype=np.int64), None), row.refused
            leaving = self._outgoing(block, ordinals)
            parts = leaving.by_topic(topics, self._options.rules.routes, row)
            crash_point("boundary.publishing")
            try:
                placed = append(self._transport, self._producer, self._producer_epoch, parts)
            except RecordsRefused as refusal:
                refused = [
                    int(ordinals[parts[topic][0][line]])
                    for topic, lines in refusal.rows.items()
                    for line in lines
                ]
                row = self._ledger.refuse(row, self._epoch, refused)
                continue
            except NeedsFence:
                self._fence_again(row)
                continue
            return placed, row.refused

    def _fence_again(self, block: Block) -> None:
        """Fence what this very worker may have on its way to the log; nothing of the block is there yet."""
        self._ledger.check_epoch(self.source, self._epoch)
        self._epoch = self._ledger.take_epoch(self.source, self._generation)
        try:
            self._producer_epoch = self._boundary.fence(self.source, self._epoch)
        except ServiceUnreachable as silence:
            raise NotWritten(silence.problem, silence.remedy) from silence
        if block.block_id not in {row.block_id for row in self._boundary.in_flight(self.source)}:
            raise Fenced(f"Another worker decided block {block.block_id} meanwhile.")

    def _give_back(self, block: Block) -> None:
        """Give a claimed block of which nothing was written back undecided."""
        outcome = Outcome(BlockState.ABORTED, None, None, self._boundary.clock())
        self._ledger.conclude(block, self._epoch, outcome)

    def _find_out(self, block: Block, error: Exception) -> BlockState:
        """Look, behind a new fence, what became of an append that failed; what the log cannot tell is ambiguous.

        Returns when the block is decided, one way or the other; a block that was not written is given back.
        """
        self._epoch = self._ledger.take_epoch(self.source, self._generation)
        in_flight = self._boundary.in_flight(self.source)
        if not in_flight:
            raise error  # A worker that waited for it was faster; the next owner reads on from the mark.
        (row,) = in_flight
        try:
            self._producer_epoch = self._boundary.fence(self.source, self._epoch)
            state = resolve(row, self._epoch, self._ledger, self._transport, self._boundary.clock())
        except (Fenced, MarkMoved, IntegrityError):
            raise
        except Exception as silence:
            unknown = Outcome(BlockState.AMBIGUOUS, None, None, self._boundary.clock(), row.refused)
            self._ledger.conclude(row, self._epoch, unknown)
            raise ServiceUnreachable(
                f"Publishing block {block.block_id} failed ({error}) and the log cannot be asked what"
                f" became of it ({silence}): its {block.deliveries:,} deliveries are kept as AMBIGUOUS.",
                "mend the log's connection and run again, which looks for them; or admitone reconcile",
            ) from error
        if state is BlockState.ABORTED:
            raise error
        self.mark = self._ledger.mark(self.source)
        self._upstream = self._upstream_marks()
        return state

    def _upstream_marks(self) -> dict[Upstream, Reached]:
        return marks_of(self._ledger.upstreams(self.source)) if self._replays else {}

    def _wait(self, blocked: Blocked, waits: Iterator[float]) -> None:
        """Wait, without any claims, until another worker's block is decided; resolve it when its lease ran out."""
        assert blocked.by_block is not None
        held = self._ledger.blocks(states=[BlockState.IN_FLIGHT], ids=[blocked.by_block])
        if held and self._boundary.has_outlasted_its_lease(held[0]):
            self._boundary.resolve_all(held[0].source, None)
        else:
            self._boundary.pause(next(waits))
