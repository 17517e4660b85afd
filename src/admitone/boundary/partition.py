"""One source partition under one epoch: the steps of the admission protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from admitone.boundary.publishing import Outgoing, admitted_ordinals, destinations_of, to_publish
from admitone.boundary.reading import ReadBlock, read_block
from admitone.boundary.recovery import resolve
from admitone.core.decisions import RULES_VERSION, BlockState
from admitone.core.errors import (
    CircuitOpen,
    Fenced,
    IntegrityError,
    MarkMoved,
    RecordsRefused,
    ServiceUnreachable,
)
from admitone.faults import crash_point
from admitone.ledger.columns import pack
from admitone.ledger.outcomes import Summary
from admitone.ledger.port import Block, Blocked, Claim, Claimed, Mark, Outcome, Source
from admitone.transport.port import Topic

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary

_LONGEST_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """A block that was decided."""

    block_id: int
    deliveries: int
    admitted: int


@dataclass(frozen=True, slots=True)
class _Published:
    """Where a block's records went on the log, and which of them the broker refused."""

    bus_offsets: np.ndarray
    published_at: int | None
    refused: tuple[int, ...]


class OwnedPartition:
    """One source partition under one epoch; the only thing that can admit from it.

    Without a topic it is the door of released deliveries: these are judged by the stream time of the partition
    they first came from.
    """

    def __init__(
        self,
        boundary: Boundary,
        source: Source,
        generation: int | None,
        epoch: int,
        producer_epoch: int,
        topic: Topic | None,
        origin_stream_time: int | None = None,
    ) -> None:
        self._boundary = boundary
        self._options = boundary.options
        self._ledger = boundary.ledger
        self._transport = boundary.transport
        self.source = self._source = source
        self._generation = generation
        self._epoch = epoch
        self._producer = boundary.producer_name(source)
        self._producer_epoch = producer_epoch
        self._topic = topic
        self._origin_stream_time = origin_stream_time
        self._mark = self._ledger.mark(source)

    @property
    def mark(self) -> Mark:
        """Return how far the partition is decided."""
        return self._mark

    def admit(self, records: pa.Table) -> Iterator[Admitted]:
        """Decide every delivery above the mark, block by block."""
        limit = self._options.max_block
        for start in range(0, records.num_rows, limit):
            yield from self._admit_piece(records.slice(start, limit))

    def read(self, records: pa.Table) -> ReadBlock:
        """Judge deliveries by themselves (step 1); nothing is decided."""
        times = (self._mark.stream_time, self._origin_stream_time)
        known = [moment for moment in times if moment is not None]
        after = replace(self._mark, stream_time=max(known, default=None))
        return read_block(records, after, self._options.rules)

    def _admit_piece(self, records: pa.Table) -> Iterator[Admitted]:
        # 1. Read
        offsets = records["offset"].to_numpy()
        if (np.diff(offsets) <= 0).any():
            raise IntegrityError(
                f"Partition {self._source.partition} of {self._topic and self._topic.name!r} came out of"
                " offset order.",
                "do not repartition or sort between the source and the boundary",
            )
        again = int(np.count_nonzero(offsets <= self._mark.offset))
        if again:
            self._ledger.count_re_reads(self._source, again)
            records = records.slice(again)
        if not records.num_rows:
            return
        rest = self.read(records)
        crash_point("boundary.read")
        waited = 0.0
        while rest.facts.num_rows:
            block, claimed = self._claim(rest)
            if isinstance(claimed, Blocked):
                waited = self._wait(claimed, waited)
                continue
            waited = 0.0
            self._check_circuit(claimed)
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
                    destinations=destinations_of(
                        self._transport, [route.topic for route in self._options.rules.routes]
                    ),
                    retention_ms=self._options.rules.retention_ms,
                    rules=RULES_VERSION,
                    claimed_at=self._boundary.clock(),
                )
            )
            if isinstance(claimed, Claimed) or claimed.ordinal == 0:
                crash_point("boundary.claimed")
                return block, claimed
            block = block.head(claimed.ordinal)

    def _check_circuit(self, claimed: Claimed) -> None:
        """Give a block back undecided when it would send too much to quarantine."""
        options, block = self._options, claimed.block
        here = Summary.of(claimed.verdicts).quarantined
        if self._topic is None or here <= options.quarantine_limit * block.deliveries:
            return
        total, bad = block.deliveries, here
        if total < options.quarantine_window:
            before, bad_before = self._ledger.recent(
                self._source, options.quarantine_window - total
            )
            total, bad = total + before, bad + bad_before
        if total < options.quarantine_window or bad <= options.quarantine_limit * total:
            return
        outcome = Outcome(BlockState.ABORTED, None, None, self._boundary.clock())
        self._ledger.conclude(block, self._epoch, outcome)
        raise CircuitOpen(
            f"{bad:,} of the last {total:,} deliveries of {self._topic.name!r} partition"
            f" {self._source.partition} would be quarantined, more than {options.quarantine_limit:.0%}:"
            f" stopped before offset {block.first_offset}, nothing from there on is decided.",
            "mend what produces or describes them and run again; or accept them with"
            " [pipeline] quarantine_limit = 1",
        )

    def _publish_and_settle(self, block: ReadBlock, claimed: Claimed) -> Admitted:
        try:
            published = self._publish(block, claimed)
        except Fenced:
            raise
        except Exception as error:
            state = self._find_out(claimed.block, error)
            settled = len(admitted_ordinals(claimed.verdicts)) if state is BlockState.SETTLED else 0
            return Admitted(claimed.block.block_id, claimed.block.deliveries, settled)
        crash_point("boundary.published")
        # 4. Settle
        self._check_source_topic()
        crash_point("boundary.settling")
        self._ledger.conclude(
            claimed.block,
            self._epoch,
            Outcome(
                BlockState.SETTLED,
                published.bus_offsets,
                published.published_at,
                self._boundary.clock(),
                published.refused,
            ),
        )
        self._mark = replace(
            self._mark,
            offset=claimed.block.last_offset,
            stream_time=block.facts["stream_time"][-1].as_py(),
        )
        crash_point("boundary.settled")
        return Admitted(
            claimed.block.block_id, claimed.block.deliveries, len(published.bus_offsets)
        )

    def _publish(self, block: ReadBlock, claimed: Claimed) -> _Published:
        # 3. Publish: what the broker certainly refuses is left out and the rest goes on.
        row = claimed.block
        topics = tuple(place.topic for place in row.destinations)
        while True:
            ordinals = to_publish(row, claimed.verdicts)
            bus_offsets = np.empty(len(ordinals), dtype=np.int64)
            if not len(ordinals):
                return _Published(bus_offsets, None, row.refused)
            leaving = Outgoing.of(self._source, block, ordinals, released=self._topic is None)
            parts = leaving.by_topic(topics, self._boundary.clock())
            crash_point("boundary.publishing")
            try:
                appended = self._transport.append(
                    self._producer,
                    self._producer_epoch,
                    {topic: table for topic, (_, table) in parts.items()},
                )
            except RecordsRefused as refusal:
                refused = [
                    int(ordinals[parts[topic][0][line]])
                    for topic, lines in refusal.rows.items()
                    for line in lines
                ]
                row = self._ledger.refuse(row, self._epoch, refused)
                continue
            for topic, (lines, _) in parts.items():
                bus_offsets[lines] = appended.offsets[topic].to_numpy()
            return _Published(bus_offsets, appended.published_at, row.refused)

    def _find_out(self, block: Block, error: Exception) -> BlockState:
        """Look, behind a new fence, what became of an append that failed; what the log cannot tell is ambiguous.

        Returns when the block is decided, one way or the other; a block that was not written is given back.
        """
        self._epoch = self._ledger.take_epoch(self._source, self._generation)
        in_flight = self._boundary.in_flight(self._source)
        if not in_flight:
            raise error  # Somebody who waited for it was faster; the next owner reads on from the mark.
        (row,) = in_flight
        try:
            self._producer_epoch = self._boundary.fence(self._source, self._epoch)
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
        self._mark = self._ledger.mark(self._source)
        return state

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
