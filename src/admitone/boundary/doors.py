"""The synchronous door: deliveries that arrive one request at a time and wait for their answer.

Each worker holds a numbered slot, which is a source partition like any other: its deliveries get the slot's next
numbers, go through the same five steps and are journaled at their claim. Numbers count what was decided: a block that
is proved absent gives its own back, and whoever sent it got no answer and sends it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from admitone.boundary.ledger_age import refuse_older_ledger
from admitone.boundary.partition import OwnedPartition
from admitone.boundary.read import numbered
from admitone.boundary.reconciliation import reconcile
from admitone.core.replay import producer_id
from admitone.ledger.decision_rows import Decision, Positions, decisions_of
from admitone.ledger.model import Filter, Source

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary

SYNCHRONOUS_DOOR: Final = "synchronous"
DOOR: Final = "door"
"""What stands where other sources name their topic."""


class Delivery(NamedTuple):
    """What one event of a request said."""

    value: bytes
    run_id: str | None = None
    """The run the request named, for envelopes that name none."""


class DoorSlot:
    """One slot of the synchronous door, held until somebody else takes it over."""

    def __init__(self, boundary: Boundary, number: int) -> None:
        options = boundary.options
        identity = producer_id(options.pipeline, DOOR, boundary.transport.cluster, DOOR)
        self.source = Source(identity, number)
        self._boundary = boundary
        ledger, transport = boundary.ledger, boundary.transport
        ledger.register_source(self.source, options.pipeline, DOOR, DOOR, SYNCHRONOUS_DOOR)
        refuse_older_ledger(ledger, transport, [each.topic for each in options.contracts])
        for _ in reconcile(boundary, source=self.source):
            pass
        epochs = boundary.resolve_all(self.source, None)
        self._positions = Positions(ledger)
        self._owned = OwnedPartition(boundary, self.source, None, *epochs, None)

    def admit(self, deliveries: Sequence[Delivery]) -> Iterator[list[Decision]]:
        """Decide deliveries in their order; yield the decisions of each block once it is settled."""
        self._owned.look_at_topics()
        records = numbered(
            self._owned.mark.offset + 1,
            self._boundary.clock(),
            [None] * len(deliveries),
            [delivery.value for delivery in deliveries],
            [
                [] if run is None else [{"key": "runId", "value": run.encode()}]
                for _, run in deliveries
            ],
        )
        for admitted in self._owned.admit(records):
            decided = admitted.decided
            if decided is None:
                (decided,) = self._boundary.ledger.decided(Filter(record=(admitted.block_id, 0)))
            yield decisions_of(decided, self._positions)
