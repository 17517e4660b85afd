"""A TCP proxy before PostgreSQL that cuts connections at chosen moments.

It follows the client's half of the protocol closely enough to see a COMMIT pass. What happens to the next one is
*armed*:

    BEFORE   the connection is cut, the server never hears of the COMMIT
    AFTER    the server gets the COMMIT and answers, the client is cut off before the answer
    LATE     the client is cut off at once, the server gets the COMMIT a moment later
    SILENT   the client is cut off, the server hears nothing more and keeps the connection open
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from enum import Enum, auto
from urllib.parse import urlsplit, urlunsplit

from tests.servers.tcp_proxy import TcpProxy, cut

_LATE_S = 0.4
_COMMIT = b"COMMIT\0"


class Fault(Enum):
    """What is done to a COMMIT."""

    BEFORE = auto()
    AFTER = auto()
    LATE = auto()
    SILENT = auto()


class Proxy(TcpProxy):
    """Forwards connections to a server, and cuts them when told to."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._armed: list[Fault] = []
        self._struck: set[socket.socket] = set()
        self.listen()

    def url(self, url: str) -> str:
        """Return a URL that leads through this proxy; plain text, because it reads along."""
        parts = urlsplit(url)
        where = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self.port}"
        query = "&".join(filter(None, [parts.query, "sslmode=disable&gssencmode=disable"]))
        return urlunsplit(parts._replace(netloc=where, query=query))

    def arm(self, *faults: Fault) -> None:
        """Say what happens to the next COMMITs, one each."""
        with self._lock:
            self._armed = list(faults)

    @property
    def struck(self) -> int:
        """How many COMMITs were struck."""
        return len(self._struck)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if client not in self._struck:
                    client.sendall(data)
        if client not in self._struck:
            cut(client)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        """Forward what a client sends, message by message."""
        try:
            stream = client.makefile("rb")
            (size,) = struct.unpack(">i", stream.read(4))
            server.sendall(struct.pack(">i", size) + stream.read(size - 4))
            while header := stream.read(5):
                (size,) = struct.unpack(">i", header[1:])
                message = header + stream.read(size - 4)
                if header[:1] == b"Q" and message[5:] == _COMMIT:
                    fault = self._next_fault()
                    if fault is not None:
                        self._strike(fault, client, server, message)
                        return
                server.sendall(message)
        except (OSError, struct.error):
            pass
        cut(server)
        cut(client)

    def _next_fault(self) -> Fault | None:
        with self._lock:
            return self._armed.pop(0) if self._armed else None

    def _strike(
        self, fault: Fault, client: socket.socket, server: socket.socket, message: bytes
    ) -> None:
        self._struck.add(client)
        if fault is Fault.BEFORE:
            self.meanwhile()
            cut(client)
            cut(server)
        elif fault is Fault.AFTER:
            server.sendall(message)
            time.sleep(0.05)
            self.meanwhile()
            cut(client)
            cut(server)
        elif fault is Fault.LATE:
            cut(client)
            time.sleep(_LATE_S)
            with contextlib.suppress(OSError):
                server.sendall(message)
                time.sleep(0.05)
            cut(server)
        else:
            cut(client)
