"""What the routes say about themselves: the answers they may give besides the good one."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter

from admitone.service.http.problems import MEDIA_TYPE, Problem

_REFERENCE: Final = "#/components/schemas/{}"
_SCHEMA: Final = {"$ref": _REFERENCE.format("Problem")}
_ALWAYS: Final = (400, 401, 403, 405, 413, 415, 421, 422, 429, 500, 503)
_TITLE: Final = "admitone"
_ABOUT: Final = """\
Every event gets in once and gets a ticket, or you know why not.

Errors are problem documents (RFC 9457) with a stable `code` and, where there is one, a `remedy`. Documents are those of
the command line's `--json`. Lists come in pages: hand `next` back as `cursor`.
"""

Answers = dict[int | str, dict[str, Any]]


def problems(*statuses: int) -> Answers:
    """Return the problem answers of a route: those every route may give, and its own."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": _SCHEMA}},
        }
        for status in sorted({*_ALWAYS, *statuses})
    }


def describe(app: FastAPI, version: str, *, tokens: bool) -> None:
    """Let an app describe itself, its problem documents included."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=_TITLE, version=version, description=_ABOUT, routes=app.routes
            )
            components = schema.setdefault("components", {})
            problem = TypeAdapter(Problem).json_schema(ref_template=_REFERENCE.format("{model}"))
            described = {**problem.pop("$defs"), "Problem": problem}
            components["schemas"] = {**described, **components.get("schemas", {})}
            if tokens:
                components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                schema["security"] = [{"token": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
