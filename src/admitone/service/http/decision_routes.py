"""`/v1/decisions`, `/v1/receipts`, `/v1/quarantine`: what was decided and why, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator, Field
from starlette.responses import Response

from admitone.boundary.release import Choice, ReleaseDocument, Signature
from admitone.core.decisions import Reason, Verdict
from admitone.evidence.audit.proof import ProofDocument
from admitone.evidence.quarantined import QuarantinedDelivery, quarantined
from admitone.ledger.decision_rows import Decision, Decisions, decisions
from admitone.ledger.model import Filter
from admitone.ledger.query_text import (
    EventReceipt,
    filter_from,
    moment_from,
    receipt_of,
)
from admitone.ops.proofs import proof
from admitone.ops.quarantine import Discarded, Quarantined, discard, list_quarantined, release
from admitone.service.http.authentication import Caller
from admitone.service.http.context import (
    Operator,
    Question,
    Reader,
    Service,
    ServiceContext,
    act,
    answer,
    ask,
    author_of,
)
from admitone.service.http.json_difference import Change, difference
from admitone.service.http.problems import problems

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


class _Pages(Question):
    limit: int = Field(default=100, ge=1, description="How many; never more than max_page.")
    cursor: Cursor = None


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
        return filter_from(**self.model_dump(exclude={"limit", "cursor"}), after=self.cursor)


class QuarantineQuestion(_Pages):
    """Which quarantined deliveries are wanted."""

    run: Name | None = None
    reason: Reason | None = None
    all: bool = Field(default=False, description="Also what was released or discarded.")


class ReceiptQuestion(Question):
    """Whose ticket is wanted."""

    event: Name
    run: Name | None = None
    event_class: Name | None = Field(default=None, alias="class")


class Disposal(Question):
    """Why something is done, and by whom."""

    reason: str = Field(min_length=1, max_length=2_000, examples=["confirmed by the producer"])
    author: str | None = Field(
        default=None, min_length=1, max_length=200, description="Where no tokens are configured."
    )


class ReleaseOrder(Disposal):
    """Why a delivery is released and, for a contradiction, what stands from then on."""

    choice: Literal["keep-first", "as-new"] | None = None


class DecisionPage(Decisions):
    """Decisions in the order they were made; `next` continues after the last."""

    next: str | None


class QuarantinePage(Quarantined):
    """Quarantined deliveries in the order they were decided; `next` continues after the last."""

    next: str | None


class ComparedDelivery(QuarantinedDelivery):
    """One quarantined delivery beside the admission it contradicts; without one there is no difference."""

    difference: list[Change] | None


@router.get("/decisions", response_model=DecisionPage, responses=problems())
async def list_decisions(
    _: Reader, service: Service, question: Annotated[DecisionQuestion, Query()]
) -> Response:
    """List what was decided and why, in the order it was decided."""

    def look() -> DecisionPage:
        rows = decisions(service.stores.ledger, question.filter())
        page, following = _page(rows, service, question)
        return DecisionPage(decisions=page, next=following)

    return await ask(service, look)


@router.get("/proof", response_model=ProofDocument, responses=problems(404, 409))
async def get_proof(
    _: Reader, service: Service, question: Annotated[ReceiptQuestion, Query()]
) -> Response:
    """Return the proof of an event's receipt, which a stranger can check without these stores."""
    return await ask(
        service, proof, service.stores, question.event, question.run, question.event_class
    )


@router.get("/receipts", response_model=EventReceipt, responses=problems(404))
async def show_receipt(
    _: Reader, service: Service, question: Annotated[ReceiptQuestion, Query()]
) -> Response:
    """Show one event's ticket and every delivery that claimed it."""
    about = (question.event, question.run, question.event_class)
    return await ask(service, receipt_of, service.stores.ledger, *about)


@router.get("/quarantine", response_model=QuarantinePage, responses=problems())
async def list_quarantine(
    _: Reader, service: Service, question: Annotated[QuarantineQuestion, Query()]
) -> Response:
    """List quarantined deliveries that nothing was done about yet."""

    def look() -> QuarantinePage:
        wanted = filter_from(run=question.run, reason=question.reason, after=question.cursor)
        rows = list_quarantined(service.stores, wanted, everything=question.all)
        page, following = _page(rows, service, question)
        return QuarantinePage(quarantined=page, next=following)

    return await ask(service, look)


@router.get("/quarantine/{id}", response_model=ComparedDelivery, responses=problems(404))
async def show_quarantined(_: Reader, service: Service, id: RecordId) -> Response:
    """Show one quarantined delivery beside the admission it contradicts, and in what they differ."""
    stores = service.stores
    shown = await service.executor.run(quarantined, stores.ledger, stores.evidence, id)
    changes = difference(shown["first_envelope"], shown["envelope"])
    return answer(ComparedDelivery(**shown, difference=changes))


@router.post(
    "/quarantine/{id}/release", response_model=ReleaseDocument, responses=problems(404, 409)
)
async def release_one(
    caller: Operator, service: Service, id: RecordId, order: ReleaseOrder
) -> Response:
    """Deliver a quarantined delivery again, by the rules in force now."""
    choice = None if order.choice is None else Choice(order.choice)
    signature = _signature(service, caller, order)

    def work() -> ReleaseDocument:
        return release(service.stores, [id], signature, choice).document()

    return await act(service, work)


@router.post("/quarantine/{id}/discard", response_model=Discarded, responses=problems(404))
async def discard_one(
    caller: Operator, service: Service, id: RecordId, order: Disposal
) -> Response:
    """Give a quarantined delivery up; it stays on record."""
    signature = _signature(service, caller, order)

    def work() -> Discarded:
        return discard(service.stores, [id], signature)

    return await act(service, work)


def _page(
    rows: Iterable[Decision], service: ServiceContext, question: _Pages
) -> tuple[list[Decision], str | None]:
    """Return the first rows, and the id to go on after where there are more; it stays good whatever is added."""
    limit = min(question.limit, service.settings.service.max_page)
    first = list(islice(rows, limit + 1))
    more = len(first) > limit
    return first[:limit], first[limit - 1]["id"] if more else None


def _signature(service: ServiceContext, caller: Caller, order: Disposal) -> Signature:
    """Return who does it, and why."""
    return Signature(author_of(service, caller, order.author), order.reason)
