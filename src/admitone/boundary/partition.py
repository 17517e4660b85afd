"""One source partition under one epoch: the steps of the admission protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from admitone.boundary.circuit_breaker import too_much_quarantined
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
from admitone.boundary.read import ReadBlock, read_block
from admitone.boundary.recover import resolve
from admitone.boundary.settled_pairs import SettledPairs
from admitone.core.decisions import RULES_VERSION, BlockState
from admitone.core.errors import (
    ContractDrift,
    Fenced,
    IntegrityError,
    MarkMoved,
    NotWritten,
    RecordsRefused,
    ServiceUnreachable,
)
from admitone.core.replay_filter import Reached, Upstream
from admitone.infra.crash_points import crash_point
from admitone.ledger.columns import pack
from admitone.ledger.model import (
    Block,
    Blocked,
    Claim,
    Claimed,
    Decided,
    Destination,
    KnownRepeats,
    Mark,
    Outcome,
    Source,
    Stale,
)
from admitone.ledger.outcomes import concluded, followed
from admitone.ledger.upstream_marks import marks_of, progress_of
from admitone.transport.port import Topic

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary

_LONGEST_WAIT_S = 1.0
_NOTED_FOR_MS = 1_000


@dataclass(frozen=True, slots=True)
class Admitted:
    """A block that was decided."""

    block_id: int
    deliveries: int
    admitted: int
    decided: Decided | None = None
    """Its columns, for a door that answers at once; None where they are better read from the ledger."""


class OwnedPartition:
    """One source partition under one epoch; the only thing that can admit from it.

    Without a topic it is a door that numbers its deliveries itself. Those that are released through one were
    delivered before, and are judged by the stream time of the partition they first came from: its mark is `origin`.
    """

    def __init__(
        self,
        boundary: Boundary,
        source: Source,
        generation: int | None,
        epoch: int,
        producer_epoch: int,
        topic: Topic | None,
        origin: Mark | None = None,
        *,
        cache: SettledPairs | None = None,
    ) -> None:
        self._boundary = boundary
        self._options = boundary.options
        self._ledger = boundary.ledger
        self._transport = boundary.transport
        self.source = source
        self._generation = generation
        self._epoch = epoch
        self._producer = boundary.producer_name(source)
        self._producer_epoch = producer_epoch
        self._topic = topic
        self._origin = origin
        self.cache = cache
        self._horizon = None if cache is None else self._ask_horizon()
        self._answered = 0
        self.mark = self._ledger.mark(source)
        """How far the partition is decided."""
        # What is released was delivered once already; its key says where, and would be taken for a replay.
        self._replays = None if topic is None else boundary.options.replays
        self._upstream = self._upstream_marks()
        self._noted: tuple[int, tuple[Destination, ...]] | None = None
        self._allow(boundary.writable)

    def look_at_topics(self) -> None:
        """Admit to the topics that are as agreed now; who holds a partition for long asks from time to time."""
        self._allow(self._boundary.writable)

    def admit(self, records: pa.Table) -> Iterator[Admitted]:
        """Decide every delivery above the mark, block by block."""
        limit = self._options.max_block
        for start in range(0, records.num_rows, limit):
            yield from self._admit_piece(records.slice(start, limit))
        if self._answered:
            self._ledger.count_cached(self.source, self._answered)
            self._answered = 0

    def read(self, records: pa.Table) -> ReadBlock:
        """Judge deliveries by themselves (step 1); nothing is decided."""
        times = [mark.stream_time for mark in (self.mark, self._origin) if mark is not None]
        newest = max((moment for moment in times if moment is not None), default=None)
        after = replace(self.mark, stream_time=newest)
        return read_block(
            records, after, self._rules, self.source.partition, self._replays, self._upstream
        )

    def _admit_piece(self, records: pa.Table) -> Iterator[Admitted]:
        # 1. Read
        offsets = records["offset"].to_numpy()
        if (np.diff(offsets) <= 0).any():
            raise IntegrityError(
                f"Partition {self.source.partition} of {self._topic and self._topic.name!r} came out of"
                " offset order.",
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
        waited = 0.0
        while rest.facts.num_rows:
            destinations = self._destinations()
            drifted = drifted_since(self._writable, destinations, self._rules.routes, rest.facts)
            if drifted:
                self._noted = None
                self._allow({t: i for t, i in self._writable.items() if t not in drifted})
                rest = self.read(rest.records)
                continue
            block, claimed = self._claim(rest, destinations)
            if isinstance(claimed, Blocked):
                waited = self._wait(claimed, waited)
                continue
            waited = 0.0
            self._check_circuit(claimed)
            yield self._publish_and_settle(block, claimed)
            rest = rest.tail(block.facts.num_rows)

    def _destinations(self) -> tuple[Destination, ...]:
        """Return the destinations as they are; a door, whose blocks are many and small, does not look every time.

        An end that was noted a little earlier only lets recovery read a little more.
        """
        now = self._boundary.clock()
        if self._noted is None or self._topic is not None or now - self._noted[0] > _NOTED_FOR_MS:
            topics = [route.topic for route in self._rules.routes]
            self._noted = now, destinations_of(self._transport, topics)
        return self._noted[1]

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
                claimed_at=self._boundary.clock(),
                upstream=self._upstream if self._replays else None,
                known=self._known(block.facts),
            )
            try:
                claimed = self._ledger.claim(asked)
            except Stale:
                self._horizon = self._ask_horizon()
                continue
            if isinstance(claimed, Claimed) or claimed.ordinal == 0:
                crash_point("boundary.claimed")
                if asked.known is not None and isinstance(claimed, Claimed):
                    self._answered += len(asked.known.ordinals)
                return block, claimed
            block = block.head(claimed.ordinal)

    def _known(self, facts: pa.Table) -> KnownRepeats | None:
        """Return which deliveries repeat what this worker remembers to be settled."""
        if self.cache is None or self._horizon is None:
            return None
        return self.cache.look(facts, self._rules.retention_ms, self._horizon)

    def _remember(self, facts: pa.Table, claimed: Claimed, refused: tuple[int, ...]) -> None:
        """Remember what a settled block has shown to be settled."""
        if self.cache is None:
            return
        self.cache.add(facts, claimed, refused)
        if self._horizon is None:
            self._horizon = self._ask_horizon()

    def _ask_horizon(self) -> int | None:
        """Return since when nobody can have taken an identity's row over; none where nothing is kept yet."""
        return self._ledger.horizon(self.source, self._options.rules.retention_ms)

    def _check_circuit(self, claimed: Claimed) -> None:
        """Give a block back undecided when it would send too much to quarantine."""
        if self._topic is None:
            return
        options = self._options
        refusal = too_much_quarantined(
            claimed,
            lambda deliveries: self._ledger.recent(self.source, deliveries),
            self._topic.name,
            options.quarantine_limit,
            options.quarantine_window,
        )
        if refusal is not None:
            self._give_back(claimed.block)
            raise refusal

    def _publish_and_settle(self, block: ReadBlock, claimed: Claimed) -> Admitted:
        try:
            placed, refused = self._publish(block, claimed)
        except Fenced:
            raise
        except NotWritten:
            # Certain, also where looking could not tell: a topic may have gone since the claim.
            self._give_back(claimed.block)
            raise
        except Exception as error:
            state = self._find_out(claimed.block, error)
            settled = len(admitted_ordinals(claimed.verdicts)) if state is BlockState.SETTLED else 0
            return Admitted(claimed.block.block_id, claimed.block.deliveries, settled)
        crash_point("boundary.published")
        # 4. Settle
        self._check_source_topic()
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
        self._remember(block.facts, claimed, refused)
        crash_point("boundary.settled")
        return Admitted(
            claimed.block.block_id,
            claimed.block.deliveries,
            len(ordinals) - len(refused),
            self._decided(block, claimed, outcome) if self._topic is None else None,
        )

    @staticmethod
    def _decided(block: ReadBlock, claimed: Claimed, outcome: Outcome) -> Decided | None:
        """Return what was just settled, unless it depends on blocks that others may have resolved meanwhile."""
        row = claimed.block
        if followed(claimed.verdicts, row.block_id):
            return None
        verdicts, bus = concluded(row.block_id, block.facts, claimed.verdicts, outcome, {})
        settled = replace(
            row,
            state=outcome.state,
            decided_at=outcome.decided_at,
            published_at=outcome.published_at,
            refused=outcome.refused,
        )
        return Decided(settled, block.facts, verdicts, bus)

    def _publish(self, block: ReadBlock, claimed: Claimed) -> tuple[Placed, tuple[int, ...]]:
        """Return where a block's records went on the log, and which of them the broker refused."""
        # 3. Publish: what the broker certainly refuses is left out and the rest goes on.
        row = claimed.block
        topics = tuple(place.topic for place in row.destinations)
        while True:
            ordinals = to_publish(row, claimed.verdicts)
            if not len(ordinals):
                return Placed(np.empty(0, dtype=np.int64), None), row.refused
            leaving = Outgoing.of(self.source, block, ordinals, released=self._origin is not None)
            parts = leaving.by_topic(topics, self._options.rules.routes, self._boundary.clock())
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
            return placed, row.refused

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
            raise error  # Somebody who waited for it was faster; the next owner reads on from the mark.
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

    def _check_source_topic(self) -> None:
        if self._topic is None:
            return
        present = self._transport.topic(self._topic.name)
        if present.topic_id != self._topic.topic_id:
            raise IntegrityError(
                f"Topic {self._topic.name!r} was recreated while it was read.",
                "run again: the new topic is read from its beginning",
            )

    def _wait(self, blocked: Blocked, waited: float) -> float:
        """Wait, without any claims, until somebody else's block is decided; resolve it when its lease ran out."""
        assert blocked.by_block is not None
        held = self._ledger.blocks(states=[BlockState.IN_FLIGHT], ids=[blocked.by_block])
        if held and self._boundary.clock() - held[0].claimed_at > self._options.claim_lease_ms:
            self._boundary.resolve_all(held[0].source, None)
            return 0.0
        pause = min(0.01 + waited, _LONGEST_WAIT_S)
        time.sleep(pause)
        return pause
