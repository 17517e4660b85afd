"""The synchronous door: requests that arrive together share one block, and each waits for its own decisions.

Every lane is handed whatever is waiting, admits it and answers; what arrives meanwhile is its next block. Nothing is
answered before its block is settled. When a lane fails or dies, whoever waited is told so: the slot is taken over
again, which resolves what was left in flight, and the same request sent again finds what became of it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final, NamedTuple

from admitone.boundary.door import Delivery
from admitone.core.decisions import Verdict
from admitone.core.errors import AdmitoneError, ServiceUnreachable
from admitone.ledger.decisions import Row
from admitone.settings import Settings

if TYPE_CHECKING:
    from admitone.service.lane import Said

log = logging.getLogger(__name__)

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
    def is_decided(self) -> bool:
        """Tell whether nothing of it is left to be decided."""
        return len(self.decided) == len(self.deliveries)


@dataclass(slots=True)
class DoorCounts:
    """What the door did since it was opened."""

    verdicts: dict[str, int] = field(default_factory=lambda: {str(v): 0 for v in Verdict})
    blocks: int = 0
    refused: int = 0
    failed: int = 0


class Door:
    """Takes requests until too many are waiting; its lanes decide them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: deque[Request] = deque()
        self._events = 0
        self._changed = threading.Condition()
        self._closing = False
        self.counts = DoorCounts()
        self._threads = [
            threading.Thread(target=self._work, name=f"lane-{number}", daemon=True)
            for number in range(settings.service.slots)
        ]

    @property
    def waiting(self) -> int:
        """Return how many events wait to be taken in."""
        return self._events

    def open(self) -> None:
        """Start handing out what waits."""
        for thread in self._threads:
            thread.start()

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
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(self._settings.service.door_timeout / 1_000)

    def _work(self) -> None:
        lane = _Lane(self._settings)
        while (requests := self._taken()) or not self._closing:
            self._answer(requests, lane)
        lane.close()

    def _answer(self, requests: list[Request], lane: _Lane) -> None:
        """Have requests decided and answer each; what an error leaves undecided is answered with it."""
        waiting = iter(requests)
        current = next(waiting, None)
        for said in lane.decide([one for request in requests for one in request.deliveries]):
            if isinstance(said, AdmitoneError):
                self._fail(requests, said)
                return
            self.counts.blocks += 1
            for row in said:
                assert current is not None
                self.counts.verdicts[row["verdict"]] += 1
                current.decided.append(row)
                if current.is_decided:
                    current.answer.set_result(current.decided)
                    current = next(waiting, None)

    def _fail(self, requests: list[Request], error: AdmitoneError) -> None:
        log.warning(
            "the door could not decide", extra={"code": error.code, "problem": error.problem}
        )
        for request in requests:
            if not request.answer.done():
                self.counts.failed += 1
                request.answer.set_exception(error)

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
    """The worker of one slot, started when there is something to decide and again after it died."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._worker: _Worker | None = None

    def decide(self, deliveries: Sequence[Delivery]) -> Iterator[list[Row] | AdmitoneError]:
        """Yield the decisions of each block; an error is the last."""
        if self._worker is None:
            self._worker = _start_worker(self._settings)
        connection = self._worker.connection
        said: Said
        try:
            connection.send(deliveries)
            while (said := connection.recv()) is not None:
                yield said
                if isinstance(said, AdmitoneError):
                    return
        except (EOFError, OSError):
            self.close()
            yield ServiceUnreachable(
                "A worker of the door ended before it had decided.",
                "send the same request again: another worker takes over",
            )

    def close(self) -> None:
        """Tell the worker that nothing more comes, and wait until it has let go of its slot."""
        if self._worker is not None:
            self._worker.connection.close()
            self._worker.process.wait()
            self._worker = None


class _Worker(NamedTuple):
    """A running lane, and how to talk to it."""

    process: subprocess.Popen[bytes]
    connection: Connection


def _start_worker(settings: Settings) -> _Worker:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "admitone.service.lane", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    ours.send(settings)
    return _Worker(process, ours)
