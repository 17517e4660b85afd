"""`/v1/decisions`, `/v1/receipts`, `/v1/quarantine`: what was decided and why, and what to do about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.responses import Response

from admitone.boundary.admission import wall_clock
from admitone.boundary.open import open_all
from admitone.boundary.release import Choice, Signature, release_all
from admitone.core.decisions import Action, Reason, Verdict
from admitone.evidence.deliveries import open_deliveries
from admitone.evidence.quarantine import is_done, open_ones, quarantined
from admitone.ledger.decisions import decisions
from admitone.ledger.model import Filter
from admitone.ledger.questions import (
    bus_from,
    identity_from,
    moment_from,
    receipt_of,
    record_from,
    source_from,
)
from admitone.service import documents
from admitone.service.context import Context, Operator, Reader, Service, answer
from admitone.service.describing import problems
from admitone.service.differences import difference
from admitone.service.pages import page

router = APIRouter(prefix="/v1")


def _checked(read: Any) -> AfterValidator:
    def check(text: str | None) -> str | None:
        if text is not None:
            read(text)
        return text

    return AfterValidator(check)


_NUMBER = r"-?(0|[1-9][0-9]{0,17})"
Name = Annotated[str, Field(min_length=1, max_length=1_000)]
Cursor = Annotated[
    str | None,
    Field(pattern="^[0-9]{1,18}-[0-9]{1,18}$", description="`next` of the page before."),
]
Moment = Annotated[
    str | None,
    _checked(moment_from),
    Field(max_length=64, json_schema_extra={"format": "date-time"}),
]
RecordId = Annotated[str, Path(max_length=40, examples=["12-0"], description="As lists show it.")]


class _Pages(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = Field(default=100, ge=1, description="How many; never more than max_page.")
    cursor: Cursor = None

    def after(self) -> tuple[int, int] | None:
        """Return where the page before ended."""
        return None if self.cursor is None else record_from(self.cursor)


class DecisionQuestion(_Pages):
    """Which decisions are wanted."""

    run: Name | None = None
    verdict: Verdict | None = None
    reason: Reason | None = None
    event: Name | None = None
    event_class: Name | None = Field(default=None, alias="class")
    identity: str | None = Field(default=None, pattern="^[0-9a-f]{64}$")
    source: str | None = Field(
        default=None, pattern=f"^({_NUMBER}:)?{_NUMBER}:{_NUMBER}$", examples=["0:17"]
    )
    bus: str | None = Field(
        default=None, max_length=300, pattern=f"^[^:]+:{_NUMBER}:{_NUMBER}$", examples=["admitted.traffic:0:17"]
    )  # fmt: skip
    since: Moment = None
    until: Moment = None

    def filter(self) -> Filter:
        """Return the question as the ledger understands it."""
        return Filter(
            run_id=self.run,
            verdict=self.verdict,
            reason=self.reason,
            event_id=self.event,
            event_class=self.event_class,
            identity=None if self.identity is None else identity_from(self.identity),
            source=None if self.source is None else source_from(self.source),
            bus=None if self.bus is None else bus_from(self.bus),
            since=None if self.since is None else moment_from(self.since),
            until=None if self.until is None else moment_from(self.until),
            after=self.after(),
        )


class QuarantineQuestion(_Pages):
    """Which quarantined deliveries are wanted."""

    run: Name | None = None
    reason: Reason | None = None
    all: bool = Field(default=False, description="Also what was released or discarded.")


class ReceiptQuestion(BaseModel):
    """Whose ticket is wanted."""

    model_config = ConfigDict(extra="forbid")

    event: Name
    run: Name | None = None
    event_class: Name | None = Field(default=None, alias="class")


class Disposal(BaseModel):
    """Why something is done, and by whom."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(min_length=1, max_length=2_000, examples=["confirmed by the producer"])
    author: str | None = Field(
        default=None, min_length=1, max_length=200, description="Where no tokens are configured."
    )


