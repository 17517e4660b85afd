"""The synchronous door: requests that arrive together share one block, and each waits for its own decisions.

A lane is a thread with a slot of its own. It takes whatever is waiting, admits it and answers; what arrives meanwhile
is its next block. Nothing is answered before its block is settled. When a lane fails, whoever waited is told so: the
slot is taken over again, which resolves what was left in flight, and the same request sent again finds what became
of it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from admitone.boundary.admission import Boundary
from admitone.boundary.door import Delivery, DoorSlot
from admitone.boundary.open import open_boundary
from admitone.core.decisions import Verdict
from admitone.core.errors import AdmitoneError, Fenced, MarkMoved, ServiceUnreachable
from admitone.ledger.decisions import Row, decisions
from admitone.ledger.port import Filter, LedgerReader
from admitone.service.slots import Slot, take_slot
from admitone.settings import Settings

log = logging.getLogger(__name__)

_RECEIPT_FIELDS: Final = ("id", "source", "bus", "identity", "payload_hash", "decided_at")
_RECEIPTS_KEPT: Final = 10_000
_EVENTS_AT_ONCE: Final = 5_000


class Full(Exception):
    """More is waiting at the door than may."""


@dataclass(slots=True)
class Request:
    """The deliveries of one request, and who waits for their decisions."""

    deliveries: Sequence[Delivery]
    answer: Future[list[Row]] = field(default_factory=Future)
    decided: list[Row] = field(default_factory=list)

    @property
    def undecided(self) -> Sequence[Delivery]:
        """Return what is still to be decided."""
        return self.deliveries[len(self.decided) :]


@dataclass(slots=True)
class DoorCounts:
    """What the door did since it was opened."""

    verdicts: dict[str, int] = field(default_factory=lambda: {str(v): 0 for v in Verdict})
    blocks: int = 0
    refused: int = 0
    failed: int = 0


class Door:
    """Takes requests until too many are waiting; its lanes decide them."""

    def __init__(self, settings: Settings, opened: Callable[[Settings], Boundary] = open_boundary):
        self._settings = settings
        self._opened = opened
        self._waiting: deque[Request] = deque()
        self._events = 0
        self._changed = threading.Condition()
        self._closing = False
        self.counts = DoorCounts()
        self._lanes = [
            threading.Thread(target=self._work, name=f"lane-{number}", daemon=True)
            for number in range(settings.service.slots)
        ]

    @property
    def waiting(self) -> int:
        """Return how many events wait to be taken in."""
        return self._events

    def open(self) -> None:
        """Start the lanes."""
        for lane in self._lanes:
            lane.start()

    def submit(self, deliveries: Sequence[Delivery]) -> Future[list[Row]]:
        """Let deliveries wait for their decisions; raise `Full` when too many wait already."""
        request = Request(deliveries)
        with self._changed:
            if self._closing:
                raise ServiceUnreachable("The service is stopping.", "send it to another one")
            if self._events + len(deliveries) > self._settings.service.max_waiting:
                self.counts.refused += 1
                raise Full
            self._waiting.append(request)
            self._events += len(deliveries)
            self._changed.notify()
        return request.answer

    def close(self) -> None:
        """Decide what is waiting, then end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for lane in self._lanes:
            if lane.ident is not None:
                lane.join(self._settings.service.door_timeout / 1_000)

    def _work(self) -> None:
        lane = _Lane(self._settings, self._opened, self.counts)
        while (requests := self._taken()) or not self._closing:
            lane.answer(requests)
        lane.close()

    def _taken(self) -> list[Request]:
        """Return what is waiting, as much as fits into a block; nothing when the door closes."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                taken = list(self._next_block())
                if taken or not self._waiting:
                    return taken

    def _next_block(self) -> Iterator[Request]:
        size = 0
        while self._waiting:
            size += len(self._waiting[0].deliveries)
            if size > _EVENTS_AT_ONCE and size > len(self._waiting[0].deliveries):
                return
            request = self._waiting.popleft()
            self._events -= len(request.deliveries)
            # Who gave up waiting sends it again.
            if request.answer.set_running_or_notify_cancel():
                yield request
            else:
                size -= len(request.deliveries)


class _Lane:
    """One worker of the door, with the slot it holds while nothing fails."""

    def __init__(
        self, settings: Settings, opened: Callable[[Settings], Boundary], counts: DoorCounts
    ) -> None:
        self._settings = settings
        self._opened = opened
        self._counts = counts
        self._boundary: Boundary | None = None
        self._number: Slot | None = None
        self._slot: DoorSlot | None = None
        self._receipts: _Receipts | None = None

    def answer(self, requests: list[Request]) -> None:
        """Decide requests and answer each; what is left undecided by an error is answered with it."""
        left = requests
        try:
            try:
                left = self._decide(left)
            except (Fenced, MarkMoved):
                # Somebody resolved a block of ours, or the store moved on: the slot is taken over again.
                self._slot = None
                left = self._decide([r for r in left if not r.answer.done()])
        except AdmitoneError as error:
            self._fail(left, error)
        except Exception as error:  # told to whoever waits; the lane goes on
            log.exception("the door failed")
            unknown = ServiceUnreachable(f"The door failed: {error}.", "the service's log says why")
            self._fail(left, unknown)

    def close(self) -> None:
        """Let go of the slot."""
        if self._boundary is not None:
            self._boundary.transport.close()
            self._boundary.ledger.close()
        if self._number is not None:
            self._number.release()

    def _decide(self, requests: list[Request]) -> list[Request]:
        slot = self._owned()
        deliveries = [one for request in requests for one in request.undecided]
        waiting = iter(requests)
        current = next(waiting, None)
        for rows in slot.admit(deliveries):
            self._counts.blocks += 1
            for row in self._with_receipts(rows):
                assert current is not None
                current.decided.append(row)
                if not current.undecided:
                    current.answer.set_result(current.decided)
                    current = next(waiting, None)
        return [request for request in requests if not request.answer.done()]

    def _owned(self) -> DoorSlot:
        if self._boundary is None:
            self._boundary = self._opened(self._settings)
            self._receipts = _Receipts(self._boundary.ledger)
        if self._slot is not None:
            return self._slot
        if self._number is None or not self._number.is_held():
            self._number = take_slot(self._settings)
        self._slot = DoorSlot(self._boundary, self._number.number)
        return self._slot

    def _with_receipts(self, rows: list[Row]) -> Iterator[Row]:
        assert self._receipts is not None
        for row in rows:
            self._counts.verdicts[row["verdict"]] += 1
            yield {**row, "receipt": self._receipts.of(row)}

    def _fail(self, requests: list[Request], error: AdmitoneError) -> None:
        log.warning(
            "the door could not decide", extra={"code": error.code, "problem": error.problem}
        )
        self._slot = None
        for request in requests:
            if not request.answer.done():
                self._counts.failed += 1
                request.answer.set_exception(error)


class _Receipts:
    """The ticket of each event: its own admission, or the first one's; what was admitted stays so."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._kept: OrderedDict[tuple[int, int, int], dict[str, Any]] = OrderedDict()

    def of(self, row: Row) -> dict[str, Any] | None:
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


def _receipt(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in _RECEIPT_FIELDS}
