"""What the boundary can decide, and the tables it decides by.

The tables are data: the code executes them, the ledger enforces them, and the reference page is made
from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RULES_VERSION: Final = 1
"""Version of the identity, hash, validation and mapping rules; recorded with every decision."""


class Verdict(StrEnum):
    """What the boundary decided about one delivery."""

    ADMITTED = "ADMITTED"
    DUPLICATE = "DUPLICATE"
    REPLAYED = "REPLAYED"
    QUARANTINED = "QUARANTINED"
    AMBIGUOUS = "AMBIGUOUS"


class Reason(StrEnum):
    """Why a delivery was not admitted: one closed list, each kind of bad input its own."""

    NOT_JSON = "NOT_JSON"
    INVALID_UNICODE = "INVALID_UNICODE"
    DUPLICATE_KEY = "DUPLICATE_KEY"
    TOO_DEEP = "TOO_DEEP"
    NOT_AN_ENVELOPE = "NOT_AN_ENVELOPE"
    IDENTITY_INVALID = "IDENTITY_INVALID"
    UNKNOWN_EVENT_TYPE = "UNKNOWN_EVENT_TYPE"
    UNKNOWN_SCHEMA_VERSION = "UNKNOWN_SCHEMA_VERSION"
    SCHEMA_VIOLATION = "SCHEMA_VIOLATION"
    NUMBER_NOT_REPRESENTABLE = "NUMBER_NOT_REPRESENTABLE"
    TIMESTAMP_INVALID = "TIMESTAMP_INVALID"
    TOO_FAR_IN_FUTURE = "TOO_FAR_IN_FUTURE"
    TOO_OLD = "TOO_OLD"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    NO_PARTITION_FIELD = "NO_PARTITION_FIELD"
    RUN_CLOSED = "RUN_CLOSED"
    CONTRACT_DRIFT = "CONTRACT_DRIFT"
    FOREIGN_KEY = "FOREIGN_KEY"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    PUBLISH_FAILED = "PUBLISH_FAILED"
    PUBLISH_UNKNOWN = "PUBLISH_UNKNOWN"
    IDENTITY_RETRACTED = "IDENTITY_RETRACTED"


# The columns of a block hold positions in these tuples: append to them, never reorder.
VERDICT_CODES: Final = tuple(Verdict)
REASON_CODES: Final = (None, *Reason)
CODE_OF_VERDICT: Final = {verdict: code for code, verdict in enumerate(VERDICT_CODES)}
CODE_OF_REASON: Final = {reason: code for code, reason in enumerate(REASON_CODES)}


class BlockState(StrEnum):
    """Where a block of deliveries stands; the admission state of its identities follows from it."""

    IN_FLIGHT = "IN_FLIGHT"
    SETTLED = "SETTLED"
    ABORTED = "ABORTED"
    AMBIGUOUS = "AMBIGUOUS"
    RETRACTED = "RETRACTED"


BLOCK_TRANSITIONS: Final[frozenset[tuple[BlockState, BlockState]]] = frozenset(
    {
        (BlockState.IN_FLIGHT, BlockState.SETTLED),
        (BlockState.IN_FLIGHT, BlockState.ABORTED),
        (BlockState.IN_FLIGHT, BlockState.AMBIGUOUS),
        (BlockState.AMBIGUOUS, BlockState.SETTLED),
        (BlockState.AMBIGUOUS, BlockState.RETRACTED),
    }
)

DECIDED_STATES: Final = (BlockState.SETTLED, BlockState.AMBIGUOUS, BlockState.RETRACTED)
"""Blocks whose deliveries count in the books."""


class Action(StrEnum):
    """What happened to deliveries after they were decided."""

    FOUND = "FOUND"
    """A block of unknown fate was found on the log."""
    PUBLISHED_LATE = "PUBLISHED_LATE"
    """It was proved absent and published under numbers of its own."""
    RETRACTED = "RETRACTED"
    """An operator gave it up: it is never published again."""
    RELEASED = "RELEASED"
    """A quarantined delivery was delivered again, through a door of its own."""
    KEPT_FIRST = "KEPT_FIRST"
    """Of a contradiction the first admission was confirmed."""
    DISCARDED = "DISCARDED"
    """A quarantined delivery was given up."""


DISPOSING_ACTIONS: Final = frozenset({Action.RELEASED, Action.KEPT_FIRST, Action.DISCARDED})


class AdmissionState(StrEnum):
    """Where an identity stands (ADM-6)."""

    NONE = "none"
    PUBLISH_IN_FLIGHT = "PUBLISH_IN_FLIGHT"
    ADMITTED = "ADMITTED"
    PUBLISH_AMBIGUOUS = "PUBLISH_AMBIGUOUS"
    RETRACTED = "RETRACTED"


ADMISSION_OF_BLOCK: Final[dict[BlockState, AdmissionState]] = {
    BlockState.IN_FLIGHT: AdmissionState.PUBLISH_IN_FLIGHT,
    BlockState.SETTLED: AdmissionState.ADMITTED,
    BlockState.ABORTED: AdmissionState.NONE,
    BlockState.AMBIGUOUS: AdmissionState.PUBLISH_AMBIGUOUS,
    BlockState.RETRACTED: AdmissionState.RETRACTED,
}


class Meaning(StrEnum):
    """What an identity's present state means for the next delivery of it."""

    NEW = "new"
    WAIT = "wait"
    DUPLICATE = "duplicate"
    CONTRADICTION = "contradiction"
    FOLLOW = "follow"
    RETRACTED = "retracted"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason, or neither where the delivery is new or must wait."""

    verdict: Verdict | None
    reason: Reason | None = None


JUDGEMENTS: Final[dict[Meaning, Judgement]] = {
    Meaning.NEW: Judgement(Verdict.ADMITTED),
    Meaning.WAIT: Judgement(None),
    Meaning.DUPLICATE: Judgement(Verdict.DUPLICATE),
    Meaning.CONTRADICTION: Judgement(Verdict.QUARANTINED, Reason.PAYLOAD_MISMATCH),
    Meaning.FOLLOW: Judgement(Verdict.AMBIGUOUS, Reason.PUBLISH_UNKNOWN),
    Meaning.RETRACTED: Judgement(Verdict.QUARANTINED, Reason.IDENTITY_RETRACTED),
}

# (state of the identity, expired from the window, same payload hash) -> meaning. In flight, ambiguous and
# retracted come before expiry: what is not resolved is never forgotten.
_MEANINGS: Final[dict[tuple[AdmissionState, bool, bool], Meaning]] = {
    **{
        (state, expired, same): meaning
        for state, meaning in (
            (AdmissionState.NONE, Meaning.NEW),
            (AdmissionState.PUBLISH_IN_FLIGHT, Meaning.WAIT),
            (AdmissionState.PUBLISH_AMBIGUOUS, Meaning.FOLLOW),
            (AdmissionState.RETRACTED, Meaning.RETRACTED),
        )
        for expired in (False, True)
        for same in (False, True)
    },
    (AdmissionState.ADMITTED, True, True): Meaning.NEW,
    (AdmissionState.ADMITTED, True, False): Meaning.NEW,
    (AdmissionState.ADMITTED, False, True): Meaning.DUPLICATE,
    (AdmissionState.ADMITTED, False, False): Meaning.CONTRADICTION,
}


def meaning_of(state: AdmissionState, *, expired: bool, same_hash: bool) -> Meaning:
    """Return what an identity in this state means for a delivery that carries it (ADM-12)."""
    return _MEANINGS[state, expired, same_hash]
