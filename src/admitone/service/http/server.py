"""Runs the service: binds its port, says where it is, stops without cutting a client off."""

from __future__ import annotations

import gc
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from admitone.core.errors import ConfigurationError
from admitone.infra.json_log import log_to_stderr
from admitone.service.http.api import create_app, front_of
from admitone.settings import Settings

_GRACE_S = 10
_BACKLOG = 1_024


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until the operator stops it; `announce` is told the address once it is bound."""
    host = settings.service.host
    refuse_open_doors(settings)
    listening = _bind(host, settings.service.port)
    port = listening.getsockname()[1]
    log_to_stderr()
    app = create_app(settings)
    config = uvicorn.Config(
        front_of(app),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_BACKLOG,
    )
    # What was loaded stays; looking through it again and again for garbage would hold every request up.
    gc.freeze()
    server = _Server(config, app)
    with _stopping(server):
        announce(f"http://{f'[{host}]' if ':' in host else host}:{port}/")
        server.run(sockets=[listening])


def refuse_open_doors(settings: Settings) -> None:
    """Refuse to listen where others can reach it unless tokens are configured."""
    host = settings.service.host
    if not settings.access.tokens and not _is_here(host):
        raise ConfigurationError(
            f"Listening on {host} lets other machines in, and no token is configured.",
            "admitone token NAME --role read makes one; or listen on 127.0.0.1",
        )


class _Server(uvicorn.Server):
    """Ends live streams before it waits for open connections, which would not end by themselves."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._live_feed = app.state.context.live_feed
        self.stopped_by: set[int] = set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note which signal it was, and stop."""
        self.stopped_by.add(sig)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop taking requests, answer those that are there, and end."""
        await self._live_feed.stop()
        await super().shutdown(sockets)


@contextmanager
def _stopping(server: _Server) -> Iterator[None]:
    """Let signals stop a server from now on, not only once it runs: a client that was told its address may be quick.

    A shell starts what works in the background with SIGINT ignored; that holds for this server no longer.
    """
    before = {
        each: signal.signal(each, server.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    for each in before:
        if each in server.stopped_by:
            signal.raise_signal(each)


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(
            _BACKLOG
        )  # A client that was told the address may come before the server runs.
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host} port {port}: {error.strerror or error}.",
            "choose another with --port; --port 0 takes any that is free",
        ) from error
    return listening
