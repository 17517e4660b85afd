"""The HTTP service: API, synchronous door, live events, metrics and the dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from admitone.service.http import answer_routes as answers_api
from admitone.service.http import decision_routes as decisions_api
from admitone.service.http import event_routes as events_api
from admitone.service.http import live_routes as live_api
from admitone.service.http import probe_routes as probes_api
from admitone.service.http import run_routes as runs_api
from admitone.service.http.context import ServiceContext
from admitone.service.http.metrics import Metrics
from admitone.service.http.problems import REFERENCE, Problem, tell_problems
from admitone.service.http.protection import Protection
from admitone.settings import Settings

_ABOUT: Final = """\
Every event gets in once and gets a ticket, or you know why not.

Errors are problem documents (RFC 9457) with a stable `code` and, where there is one, a `remedy`. Documents are those of
the command line's `--json`. Lists come in pages: hand `next` back as `cursor`. Of windows the newest are answered:
`newest` of each size, of an item's history `max_windows` of `[service]`.
"""
_EVENTS: Final = "/v1/events"
(_ROUTE,) = events_api.router.routes
ROUTERS: Final = (events_api, decisions_api, runs_api, answers_api, live_api, probes_api)


def create_app(settings: Settings) -> FastAPI:
    """Return the service over these settings; nothing starts before the app does."""
    context = ServiceContext(settings)
    metrics = Metrics(context.stores, context.door)

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        context.start()
        try:
            yield
        finally:
            await context.live_feed.stop()
            await context.close()

    app = FastAPI(lifespan=living, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.context = context
    app.state.metrics = metrics
    tell_problems(app)
    for module in ROUTERS:
        app.include_router(module.router)
    _serve_pages(app)
    _describe(app, version("admitone"), tokens=not context.access.is_open)
    return app


def front_of(app: FastAPI) -> ASGIApp:
    """Return what requests come to: the service behind its protection."""
    return Protection(EventsFastPath(app), app.state.context.settings, app.state.metrics)


class EventsFastPath:
    """Past the framework, for the one request that comes a thousand times a second.

    Finding the route, its parameters and what it depends on costs several times what a single event at the synchronous
    door does. So the plain form of that request goes straight to the function that answers it; every other request, and
    the description of this one, stay where they were. What it raises is told by `Protection`, as every error that comes
    so far.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer events delivered without further parameters; let the app answer anything else."""
        plain = scope["type"] == "http" and scope["path"] == _EVENTS and scope["method"] == "POST"
        if not plain or scope["query_string"]:
            await self._app(scope, receive, send)
            return
        scope["app"], scope["route"] = self._app, _ROUTE
        response = await events_api.deliver(Request(scope, receive))
        await response(scope, receive, send)


def _describe(app: FastAPI, version: str, *, tokens: bool) -> None:
    """Let an app describe itself, its problem documents included."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title="admitone", version=version, description=_ABOUT, routes=app.routes
            )
            components = schema.setdefault("components", {})
            problem = TypeAdapter(Problem).json_schema(ref_template=REFERENCE.format("{model}"))
            described = {**problem.pop("$defs"), "Problem": problem}
            components["schemas"] = {**described, **components.get("schemas", {})}
            if tokens:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                schema["security"] = [{"token": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _serve_pages(app: FastAPI) -> None:
    """Serve the dashboard: plain files of this package, nothing from anywhere else."""
    web = files("admitone.service") / "web"

    def page(name: str) -> Response:
        return Response(
            (web / name).read_bytes(), headers={"Cache-Control": "no-cache"}, media_type="text/html"
        )

    app.add_api_route("/", lambda: page("index.html"), include_in_schema=False)
    app.add_api_route("/docs", lambda: page("docs.html"), include_in_schema=False)
    app.mount("/web", StaticFiles(packages=[("admitone.service", "web")]), name="web")
