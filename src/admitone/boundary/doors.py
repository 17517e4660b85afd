"""The synchronous door: deliveries that arrive one request at a time and wait for their answer.

Each worker holds a numbered slot, which is a source partition like any other: its deliveries get the slot's next
numbers, go through the same five steps and are journaled at their claim. Numbers count what was decided: a block that
is proved absent gives its own back, and the client that sent it got no answer and sends it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from admitone.boundary.partition import Admitted, OwnedPartition
from admitone.boundary.producers import DOOR
from admitone.boundary.read import ReadBlock, numbered
from admitone.boundary.reconciliation import reconcile
from admitone.core.wire import producer_id, run_header
from admitone.ledger.decision_rows import Decision, Positions, decisions_of
from admitone.ledger.model import (
    SYNCHRONOUS_DOOR,
    Claimed,
    Decided,
    Destination,
    Filter,
    Outcome,
    Source,
)
from admitone.ledger.outcomes import concluded, followed

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary

_NOTED_FOR_MS = 1_000


class Delivery(NamedTuple):
    """What one event of a request said."""

    value: bytes
    run_id: str | None = None
    """The run the request named, for envelopes that name none."""


class _Slot(OwnedPartition):
    """A source partition whose blocks are many and small, and answered at once."""

    def __init__(
        self, boundary: Boundary, source: Source, epochs: tuple[int, int], database: str
    ) -> None:
        super().__init__(boundary, source, None, epochs, database=database)
        self._noted: tuple[int, tuple[Destination, ...]] | None = None
        self.decided: dict[int, Decided] = {}

    def _destinations(self) -> tuple[Destination, ...]:
        """Return the destinations as they were a moment ago: recovery only reads a little more."""
        now = self._boundary.stopwatch()
        if self._noted is None or now - self._noted[0] > _NOTED_FOR_MS:
            self._noted = now, super()._destinations()
        return self._noted[1]

    def _leave_out(self, drifted: set[str]) -> None:
        self._noted = None
        super()._leave_out(drifted)

    def _settled(self, block: ReadBlock, claimed: Claimed, outcome: Outcome) -> Admitted:
        """Keep the answer, unless it depends on blocks that others may have resolved meanwhile."""
        row = claimed.block
        if not followed(claimed.verdicts, row.block_id):
            verdicts, bus = concluded(row.block_id, block.facts, claimed.verdicts, outcome, {})
            settled = replace(
                row,
                state=outcome.state,
                decided_at=outcome.decided_at,
                published_at=outcome.published_at,
                refused=outcome.refused,
            )
            self.decided[row.block_id] = Decided(settled, block.facts, verdicts, bus)
        return super()._settled(block, claimed, outcome)


class DoorSlot:
    """One slot of the synchronous door, held until another worker takes it over."""

    def __init__(self, boundary: Boundary, number: int) -> None:
        options = boundary.options
        identity = producer_id(options.pipeline, DOOR, boundary.transport.cluster, DOOR)
        self.source = Source(identity, number)
        self._boundary = boundary
        ledger = boundary.ledger
        boundary.keep_rules()
        ledger.register_source(self.source, options.pipeline, DOOR, DOOR, SYNCHRONOUS_DOOR)
        database = ledger.database()
        boundary.must_know_its_log()
        for _ in reconcile(boundary, source=self.source):
            pass
        self._positions = Positions(ledger)
        epochs = boundary.resolve_all(self.source, None)
        self._owned = _Slot(boundary, self.source, epochs, database)

    def admit(self, deliveries: Sequence[Delivery]) -> Iterator[list[Decision]]:
        """Decide deliveries in their order; yield the decisions of each block once it is settled."""
        self._owned.look_at_topics()
        records = numbered(
            self._owned.mark.offset + 1,
            self._boundary.clock(),
            [None] * len(deliveries),
            [delivery.value for delivery in deliveries],
            [run_header(run) for _, run in deliveries],
        )
        for admitted in self._owned.admit(records):
            decided = self._owned.decided.pop(admitted.block_id, None)
            if decided is None:
                (decided,) = self._boundary.ledger.decided(Filter(record=(admitted.block_id, 0)))
            yield decisions_of(decided, self._positions)
