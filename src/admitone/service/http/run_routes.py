"""`/v1/runs`, `/v1/status`: books, gates and lag."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from admitone.evidence.audit.closing import ClosingDocument
from admitone.ops.close import AttemptsDocument, attempts, close
from admitone.ops.status import RunLine, StatusDocument, run_lines
from admitone.ops.status import status as look
from admitone.service.door.door import DoorDocument
from admitone.service.http.context import Operator, Question, Reader, Service, answer, author_of
from admitone.service.http.problems import Details, Refused, problems
from admitone.service.live.run_views import RunDocument

router = APIRouter(prefix="/v1")

RunId = Annotated[str, Path(min_length=1, max_length=1_000, examples=["default"])]


class Closure(Question):
    """What may be missing although it is required, and who closes the run."""

    waive: list[str] = Field(
        default=[], max_length=100, description="Required families without admissions."
    )
    author: str | None = Field(
        default=None, min_length=1, max_length=200, description="Where no tokens are configured."
    )


class Runs(TypedDict):
    """Every run there is."""

    runs: list[RunLine]


class ServiceStatus(StatusDocument):
    """The same with the synchronous door of this service."""

    door: DoorDocument


@router.get("/runs", response_model=Runs, responses=problems())
async def list_runs(_: Reader, service: Service) -> Response:
    """List the runs there are."""
    found = await service.executor.run(service.stores.ledger.runs)
    return answer(Runs(runs=run_lines(found)))


@router.post("/runs/{run:path}/close", response_model=ClosingDocument, responses=problems(404, 409))
async def close_run(caller: Operator, service: Service, run: RunId, closure: Closure) -> Response:
    """Close a run; while it is red, refuse with its gate."""
    author = author_of(service, caller, closure.author)
    closing = await service.executor.run(close, service.stores, run, closure.waive, author)
    service.acted()
    if not closing.refused:
        return answer(closing.document())
    red, gate = closing.refusal(), closing.gate.document()
    details: Details = {"gate": gate["gate"], "checks": gate["checks"]}
    raise Refused(HTTPStatus.CONFLICT, red.code, red.problem, red.remedy, details=details)


@router.get("/runs/{run:path}/attempts", response_model=AttemptsDocument, responses=problems(404))
async def list_attempts(_: Reader, service: Service, run: RunId) -> Response:
    """List every try at closing a run, with the gate as it was then."""
    return answer(await service.executor.run(attempts, service.stores, run))


@router.get("/runs/{run:path}", response_model=RunDocument, responses=problems(404))
async def show_run(_: Reader, service: Service, run: RunId) -> Response:
    """Show a run's books, its gate and what blocks it."""
    return answer((await service.runs.of(run)).document)


@router.get("/status", response_model=ServiceStatus, responses=problems())
async def status(_: Reader, service: Service) -> Response:
    """Show what is running, how far behind it is, and which topics are not as agreed."""
    found = await service.executor.run(look, service.stores)
    return answer(ServiceStatus(**found, door=service.door.document()))
