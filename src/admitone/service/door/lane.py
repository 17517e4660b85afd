"""One worker of the synchronous door: a process with a slot of its own.

It is a process, not a thread, so that deciding never waits for requests being read and answered: a block asks the
ledger some twenty times, and in one interpreter each answer would wait for its turn. It decides what it is handed,
block by block, and ends when the service that started it does; interrupts are not for it.

    python -m admitone.service.door.lane DESCRIPTOR
"""

from __future__ import annotations

import logging
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Final

from typing_extensions import TypedDict

from admitone.boundary import open_boundary
from admitone.boundary.admission import Boundary
from admitone.boundary.doors import Delivery, DoorSlot
from admitone.core.decisions import Verdict
from admitone.core.errors import AdmitoneError, Fenced, MarkMoved, ServiceUnreachable
from admitone.infra.json_log import log_to_stderr
from admitone.ledger.decision_rows import BusPlace, Decision, SourcePosition, decisions
from admitone.ledger.model import Filter
from admitone.ledger.port import LedgerReader
from admitone.service.door.door import INTERRUPTS
from admitone.service.door.slots import Slot, take_slot
from admitone.settings import Settings

log = logging.getLogger(__name__)

_RECEIPTS_KEPT: Final = 10_000


class Receipt(TypedDict):
    """An event's ticket: the same whenever and however often a client asks for it."""

    id: str
    source: SourcePosition
    bus: BusPlace | None
    identity: str | None
    payload_hash: str | None
    decided_at: str | None


class AnsweredDecision(Decision):
    """A decision, with the ticket of the event it is about where that was admitted."""

    receipt: Receipt | None


Said = list[AnsweredDecision] | AdmitoneError | None
"""What a lane says about deliveries: the decisions of a block, why it could not go on, or that all are decided."""


class Lane:
    """Decides deliveries at the slot it holds while nothing fails."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._boundary: Boundary | None = None
        self._number: Slot | None = None
        self._slot: DoorSlot | None = None
        self._receipts: _Receipts | None = None

    def decide(self, deliveries: Sequence[Delivery]) -> Iterator[Said]:
        """Yield the decisions of each block, then that there is no more, or why it could not go on."""
        decided = 0
        try:
            try:
                for rows in self._admit(deliveries):
                    decided += len(rows)
                    yield rows
            except (Fenced, MarkMoved):
                # Another worker resolved a block of ours, or the store moved on: the slot is taken over again.
                self._slot = None
                yield from self._admit(deliveries[decided:])
        except AdmitoneError as error:
            self._slot = None
            yield error
        except Exception as error:  # told to the clients that wait; the lane goes on
            log.exception("the door failed")
            self._slot = None
            yield ServiceUnreachable(f"The door failed: {error}.", "the service's log says why")
        else:
            yield None

    def close(self) -> None:
        """Let go of the slot."""
        if self._boundary is not None:
            self._boundary.close()
        if self._number is not None:
            self._number.release()

    def _admit(self, deliveries: Sequence[Delivery]) -> Iterator[list[AnsweredDecision]]:
        slot = self._owned()
        receipts = self._receipts
        assert receipts is not None
        for rows in slot.admit(deliveries):
            yield [{**row, "receipt": receipts.of(row)} for row in rows]

    def _owned(self) -> DoorSlot:
        if self._boundary is None:
            self._boundary = open_boundary(self._settings)
            self._receipts = _Receipts(self._boundary.ledger)
        if self._slot is not None:
            return self._slot
        if self._number is None or not self._number.is_held():
            self._number = take_slot(self._settings)
        self._slot = DoorSlot(self._boundary, self._number.number)
        return self._slot


class _Receipts:
    """The ticket of each event: its own admission, or the first one's; what was admitted stays so."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[tuple[int, int, int], Receipt] = OrderedDict()

    def of(self, row: Decision) -> Receipt | None:
        """Return the receipt of the event that a decision is about; None while there is none."""
        if row["verdict"] == Verdict.ADMITTED:
            return _receipt(row)
        first = row["first"]
        if first is None:
            return None
        place = (first["producer_id"], first["partition"], first["offset"])
        kept = self._kept.get(place)
        if kept is not None:
            self._kept.move_to_end(place)
            return kept
        found = next(decisions(self._ledger, Filter(source=place)), None)
        if found is None or found["verdict"] != Verdict.ADMITTED:
            return None
        self._kept[place] = _receipt(found)
        if len(self._kept) > _RECEIPTS_KEPT:
            self._kept.popitem(last=False)
        return self._kept[place]


def _receipt(row: Decision) -> Receipt:
    return {
        "id": row["id"],
        "source": row["source"],
        "bus": row["bus"],
        "identity": row["identity"],
        "payload_hash": row["payload_hash"],
        "decided_at": row["decided_at"],
    }


def work(connection: Connection) -> None:
    """Decide what the service hands in until it is gone."""
    lane = Lane(connection.recv())
    try:
        while True:
            for said in lane.decide(connection.recv()):
                connection.send(said)
    except (EOFError, OSError):
        lane.close()


if __name__ == "__main__":
    for interrupt in INTERRUPTS:
        signal.signal(interrupt, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
    log_to_stderr()
    work(Connection(int(sys.argv[1])))
