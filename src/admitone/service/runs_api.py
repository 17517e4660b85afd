"""`/v1/runs`, `/v1/status`: books, gates and lag."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from admitone.evidence.closure import Closing, gate_of, try_to_close
from admitone.service import documents
from admitone.service.context import Context, Operator, Reader, Service, answer
from admitone.service.describing import problems
from admitone.service.problems import Refused

router = APIRouter(prefix="/v1")

RunId = Annotated[str, Path(min_length=1, max_length=1_000, examples=["default"])]


class Closure(BaseModel):
    """What may be missing although it is required."""

    model_config = ConfigDict(extra="forbid")

    waive: list[str] = Field(
        default=[], max_length=100, description="Required families without admissions."
    )


@router.get("/runs", response_model=documents.Runs, responses=problems())
async def list_runs(_: Reader, service: Service) -> Response:
    """List the runs there are."""
    found = await service.asking.ask(service.stores.ledger.runs)
    return answer({"runs": [{"run_id": run, "state": state} for run, state in found.items()]})


@router.post(
    "/runs/{run:path}/close", response_model=documents.Closed, responses=problems(404, 409)
)
async def close_run(_: Operator, service: Service, run: RunId, closure: Closure) -> Response:
    """Close a run; while it is red, refuse with its gate."""
    document = await service.asking.ask(_close, service, run, tuple(closure.waive))
    service.acted()
    if not document["closed"]:
        blockers = sum(len(check["blockers"]) for check in document["checks"])
        raise Refused(
            HTTPStatus.CONFLICT,
            "RED",
            f"Run {run!r} stays open: {blockers} kinds of blockers.",
            "resolve each, then close again",
            gate=document["gate"],
            checks=document["checks"],
        )
    return answer(document)


@router.get("/runs/{run:path}", response_model=documents.RunDocument, responses=problems(404))
async def show_run(_: Reader, service: Service, run: RunId) -> Response:
    """Show a run's books, its gate and what blocks it."""
    return answer((await service.runs.of(run)).document)


@router.get("/status", response_model=documents.Status, responses=problems())
async def status(_: Reader, service: Service) -> Response:
    """Show what is running, how far behind it is, and which topics are not as agreed."""
    found = await service.asking.ask(service.stores.status)
    counts = service.door.counts
    door = {
        "waiting": service.door.waiting,
        "verdicts": counts.verdicts,
        "blocks": counts.blocks,
        "refused": counts.refused,
        "failed": counts.failed,
    }
    return answer({**found, "door": door})


def _close(service: Context, run_id: str, waived: tuple[str, ...]) -> dict[str, Any]:
    ledger, transport = service.writing_ledger, service.stores.transport
    already = ledger.runs().get(run_id) == "CLOSED"
    if already:
        gate = gate_of(run_id, ledger, transport, service.settings, waived)
        return Closing(gate, None).document(already=True)
    closing = try_to_close(run_id, ledger, transport, service.settings, waived)
    return closing.document(already=False)
