"""`/healthz`, `/readyz`, `/metrics`: for those who operate the service."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response
from typing_extensions import TypedDict

from admitone.ops.stores import Stores
from admitone.service.http.context import Reader, Service, answer
from admitone.service.http.problems import problems

router = APIRouter()


class Health(TypedDict):
    """That the process answers, or that everything it needs does."""

    status: Literal["ok"]


@router.get("/healthz", response_model=Health, responses=problems())
async def health() -> Response:
    """Say that the process answers."""
    return answer(Health(status="ok"))


@router.get("/readyz", response_model=Health, responses=problems())
async def ready(service: Service) -> Response:
    """Say that the ledger and the log answer, too; 503 while they do not."""
    await service.executor.run(_ask_stores, service.stores)
    return answer(Health(status="ok"))


def _ask_stores(stores: Stores) -> None:
    """Ask the ledger and the log something cheap; what is wrong is raised."""
    stores.ledger.runs()
    stores.transport.describe([stores.settings.transport.raw_topic])


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **problems(),
        200: {
            "description": "Prometheus' text format.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def metrics(_: Reader, service: Service, request: Request) -> Response:
    """Show what Prometheus reads."""
    text = await service.executor.run(request.app.state.metrics.text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
