"""A TCP proxy before Kafka that strikes chosen requests.

It reads the head of each request (size, API key, API version, correlation id) and of each answer (size, correlation
id). What happens to the next requests of an API is *armed*:

    BEFORE   the connection is cut, the broker never hears of the request
    AFTER    the broker does what it is asked and answers, the connection is cut before the answer passes
    DELAYED  the answer, and with it all later ones of that connection, passes `delay` seconds later
    HELD     the connection is cut; the broker gets the request on it later, when `deliver` is called

Clients ask again on a new connection, most without telling anybody: one cut seldom shows, `ALWAYS` does.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import BinaryIO

from tests.servers.kafka import KafkaBroker
from tests.servers.tcp_proxy import TcpProxy, cut

ALWAYS = sys.maxsize
_PATIENCE_S = 5.0


class Api(IntEnum):
    """The requests that can be struck, by their keys in Kafka's protocol."""

    PRODUCE = 0
    FETCH = 1
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28


class Fault(Enum):
    """What is done to a request."""

    BEFORE = auto()
    AFTER = auto()
    DELAYED = auto()
    HELD = auto()


@dataclass
class HeldRequest:
    """A request on its way: the client gave up waiting for it, the broker has not heard of it yet."""

    api: Api
    server: socket.socket
    message: bytes
    answered: threading.Event = field(default_factory=threading.Event)


class KafkaProxy(TcpProxy):
    """Forwards connections of `broker.proxied`, and strikes requests when told to."""

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker.behind_proxy, broker.proxy_port)
        self.delay = 0.5
        self.struck: Counter[tuple[Api, Fault]] = Counter()
        """How many requests were struck, and how."""
        self.delivered: Counter[Api] = Counter()
        """How many requests that were held back the broker has answered."""
        self._armed: dict[int, tuple[Fault, int]] = {}
        self._waiting: dict[tuple[socket.socket, int], tuple[Api, Fault]] = {}
        self._unanswered: set[tuple[socket.socket, int]] = set()
        self._held: dict[tuple[socket.socket, int], HeldRequest] = {}
        self._due: tuple[Api, int] | None = None
        self.listen()

    def arm(self, api: Api, fault: Fault, times: int = 1) -> None:
        """Say what happens to the next requests of an API."""
        with self._lock:
            self._armed[api] = (fault, times)

    def disarm(self) -> None:
        """Let everything pass again; what is held back stays so."""
        with self._lock:
            self._armed.clear()
            self._due = None

    def deliver(self) -> int:
        """Let the broker have what is held back; return how many requests there were."""
        with self._lock:
            held = list(self._held.values())
        for each in held:
            with contextlib.suppress(OSError):
                each.server.sendall(each.message)
                each.answered.wait(_PATIENCE_S)
            cut(each.server)
        with self._lock:
            self._held = {key: each for key, each in self._held.items() if each not in held}
        return len(held)

    def deliver_before(self, api: Api, number: int = 1) -> None:
        """Deliver what is held back just before that many more requests of an API have passed."""
        with self._lock:
            self._due = (api, number)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error):
            stream = client.makefile("rb")
            while True:
                request = _message(stream)
                api, _, correlation = struct.unpack_from(">hhi", request, 4)
                if self._is_due(api):
                    self._wait_for_answers(client)
                    self.deliver()
                fault = self._next_fault(api)
                if fault is Fault.BEFORE:
                    self._strike(Api(api), fault)
                    break
                if fault is Fault.HELD:
                    held = HeldRequest(Api(api), server, request)
                    with self._lock:
                        self._held[client, correlation] = held
                    self._strike(Api(api), fault)
                    cut(client)
                    return
                if fault is not None:
                    self._waiting[client, correlation] = (Api(api), fault)
                self._unanswered.add((client, correlation))
                server.sendall(request)
        cut(server)
        cut(client)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error):
            stream = server.makefile("rb")
            while True:
                answer = _message(stream)
                (correlation,) = struct.unpack_from(">i", answer, 4)
                self._unanswered.discard((client, correlation))
                held = self._held.get((client, correlation))
                if held is not None:
                    with self._lock:
                        self.delivered[held.api] += 1
                    held.answered.set()
                    break
                struck = self._waiting.pop((client, correlation), None)
                if struck is not None:
                    api, fault = struck
                    self._strike(api, fault)
                    if fault is Fault.AFTER:
                        break
                    time.sleep(self.delay)
                self._pass_on(client, answer)
        cut(server)
        cut(client)

    def _pass_on(self, client: socket.socket, answer: bytes) -> None:
        try:
            client.sendall(answer)
        except OSError:
            # What is held back still goes to the broker on this connection.
            if not any(parted is client for parted, _ in self._held):
                raise

    def _is_due(self, api: int) -> bool:
        with self._lock:
            if self._due is None or self._due[0] != api:
                return False
            _, number = self._due
            self._due = (Api(api), number - 1) if number > 1 else None
            return number == 1

    def _wait_for_answers(self, client: socket.socket) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while any(asking is client for asking, _ in set(self._unanswered)):
            if time.monotonic() > deadline:
                return
            time.sleep(0.001)

    def _next_fault(self, api: int) -> Fault | None:
        with self._lock:
            fault, times = self._armed.pop(api, (None, 0))
            if fault is not None and times > 1:
                self._armed[api] = (fault, times - 1)
            return fault

    def _strike(self, api: Api, fault: Fault) -> None:
        with self._lock:
            self.struck[api, fault] += 1
        self.meanwhile()


def _message(stream: BinaryIO) -> bytes:
    """Read a size and as many bytes; a stream that ends is a `struct.error`."""
    head = stream.read(4)
    (size,) = struct.unpack(">i", head)
    return head + stream.read(size)
