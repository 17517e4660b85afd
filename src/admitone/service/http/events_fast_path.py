"""Past the framework, for the one request that comes a thousand times a second.

Finding the route, its parameters and what it depends on costs several times what a single event at the synchronous door
does. So the plain form of that request goes straight to the function that answers it; every other request, and the
description of this one, stay where they were. What it raises is told by `Protection`, as every error that comes so far.
"""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from admitone.service.http import event_routes as events_api

_PATH: Final = "/v1/events"
(_ROUTE,) = events_api.router.routes


class EventsFastPath:
    """Wraps the app."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer events delivered without further parameters; let the app answer anything else."""
        plain = scope["type"] == "http" and scope["path"] == _PATH and scope["method"] == "POST"
        if not plain or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        scope["app"], scope["route"] = self._app, _ROUTE
        response = await events_api.deliver(Request(scope, receive))
        await response(scope, receive, send)
