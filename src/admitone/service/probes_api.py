"""`/healthz`, `/readyz`, `/metrics`: for whoever keeps the service running."""

from __future__ import annotations

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from admitone.service import documents
from admitone.service.context import Reader, Service, answer
from admitone.service.describing import problems

router = APIRouter()


@router.get("/healthz", response_model=documents.Health, responses=problems())
async def health() -> Response:
    """Say that the process answers."""
    return answer({"status": "ok"})


@router.get("/readyz", response_model=documents.Health, responses=problems())
async def ready(service: Service) -> Response:
    """Say that the ledger and the log answer, too; 503 while they do not."""
    await service.asking.ask(service.stores.is_reachable)
    return answer({"status": "ok"})


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
    text = await service.asking.ask(request.app.state.metrics.text)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
