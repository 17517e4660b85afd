"""`POST /v1/events`: the synchronous door."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from admitone.boundary.doors import Delivery
from admitone.ops.tokens import Role
from admitone.service.bounded_executor import TimedOut
from admitone.service.door.lane import AnsweredDecision
from admitone.service.http.context import ServiceContext, answer, context_of
from admitone.service.http.event_body import NotAnArray, events_in
from admitone.service.http.problems import Refused, problems

router = APIRouter(prefix="/v1")

_LINES: Final = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl"})
_EVENT: Final = {
    "metadata": {
        "eventId": "order-4711",
        "eventType": "purchase",
        "source": "shop",
        "timestamp": "2026-11-15T10:00:00.000Z",
        "partitionKey": "customer-17",
        "schemaVersion": 1,
    },
    "payload": {"productId": "P-100", "price": "19.99", "currency": "EUR", "quantity": 1},
}
_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "anyOf": [
                    {"type": "array", "items": {}, "description": "Envelopes, in their order."},
                    {"type": "object", "description": "One envelope."},
                ]
            },
            "examples": {"one": {"value": [_EVENT]}},
        },
        "application/x-ndjson": {
            "schema": {"type": "string", "description": "One envelope on each line."},
        },
    },
}


class Decided(TypedDict):
    """A decision for each event of a request, in its order."""

    decisions: list[AnsweredDecision]


@router.post(
    "/events",
    response_model=Decided,
    responses=problems(),
    openapi_extra={"requestBody": _BODY},
)
async def deliver(
    request: Request,
    run: Annotated[
        str | None,
        Query(min_length=1, max_length=1_000, description="The run of envelopes that name none."),
    ] = None,
) -> Response:
    """Admit events and answer with a decision and a receipt for each, in their order.

    An event is judged by its own bytes: one that is no JSON is QUARANTINED, and the others are admitted. What is
    answered is settled. No answer, or 429 or 503, says nothing about the events: send the same request again, and
    each gets the verdict it has, with the same receipt.
    """
    service = context_of(request)
    service.access.require(request, Role.INGEST)
    events = _events(request.headers.get("content-type", ""), await request.body())
    limit = service.settings.service.max_batch
    if len(events) > limit:
        raise Refused(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "TOO_MANY_EVENTS",
            f"Expected at most {limit} events in a request, got {len(events)}.",
            "send them in several requests",
        )
    if not events:
        return answer(Decided(decisions=[]))
    rows = await _decided(service, [Delivery(value, run) for value in events])
    return answer(Decided(decisions=rows))


async def _decided(service: ServiceContext, deliveries: list[Delivery]) -> list[AnsweredDecision]:
    waiting = service.door.submit(deliveries)
    patience = service.settings.service.door_timeout / 1_000
    try:
        return await asyncio.wait_for(asyncio.wrap_future(waiting), patience)
    except TimeoutError:
        raise TimedOut(
            f"The events were not decided within {patience:g} seconds; they may be yet.",
            "send the same request again: each event gets the verdict it has",
        ) from None


def _events(content_type: str, body: bytes) -> list[bytes]:
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in _LINES and kind != "application/json":
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "MEDIA_TYPE",
            f"Expected application/json or application/x-ndjson, got {kind or 'nothing'!r}.",
            "set the Content-Type header",
        )
    try:
        return events_in(body, lines=kind in _LINES)
    except NotAnArray as error:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            "NOT_AN_ARRAY",
            f"The body cannot be cut into events: {error}.",
            "send a JSON array, one event, or application/x-ndjson with one event on each line",
        ) from None
