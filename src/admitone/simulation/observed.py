"""What is seen of a history from outside: deliveries, records, answers, and what the ledger says when it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Identity = tuple[str, str]
"""A run and an event's name in it."""


class Event(NamedTuple):
    """What a delivery or a record says."""

    run: str
    name: str
    payload: bytes
    time: int

    @property
    def identity(self) -> Identity:
        """Return what makes two events the same."""
        return self.run, self.name


class Position(NamedTuple):
    """Where a delivery was read: a source, one of its partitions, a number."""

    source: str
    partition: int
    offset: int


class Place(NamedTuple):
    """Where a record is on the log."""

    topic: str
    partition: int
    offset: int


class Readable(NamedTuple):
    """A record that became readable, and the newest event time that had been delivered by then."""

    place: Place
    event: Event
    newest: int


class Decision(NamedTuple):
    """What the ledger says about a delivery."""

    identity: tuple[str, str | None]
    verdict: str
    reason: str | None
    place: Place | None
    disposed: bool
    """Whether an operator has dealt with it."""


class Answer(NamedTuple):
    """What a client was told about an event."""

    event: Event | None
    verdict: str
    place: Place | None


class Account(NamedTuple):
    """The books of a run: deliveries on one side, decisions on the other."""

    run: str
    deliveries: int
    decided: int
    balanced: bool


@dataclass(frozen=True, slots=True)
class Look:
    """What the ledger said when it was asked for everything."""

    decisions: Mapping[Position, Decision]
    twice: tuple[Position, ...]
    """Deliveries with more than one decision."""
    accounts: tuple[Account, ...]
    closed: frozenset[str]
    went_back: int
    """How many times a ledger had been restored by then."""
    at_the_end: bool = False
    listed: frozenset[bytes] = frozenset()
    """What evidence the ledger said is durable, by its bytes."""
    kept: frozenset[bytes] = frozenset()
    """What evidence was there."""


@dataclass(slots=True)
class Observed:
    """Everything that was seen of a history from outside."""

    retention_ms: int
    newest: int = 0
    """The newest event time that any client sent."""
    delivered: dict[Position, Event | None] = field(default_factory=dict)
    """By position on the raw log; None where it is no event."""
    readable: list[Readable] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    damaged: str = ""
    """Why the ledger's decisions could not be read."""
    unpublishable: set[Identity] = field(default_factory=set)
    """What was sent with a payload that the broker refuses."""
    closing: set[str] = field(default_factory=set)
    """Runs that an operator began to close."""
    closed: dict[str, int] = field(default_factory=dict)
    """Runs whose operator was told that they are closed, and how many records were readable by then."""
    given_up_for_good: dict[Identity, int] = field(default_factory=dict)
    """What evidence says was given up, and how many records were readable when it was seen to say so."""
    given_up: bool = False
    """Whether an operator gave up a block of unknown fate."""
    in_sight: set[Place] = field(default_factory=set)
    """Records of what was of unknown fate that could be read when an operator began to give it up."""
    unsettled: int = 0
    """Blocks in flight or of unknown fate at the end."""
    unanswered: int = 0
    """Requests that got no answer at the end."""
    stuck: str = ""
    """Why participants could not go on although nothing fails any more."""

    def decided_again(self, event: Event) -> None:
        """Note that an older ledger admitted something before it was told what operators decided since its copy."""
        self.closed.pop(event.run, None)
        self.given_up_for_good.pop(event.identity, None)
