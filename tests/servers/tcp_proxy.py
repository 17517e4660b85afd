"""The part of a TCP proxy that knows no protocol: it connects both ends and can cut all of them."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable


class TcpProxy(ABC):
    """Connects clients of `port` with a server on `target`; two threads of each pair carry what is said."""

    def __init__(self, target: int, port: int = 0) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        """What else happens between a fault's effect on the server and the client's learning of it."""

    def listen(self) -> None:
        """Begin to accept connections."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_all(self) -> int:
        """Cut every connection now; return how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                cut(end)
        return len(pairs)

    def lets_in(self, client: socket.socket) -> bool:
        """Tell whether a new connection may be forwarded."""
        return True

    def close(self) -> None:
        """Stop listening and cut everything."""
        cut(self._listener)
        self.cut_all()

    @abstractmethod
    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        """Carry what a client says, until its end."""

    @abstractmethod
    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        """Carry what a server says, until its end."""

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.lets_in(client):
                    cut(client)
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    cut(client)
                    continue
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._pairs.append((client, server))
                for work in (self._answers, self._requests):
                    threading.Thread(target=work, args=(client, server), daemon=True).start()


def cut(end: socket.socket) -> None:
    """Close a socket under whoever uses it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
