"""A TCP proxy before Kafka that strikes chosen requests.

It reads the head of each request (size, API key, API version, correlation id) and of each answer (size, correlation
id). What happens to the next requests of an API is *armed*:

    BEFORE   the connection is cut, the broker never hears of the request
    AFTER    the broker does what it is asked and answers, the connection is cut before the answer passes
    DELAYED  the answer, and with it all later ones of that connection, passes `delay` seconds later

Clients ask again on a new connection, most without telling anybody: one cut seldom shows, `ALWAYS` does.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections import Counter
from enum import Enum, IntEnum, auto
from typing import BinaryIO

from tests.servers.kafka import KafkaBroker
from tests.servers.tcp_proxy import TcpProxy, cut

ALWAYS = sys.maxsize


class Api(IntEnum):
    """The requests that can be struck, by their keys in Kafka's protocol."""

    PRODUCE = 0
    FETCH = 1
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class Fault(Enum):
    """What is done to a request."""

    BEFORE = auto()
    AFTER = auto()
    DELAYED = auto()


class KafkaProxy(TcpProxy):
    """Forwards connections of `broker.proxied`, and strikes requests when told to."""

    def __init__(self, broker: KafkaBroker) -> None:
        super().__init__(broker.behind_proxy, broker.proxy_port)
        self.delay = 0.5
        self.struck: Counter[tuple[Api, Fault]] = Counter()
        """How many requests were struck, and how."""
        self._armed: dict[int, tuple[Fault, int]] = {}
        self._waiting: dict[tuple[socket.socket, int], tuple[Api, Fault]] = {}
        self.listen()

    def arm(self, api: Api, fault: Fault, times: int = 1) -> None:
        """Say what happens to the next requests of an API."""
        with self._lock:
            self._armed[api] = (fault, times)

    def disarm(self) -> None:
        """Let everything pass again."""
        with self._lock:
            self._armed.clear()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error):
            stream = client.makefile("rb")
            while True:
                request = _message(stream)
                api, _, correlation = struct.unpack_from(">hhi", request, 4)
                fault = self._next_fault(api)
                if fault is Fault.BEFORE:
                    self._strike(Api(api), fault)
                    break
                if fault is not None:
                    self._waiting[client, correlation] = (Api(api), fault)
                server.sendall(request)
        cut(server)
        cut(client)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError, struct.error):
            stream = server.makefile("rb")
            while True:
                answer = _message(stream)
                (correlation,) = struct.unpack_from(">i", answer, 4)
                struck = self._waiting.pop((client, correlation), None)
                if struck is not None:
                    api, fault = struck
                    self._strike(api, fault)
                    if fault is Fault.AFTER:
                        break
                    time.sleep(self.delay)
                client.sendall(answer)
        cut(server)
        cut(client)

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
