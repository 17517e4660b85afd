"""`/v1/topk`, `/v1/items`, `/v1/trends`, `/v1/windows`: heavy hitters with their bounds (TOP-11)."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from admitone.results.documents import (
    DimensionLine,
    ItemAnswer,
    ItemHistory,
    TopAnswer,
    TotalsOfList,
    TrendAnswer,
    WindowLines,
)
from admitone.service.http.context import Question, Reader, Service, answer, ask
from admitone.service.http.problems import problems

router = APIRouter(prefix="/v1")

Window = Annotated[
    str,
    Field(
        min_length=1,
        max_length=40,
        examples=["1h"],
        description="A window key, or the newest 1m, 1h, 1d, 1w, 1mo, all.",
    ),
]
Dimension = Annotated[str, Field(min_length=1, max_length=200, examples=["url"])]
Where = Annotated[
    str,
    Field(max_length=500, pattern="^[^=]+=", examples=["deviceType=mobile"]),
]
K = Annotated[int, Field(ge=1, le=1_000, description="How many items.")]


class TopQuestion(Question):
    """Which list is wanted."""

    dimension: Dimension
    window: Window = "1h"
    where: Where | None = None
    k: K | None = None


class ItemQuestion(Question):
    """One window, or a range of them."""

    window: Window = "1h"
    first: Window | None = Field(default=None, alias="from")
    last: Window | None = Field(default=None, alias="to")


class WindowQuestion(Question):
    """Which windows are wanted, and of which list the totals."""

    size: Literal["1m", "1h", "1d", "1w", "1mo", "all"] | None = None
    newest: int = Field(default=500, ge=1, le=10_000, description="Of each size, how many.")
    dimension: Dimension | None = None
    where: Where | None = None


ItemType = Annotated[str, Path(min_length=1, max_length=200, examples=["url"])]
ItemKey = Annotated[str, Path(min_length=1, max_length=2_000, examples=["/home"])]


class Dimensions(TypedDict):
    """Every dimension there is."""

    dimensions: list[DimensionLine]


@router.get("/topk", response_model=TopAnswer, responses=problems(404))
async def top(_: Reader, service: Service, question: Annotated[TopQuestion, Query()]) -> Response:
    """Show the heaviest items of a list, with bounds."""
    return answer(
        await service.top(question.dimension, question.window, question.where, question.k)
    )


@router.get(
    "/items/{item_type}/{key:path}",
    response_model=ItemAnswer | ItemHistory,
    responses=problems(404),
)
async def item(
    _: Reader,
    service: Service,
    item_type: ItemType,
    key: ItemKey,
    question: Annotated[ItemQuestion, Query()],
) -> Response:
    """Show one item's estimate with bounds, or how it moved from one window to another."""
    most = service.settings.service.max_windows
    asked = (item_type, key, question.window, question.first, question.last, most)
    return await ask(service, lambda: service.stores.answers.item_or_history(*asked))


@router.get("/trends", response_model=TrendAnswer, responses=problems(404))
async def trend(_: Reader, service: Service, question: Annotated[TopQuestion, Query()]) -> Response:
    """Show what rose in a list since the window before, what certainly rose most first."""
    asked = (question.dimension, question.window, question.where, question.k)
    return await ask(service, lambda: service.stores.answers.trend(*asked))


@router.get("/windows", response_model=WindowLines | TotalsOfList, responses=problems(404))
async def windows(
    _: Reader, service: Service, question: Annotated[WindowQuestion, Query()]
) -> Response:
    """Show which windows there are, and what a list amounts to in each where one is named."""
    asked = (question.dimension, question.where, question.size, question.newest)
    return await ask(service, lambda: service.stores.answers.windows(*asked))


@router.get("/dimensions", response_model=Dimensions, responses=problems())
async def dimensions(_: Reader, service: Service) -> Response:
    """Show which lists there are, and the attribute values that have lists of their own."""
    return await ask(service, lambda: Dimensions(dimensions=service.stores.answers.dimensions()))
