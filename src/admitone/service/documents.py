"""What the answers look like, for the description at `/openapi.json`; the documents are those of the command line."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from admitone.core.decisions import Action, Reason, Verdict
from admitone.results.port import ItemAnswer, WindowLine, WindowTotals


class SourcePosition(BaseModel):
    """Where a delivery came from."""

    producer_id: int
    partition: int
    offset: int


class BusPlace(BaseModel):
    """Where an admitted event is on the log."""

    topic: str
    partition: int
    offset: int
    offset_kind: str
    published_at: str | None


class Resolution(BaseModel):
    """What was done later."""

    action: Action
    at: str
    author: str
    reason: str


class Receipt(BaseModel):
    """An event's ticket: the same whenever and however often it is asked for."""

    id: str = Field(examples=["12-0"])
    source: SourcePosition
    bus: BusPlace | None
    identity: str
    payload_hash: str
    decided_at: str


class Decision(BaseModel):
    """What was decided about one delivery, and why."""

    id: str = Field(examples=["12-0"])
    run_id: str
    event_class: str | None
    event_id: str | None
    verdict: Verdict
    reason: Reason | None
    source: SourcePosition
    bus: BusPlace | None
    identity: str | None
    payload_hash: str | None
    first: SourcePosition | None
    upstream: SourcePosition | None
    decided_at: str
    resolution: Resolution | None


class AnsweredDecision(Decision):
    """A decision, with the ticket of the event it is about where that was admitted."""

    receipt: Receipt | None


class Decided(BaseModel):
    """A decision for each event of a request, in its order."""

    decisions: list[AnsweredDecision]


class DecisionPage(BaseModel):
    """Decisions in the order they were made; `next` continues after the last."""

    decisions: list[Decision]
    next: str | None


class QuarantinePage(BaseModel):
    """Quarantined deliveries in the order they were decided; `next` continues after the last."""

    quarantined: list[Decision]
    next: str | None


class Change(BaseModel):
    """One place where two envelopes differ; what one of them does not have is left out."""

    path: str = Field(examples=["/payload/price"])
    first: Any = None
    delivered: Any = None
    kind: Literal["added", "removed", "changed"]


class Quarantined(Decision):
    """One quarantined delivery beside the admission it contradicts."""

    envelope: str | None
    first_decision: Decision | None
    first_envelope: str | None
    difference: list[Change] | None
    """None where there is nothing to compare."""


class EventReceipt(BaseModel):
    """One event's ticket and every delivery that claimed it."""

    receipt: Decision | None
    deliveries: list[Decision]


class Released(BaseModel):
    """What came of a release."""

    released: dict[Verdict, int]
    kept_first: int
    still_refused: dict[Reason, int]


class Discarded(BaseModel):
    """How many deliveries were given up."""

    discarded: int


class RunLine(BaseModel):
    """A run there is."""

    run_id: str
    state: Literal["OPEN", "CLOSED"]


class Runs(BaseModel):
    """Every run there is."""

    runs: list[RunLine]


class Account(BaseModel):
    """Deliveries = the five decisions; what is in flight or was read again stands beside the sum."""

    deliveries: int
    admitted: int
    duplicates: int
    replayed: int
    quarantined: int
    ambiguous: int
    in_flight: int
    re_read: int
    cached: int
    order_violations: int
    balanced: bool


class PartitionAccount(Account):
    """The account of one source partition."""

    producer_id: int
    topic: str
    partition: int


class RunAccount(Account):
    """The books of a run."""

    run_id: str
    partitions: list[PartitionAccount]


class Blocker(BaseModel):
    """One thing that keeps a run red, and the command that shows or resolves it."""

    kind: str
    count: int
    what: str
    command: str


class Check(BaseModel):
    """One criterion of the gate."""

    criterion: str
    passed: bool
    evidence: str
    blockers: list[Blocker]


class Gate(BaseModel):
    """A run's gate."""

    run_id: str
    gate: Literal["green", "red"]
    checks: list[Check]


class RunDocument(Gate):
    """A run's state, books and gate."""

    state: Literal["OPEN", "CLOSED"]
    books: RunAccount | None
    checked_at: str


class Closed(Gate):
    """A run that is closed, with its artifact where this closed it."""

    closed: bool
    artifact: dict[str, Any] | None


class ItemHistory(BaseModel):
    """One item in every window of a range."""

    windows: list[ItemAnswer]


class Windows(BaseModel):
    """Windows, smallest size first, oldest first."""

    windows: list[WindowTotals | WindowLine]


class DimensionLine(BaseModel):
    """A list there is, and the attribute values that have lists of their own."""

    dimension: str
    item_type: str
    attributes: dict[str, list[str]]


class Dimensions(BaseModel):
    """Every dimension there is."""

    dimensions: list[DimensionLine]


class Status(BaseModel):
    """What is running, what waits for somebody, and which topics are not as agreed."""

    running: dict[str, Any] | None
    undecided: int
    uncounted: int
    in_flight: int
    ambiguous: int
    pending_evidence: int
    re_read: int
    replays: dict[str, dict[str, int]]
    drift: list[dict[str, Any]]
    runs: list[RunLine]
    partitions: list[dict[str, Any]]
    door: dict[str, Any]


class Health(BaseModel):
    """That the process answers, or that everything it needs does."""

    status: Literal["ok"]
