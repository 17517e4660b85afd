"""`GET /v1/live`: server-sent events for top-K changes, decisions per second, lag and gate colours."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

import orjson
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import StreamingResponse

from admitone.core.errors import AdmitoneError
from admitone.results.documents import TopAnswer
from admitone.service.bounded_executor import Busy
from admitone.service.http.answer_routes import Dimension, K, Where, Window
from admitone.service.http.context import Question, Reader, Service, ServiceContext
from admitone.service.http.problems import problems
from admitone.service.live.live_feed import EVERY_S, PARTS, Trouble

router = APIRouter(prefix="/v1")

_QUIET_S: Final = 10.0
_EVENT: Final = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "event": {"enum": ["topk", "rates", "lag", "gate"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "examples": [{"event": "lag", "data": '{"undecided": 0, "uncounted": 0}'}],
}


class LiveQuestion(Question):
    """Which list to follow besides everything else; none unless a dimension is named."""

    dimension: Dimension | None = None
    window: Window = "1h"
    where: Where | None = None
    k: K = 20
    beats: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="End after everything was told and this many looks.",
    )


@router.get(
    "/live",
    response_class=StreamingResponse,
    responses={
        **problems(),
        200: {
            "description": "Events `topk`, `rates`, `lag` and `gate`, each when it changes.",
            "content": {"text/event-stream": {"schema": _EVENT}},
        },
    },
)
async def live(
    _: Reader, service: Service, question: Annotated[LiveQuestion, Query()]
) -> StreamingResponse:
    """Follow what changes: an event for each part that did, looked at once a second."""
    if service.live_feed.watchers >= service.settings.service.max_watchers:
        raise Busy("As many are watching as may.")
    return StreamingResponse(
        _events(service, question),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(service: ServiceContext, question: LiveQuestion) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    async with service.live_feed.watched():
        number, told_at, asked_at = 0, time.monotonic(), 0.0
        top: TopAnswer | Trouble | None = None
        left = question.beats
        while not service.live_feed.stopping.is_set() and (left is None or left > 0):
            snapshot = await service.live_feed.after(number)
            fresh = [
                (name, document) for name, (at, document) in snapshot.parts.items() if at > number
            ]
            number = snapshot.number
            now = time.monotonic()
            if question.dimension is not None and now - asked_at >= EVERY_S / 2:
                asked_at = now
                found = await _top(service, question)
                if found != top:
                    top = found
                    fresh.append(("topk", top))
            for name, document in fresh:
                yield b"event: " + name.encode() + b"\ndata: " + orjson.dumps(document) + b"\n\n"
            if fresh:
                told_at = now
            elif now - told_at >= _QUIET_S:
                told_at = now
                yield b": still here\n\n"
            if left is not None and snapshot.parts.keys() >= PARTS:
                left -= 1


async def _top(service: ServiceContext, question: LiveQuestion) -> TopAnswer | Trouble:
    assert question.dimension is not None
    try:
        return await service.top(question.dimension, question.window, question.where, question.k)
    except AdmitoneError as error:
        return {"problem": error.problem, "remedy": error.remedy, "code": error.code}