class ReleaseOrder(Disposal):
    """Why a delivery is released and, for a contradiction, what stands from then on."""

    choice: Literal["keep-first", "as-new"] | None = None


@router.get("/decisions", response_model=documents.DecisionPage, responses=problems())
async def list_decisions(
    _: Reader, service: Service, question: Annotated[DecisionQuestion, Query()]
) -> Response:
    """List what was decided and why, in the order it was decided."""
    wanted = question.filter()
    rows, following = await service.asking.ask(
        lambda: page(decisions(service.stores.ledger, wanted), _size(service, question))
    )
    return answer({"decisions": rows, "next": following})


@router.get("/receipts", response_model=documents.EventReceipt, responses=problems(404))
async def show_receipt(
    _: Reader, service: Service, question: Annotated[ReceiptQuestion, Query()]
) -> Response:
    """Show one event's ticket and every delivery that claimed it."""
    return answer(
        await service.asking.ask(
            receipt_of, service.stores.ledger, question.event, question.run, question.event_class
        )
    )


@router.get("/quarantine", response_model=documents.QuarantinePage, responses=problems())
async def list_quarantined(
    _: Reader, service: Service, question: Annotated[QuarantineQuestion, Query()]
) -> Response:
    """List quarantined deliveries that nothing was done about yet."""
    wanted = Filter(
        run_id=question.run,
        verdict=Verdict.QUARANTINED,
        reason=question.reason,
        after=question.after(),
    )

    def found() -> tuple[list[dict[str, Any]], str | None]:
        rows = decisions(service.stores.ledger, wanted)
        open_rows = (row for row in rows if question.all or not is_done(row))
        return page(open_rows, _size(service, question))

    rows, following = await service.asking.ask(found)
    return answer({"quarantined": rows, "next": following})


@router.get("/quarantine/{id}", response_model=documents.Quarantined, responses=problems(404))
async def show_quarantined(_: Reader, service: Service, id: RecordId) -> Response:
    """Show one quarantined delivery beside the admission it contradicts, and in what they differ."""
    stores = service.stores
    found = await service.asking.ask(quarantined, stores.ledger, stores.evidence, id)
    found["difference"] = difference(found["first_envelope"], found["envelope"])
    return answer(found)


@router.post(
    "/quarantine/{id}/release", response_model=documents.Released, responses=problems(404, 409)
)
async def release_one(
    caller: Operator, service: Service, id: RecordId, order: ReleaseOrder
) -> Response:
    """Deliver a quarantined delivery again, by the rules in force now."""
    choice = None if order.choice is None else Choice(order.choice)
    signature = Signature(_author(service, caller.name, order), order.reason)

    def work() -> dict[str, Any]:
        boundaries = open_all(service.settings)
        ledger = boundaries[0].ledger
        try:
            chosen = open_ones(ledger, [id])
            fetch = open_deliveries(service.settings, ledger)
            return release_all(boundaries, fetch, chosen, signature, choice).document()
        finally:
            for boundary in boundaries:
                boundary.transport.close()

    report = await service.asking.ask(work)
    service.acted()
    return answer(report)


@router.post(
    "/quarantine/{id}/discard", response_model=documents.Discarded, responses=problems(404)
)
async def discard_one(
    caller: Operator, service: Service, id: RecordId, order: Disposal
) -> Response:
    """Give a quarantined delivery up; it stays on record."""
    author = _author(service, caller.name, order)

    def work() -> int:
        ledger = service.writing_ledger
        chosen = open_ones(ledger, [id])
        return sum(
            ledger.dispose(block, ordinals, Action.DISCARDED, wall_clock(), author, order.reason)
            for block, ordinals in chosen.items()
        )

    discarded = await service.asking.ask(work)
    service.acted()
    return answer({"discarded": discarded})


def _size(service: Context, question: _Pages) -> int:
    return min(question.limit, service.settings.service.max_page)


def _author(service: Context, name: str, order: Disposal) -> str:
    """Return who does something: the token's name, which cannot be chosen, or what somebody here says."""
    return order.author or name if service.access.is_open else name
