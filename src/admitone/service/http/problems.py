"""Errors as RFC 9457 problem documents: what happened, under which code, what to try; and which a route may give."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, NotRequired

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from typing_extensions import TypedDict

from admitone.core.closure import CheckDocument
from admitone.core.errors import (
    AdmitoneError,
    AmbiguityRemains,
    CircuitOpen,
    ConfigurationError,
    ContractDrift,
    Fenced,
    IntegrityError,
    MarkMoved,
    NotFound,
    RunIsRed,
    ServiceUnreachable,
)
from admitone.service.bounded_executor import OUR_MISTAKE, Busy, TimedOut

MEDIA_TYPE: Final = "application/problem+json"
REFERENCE: Final = "#/components/schemas/{}"
_ALWAYS: Final = (400, 401, 403, 405, 413, 415, 421, 422, 429, 500, 503)
_RETRY_AFTER_S: Final = 1
_COME_AGAIN: Final = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
# As RFC 9110 spells them; Python's own names changed between its versions.
_TITLES: Final = {413: "Content Too Large", 422: "Unprocessable Content"}

_STATUS: Final[dict[type[AdmitoneError], HTTPStatus]] = {
    NotFound: HTTPStatus.NOT_FOUND,
    RunIsRed: HTTPStatus.CONFLICT,
    AmbiguityRemains: HTTPStatus.CONFLICT,
    ContractDrift: HTTPStatus.CONFLICT,
    AdmitoneError: HTTPStatus.CONFLICT,
    Busy: HTTPStatus.TOO_MANY_REQUESTS,
    TimedOut: HTTPStatus.SERVICE_UNAVAILABLE,
    ServiceUnreachable: HTTPStatus.SERVICE_UNAVAILABLE,
    CircuitOpen: HTTPStatus.SERVICE_UNAVAILABLE,
    Fenced: HTTPStatus.SERVICE_UNAVAILABLE,
    MarkMoved: HTTPStatus.SERVICE_UNAVAILABLE,
    ConfigurationError: HTTPStatus.SERVICE_UNAVAILABLE,
    IntegrityError: HTTPStatus.INTERNAL_SERVER_ERROR,
}


class WrongValue(TypedDict):
    """One thing that is wrong with a request."""

    where: Annotated[str, Field(examples=["query.k"])]
    problem: Annotated[str, Field(examples=["Input should be less than or equal to 1000"])]


class Details(TypedDict, total=False):
    """What only some problems carry: what is wrong with a request, or the gate of a run that stays open."""

    errors: list[WrongValue]
    gate: Literal["green", "red"]
    checks: list[CheckDocument]


class Problem(Details):
    """What went wrong (RFC 9457), under which code, and what to try."""

    type: Annotated[str, Field(examples=["urn:admitone:problem:NOT_FOUND"])]
    title: Annotated[str, Field(examples=["Not Found"])]
    status: Annotated[int, Field(examples=[404])]
    detail: Annotated[str, Field(examples=["There is no dimension 'urls'."])]
    code: Annotated[str, Field(examples=["NOT_FOUND"])]
    remedy: NotRequired[Annotated[str, Field(examples=["did you mean 'url'?"])]]


@dataclass(eq=False)
class Refused(Exception):
    """A request that is answered with a problem document of its own making."""

    status: HTTPStatus
    code: str
    detail: str
    remedy: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    details: Details = field(default_factory=Details)


ACTED_ON: Final = (Refused, AdmitoneError, HTTPException, RequestValidationError)
"""What a caller can act on; whatever else is raised is a mistake of ours."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problem answers of a route: those every route may give, and its own."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": REFERENCE.format("Problem")}}},
        }
        for status in sorted({*_ALWAYS, *statuses})
    }


def problem_response(refused: Refused) -> Response:
    """Return the problem document of a refusal."""
    document: Problem = {
        "type": f"urn:admitone:problem:{refused.code}",
        "title": _title(refused.status),
        "status": int(refused.status),
        "detail": refused.detail,
        "code": refused.code,
    }
    if refused.remedy:
        document["remedy"] = refused.remedy
    document = {**document, **refused.details}
    return Response(orjson.dumps(document), refused.status, refused.headers, MEDIA_TYPE)


def refusal_of(error: Exception) -> Refused:
    """Return how an error is told: what the caller can act on, or only that it is our mistake."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, AdmitoneError):
        return _known(error)
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return _http(error)
    return Refused(HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL", OUR_MISTAKE)


def tell_problems(app: FastAPI) -> None:
    """Let every error be answered with a problem document, a mistake of ours too."""

    async def tell(_: Request, error: Exception) -> Response:
        return problem_response(refusal_of(error))

    for kind in (*ACTED_ON, Exception):
        app.add_exception_handler(kind, tell)


def _known(error: AdmitoneError) -> Refused:
    kind = next(kind for kind in type(error).__mro__ if kind in _STATUS)
    status = _STATUS[kind]
    headers = {"Retry-After": str(_RETRY_AFTER_S)} if status in _COME_AGAIN else {}
    return Refused(status, error.code, error.problem, error.remedy, headers)


def _http(error: HTTPException) -> Refused:
    status = HTTPStatus(error.status_code)
    detail = error.detail if error.detail != status.phrase else status.description
    code = _title(status).upper().replace(" ", "_")
    return Refused(status, code, detail or _title(status), None, dict(error.headers or {}))


def _invalid(error: RequestValidationError) -> Refused:
    errors: list[WrongValue] = [
        {"where": ".".join(str(part) for part in each["loc"]), "problem": each["msg"]}
        for each in error.errors()
    ]
    wrong = "; ".join(f"{each['where']}: {each['problem']}" for each in errors)
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    details: Details = {"errors": errors}
    return Refused(status, "INVALID", wrong, "/docs describes the request", details=details)


def _title(status: HTTPStatus) -> str:
    return _TITLES.get(status, status.phrase)
