"""Around every request: limits, where it may come from, the headers of its answer, and a line in the log.

It is outermost, so that no answer leaves without its headers, not even one that says we made a mistake.
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from admitone.service.http.metrics import Metrics
from admitone.service.http.problems import ACTED_ON, Refused, problem_response, refusal_of
from admitone.settings import Settings

log = logging.getLogger(__name__)

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1", "[::1]"})
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "X-Frame-Options": "DENY",
}
_NO_STORE: Final = "no-store"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Protection:
    """Wraps the app; plain ASGI, because it is passed by every event."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._limit = settings.service.max_body
        self._everything = settings.service.log == "all"
        self._here_only = not settings.access.tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status: int | None = None

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                _protect(message)
            await send(message)

        headers = Headers(scope=scope)
        refused = self._refusal(scope["method"], headers)
        try:
            if refused is not None:
                await problem_response(refused)(scope, receive, sent)
            else:
                await self._app(scope, self._limited(receive, headers), sent)
        except Exception as error:
            if not isinstance(error, ACTED_ON):
                log.exception("a request failed")
            if status is None:
                await problem_response(refusal_of(error))(scope, receive, sent)
        finally:
            self._note(scope, status or 500, time.monotonic() - began)

    def _refusal(self, method: str, headers: Headers) -> Refused | None:
        host = headers.get("host", "")
        if self._here_only and _name(host) not in LOOPBACK:
            # A page elsewhere can give its own name this machine's address.
            return Refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                "WRONG_HOST",
                "Without tokens only requests to this machine by its own name are answered.",
                "ask for localhost or 127.0.0.1, or configure tokens in [access]",
            )
        origin = headers.get("origin")
        if method not in _SAFE and origin is not None and _place(origin) != host:
            return Refused(
                HTTPStatus.FORBIDDEN,
                "FOREIGN_ORIGIN",
                "This request was made by a page of another site.",
                "use the dashboard of this service, or a program",
            )
        return None

    def _limited(self, receive: Receive, headers: Headers) -> Receive:
        announced = headers.get("content-length", "0")
        left = self._limit
        too_large = HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"Expected at most {self._limit} bytes."
        )

        async def received() -> Message:
            nonlocal left
            if announced.isdecimal() and int(announced) > self._limit:
                raise too_large
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise too_large
            return message

        return received

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        # The route, not the path: paths and questions name items, and items may be what people searched for.
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(scope["method"], route, str(status)).inc()
        self._metrics.latency.labels(route).observe(seconds)
        if self._everything or status >= 400:
            caller = scope.get("state", {}).get("caller")
            log.info(
                "request",
                extra={
                    "method": scope["method"],
                    "route": route,
                    "status": status,
                    "ms": round(seconds * 1_000, 1),
                    "caller": getattr(caller, "name", None),
                },
            )


def _protect(message: Message) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in _HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Cache-Control", _NO_STORE)


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
