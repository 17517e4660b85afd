"""The synchronous door: requests that arrive together share one block, and each waits for its own decisions.

Every lane is handed whatever is waiting, admits it and answers; what arrives meanwhile is its next block. Nothing is
answered before its block is settled. When a lane fails or dies, the clients that waited are told so: the slot is taken
over again, which resolves what was left in flight, and the same request sent again finds what became of it.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import TypedDict

from admitone.boundary.doors import Delivery
from admitone.core.decisions import Verdict
from admitone.core.errors import AdmitoneError, ServiceUnreachable
from admitone.service.bounded_executor import Busy
from admitone.settings import Settings

if TYPE_CHECKING:
    from admitone.service.door.lane import AnsweredDecision, Said

log = logging.getLogger(__name__)

_EVENTS_AT_ONCE: Final = 5_000
_GRACE_S: Final = 10.0
INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM)
"""What ends a service, and must not end its workers before they have answered."""


@dataclass(slots=True)
class Request:
    """The deliveries of one request, and who waits for their decisions."""

    deliveries: Sequence[Delivery]
    answer: Future[list[AnsweredDecision]] = field(default_factory=Future)
    decided: list[AnsweredDecision] = field(default_factory=list)

    @property
    def is_decided(self) -> bool:
        """Tell whether nothing of it is left to be decided."""
        return len(self.decided) == len(self.deliveries)


class DoorCounts(TypedDict):
    """What the door did since it was opened."""

    verdicts: dict[str, int]
    blocks: int
    refused: int
    failed: int


class DoorDocument(DoorCounts):
    """The same, and how many events wait at it."""

    waiting: int


class Door:
    """Takes requests until too many are waiting; its lanes decide them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._requests: deque[Request] = deque()
        self.waiting = 0
        """How many events wait to be taken in."""
        self._changed = threading.Condition()
        self._closing = False
        self.counts: DoorCounts = {
            "verdicts": {str(verdict): 0 for verdict in Verdict},
            "blocks": 0, "refused": 0, "failed": 0,
        }  # fmt: skip
        self._lanes = [_Lane(settings) for _ in range(settings.service.slots)]
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"lane-{number}", daemon=True)
            for number, lane in enumerate(self._lanes)
        ]

    def document(self) -> DoorDocument:
        """Return how it stands, as the interface spells it."""
        return {**self.counts, "waiting": self.waiting}

    def open(self) -> None:
        """Start handing out what waits."""
        for thread in self._threads:
            thread.start()

    def submit(self, deliveries: Sequence[Delivery]) -> Future[list[AnsweredDecision]]:
        """Let deliveries wait for their decisions; raise `Busy` when too many wait already."""
        request = Request(deliveries)
        with self._changed:
            if self._closing:
                raise ServiceUnreachable("The service is stopping.", "send it to another one")
            if self.waiting + len(deliveries) > self._settings.service.max_waiting:
                self.counts["refused"] += 1
                raise Busy(f"{self.waiting} events are waiting at the door, and it takes no more.")
            self._requests.append(request)
            self.waiting += len(deliveries)
            self._changed.notify()
        return request.answer

    def close(self) -> None:
        """Decide what is waiting, then end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        deadline = time.monotonic() + self._settings.service.door_timeout / 1_000
        for thread, lane in zip(self._threads, self._lanes, strict=True):
            if thread.ident is not None:
                thread.join(max(deadline - time.monotonic(), 0))
                if thread.is_alive():
                    lane.kill()
                    thread.join(_GRACE_S)

    def _work(self, lane: _Lane) -> None:
        while (requests := self._taken()) or not self._closing:
            try:
                self._answer(requests, lane)
            except AdmitoneError as error:
                self._fail(requests, error)
            except (
                Exception
            ) as error:  # told to the clients that wait; the lane goes on with another worker
                died = isinstance(error, EOFError | OSError)
                log.error("a worker of the door is lost", exc_info=None if died else error)
                self._fail(requests, _lost(error))
                lane.close()
        lane.close()

    def _answer(self, requests: list[Request], lane: _Lane) -> None:
        """Have requests decided and answer each; what an error leaves undecided is answered with it."""
        waiting = iter(requests)
        current = next(waiting, None)
        for rows in lane.decide([one for request in requests for one in request.deliveries]):
            self.counts["blocks"] += 1
            for row in rows:
                assert current is not None
                self.counts["verdicts"][row["verdict"]] += 1
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
                self.counts["failed"] += 1
                request.answer.set_exception(error)

    def _taken(self) -> list[Request]:
        """Return what is waiting, as much as fits into a block; nothing when the door closes."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._requests or self._closing)
                taken = list(self._next_block())
                if taken or not self._requests:
                    return taken

    def _next_block(self) -> Iterator[Request]:
        size = 0
        while self._requests:
            size += len(self._requests[0].deliveries)
            if size > _EVENTS_AT_ONCE and size > len(self._requests[0].deliveries):
                return
            request = self._requests.popleft()
            self.waiting -= len(request.deliveries)
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

    def decide(self, deliveries: Sequence[Delivery]) -> Iterator[list[AnsweredDecision]]:
        """Yield the decisions of each block, or raise what the worker says; whatever else is raised, it is lost."""
        if self._worker is None:
            self._worker = _start_worker()
            self._worker.connection.send(self._settings)
        connection = self._worker.connection
        connection.send(deliveries)
        said: Said
        while (said := connection.recv()) is not None:
            if isinstance(said, AdmitoneError):
                raise said
            yield said

    def close(self) -> None:
        """Tell the worker that nothing more comes, and wait until it has let go of its slot."""
        if self._worker is None:
            return
        self._worker.connection.close()
        try:
            self._worker.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._worker.process.wait()
        self._worker = None

    def kill(self) -> None:
        """End a worker that does not answer: the worker that takes its slot over resolves what it left."""
        if self._worker is not None:
            self._worker.process.kill()


class _Worker(NamedTuple):
    """A running lane, and how to talk to it."""

    process: subprocess.Popen[bytes]
    connection: Connection


def _start_worker() -> _Worker:
    ours, theirs = Pipe()
    # Interrupts are held back until the worker ignores them. -P: nothing is imported from where one happens to stand.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "admitone.service.door.lane", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return _Worker(process, ours)


def _lost(error: Exception) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"A worker of the door ended before it had decided: {error or type(error).__name__}.",
        "send the same request again: another worker takes over",
    )
