"""The checker: did a history keep the promises?

It is written from the promises alone. It knows what was delivered, what was ever readable on the log, what clients were
told, and what the ledger said each time it was asked; of how any of it came about it knows nothing.

1. Admit once          no identity is readable twice within the retention
2. Never overwrite     a contradiction is never readable, and a decision stands
3. Nothing vanishes    every delivery has one decision, which the log bears out, and the books balance
4. The checkpoint is   follows from 2 and 3: histories lose checkpoints, read again and restart all the time
   disposable
5. Red until clean     a run that was closed had no open contradiction, and takes nothing more

The sixth, that answers carry their error, is about the analytics, which no history runs.

What must never happen is told apart from what must happen once the faults stop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from admitone.simulation.observed import Decision, Event, Identity, Look, Observed, Place, Readable

SAFETY: Final = "safety"
LIVENESS: Final = "liveness"
_MALFORMED: Final = frozenset({"NOT_JSON", "NOT_AN_ENVELOPE"})
_OPEN: Final = "AMBIGUOUS"


class Violation(NamedTuple):
    """A promise that was broken."""

    kind: str
    promise: int
    what: str


def violations(seen: Observed) -> Iterator[Violation]:
    """Yield every promise that a history broke."""
    if seen.damaged:
        yield Violation(SAFETY, 3, f"the ledger cannot be read: {seen.damaged}")
    by_identity: dict[Identity, list[Readable]] = defaultdict(list)
    for record in seen.readable:
        by_identity[record.event.identity].append(record)
    yield from _readable_twice(seen, by_identity)
    yield from _changed(seen)
    yield from _published_after(seen)
    yield from _evidence_lost(seen)
    for look in seen.looks:
        yield from _unexplained(seen, look, by_identity)
        yield from _unbalanced(look)
        yield from _red(look)
    yield from _untrue(seen, by_identity)
    yield from _unfinished(seen)


def _readable_twice(
    seen: Observed, by_identity: Mapping[Identity, list[Readable]]
) -> Iterator[Violation]:
    for identity, records in by_identity.items():
        for first, second in pairwise(records):
            forgotten = first.event.time <= second.newest - seen.retention_ms
            if not (forgotten and second.event.time > first.event.time):
                promise = 1 if first.event.payload == second.event.payload else 2
                yield Violation(
                    SAFETY,
                    promise,
                    f"{identity} is readable at {first.place} and at {second.place}",
                )


def _changed(seen: Observed) -> Iterator[Violation]:
    """Yield decisions that were another, or gone, when the ledger was asked again."""
    for before, after in pairwise(seen.looks):
        for position, decision in before.decisions.items():
            now = after.decisions.get(position)
            if now is None:
                # What an older ledger does not know is read again; only of a door nothing but admissions is left.
                if before.went_back == after.went_back:
                    yield Violation(
                        SAFETY, 3, f"the decision about {position} vanished: {decision}"
                    )
            elif decision.verdict != _OPEN and _said(now) != _said(decision):
                # At a door an older ledger gives numbers out again, but for those of admissions. What the broker
                # refused is nowhere, so an older ledger decides it again.
                again = before.went_back != after.went_back and (
                    now.verdict == _OPEN
                    or decision.reason == "PUBLISH_FAILED"
                    or (position not in seen.delivered and decision.verdict != "ADMITTED")
                )
                if not again:
                    yield Violation(SAFETY, 2, f"{position} was {decision}, now it is {now}")


def _published_after(seen: Observed) -> Iterator[Violation]:
    """Yield records of what was given up, or of runs that were closed, before they became readable."""
    for number, record in enumerate(seen.readable):
        if number >= seen.given_up_for_good.get(record.event.identity, number + 1):
            what = f"{record.event.identity} was given up and is readable at {record.place} since"
            yield Violation(SAFETY, 2, what)
        if number >= seen.closed.get(record.event.run, number + 1):
            what = f"run {record.event.run} was closed, and {record.place} is readable since"
            yield Violation(SAFETY, 5, what)


def _evidence_lost(seen: Observed) -> Iterator[Violation]:
    """Yield evidence that a ledger listed and that is nowhere any more."""
    for before, after in pairwise(seen.looks):
        if not before.listed <= after.kept:
            yield Violation(
                SAFETY, 3, f"{len(before.listed - after.kept)} files of evidence are gone"
            )


def _said(decision: Decision) -> tuple[object, ...]:
    return decision[:4]


def _unexplained(
    seen: Observed, look: Look, by_identity: Mapping[Identity, list[Readable]]
) -> Iterator[Violation]:
    """Yield decisions that neither the delivery nor the log bears out, and records that nobody decided."""
    places = {record.place: record.event for record in seen.readable}
    for position in look.twice:
        yield Violation(SAFETY, 3, f"{position} was decided more than once")
    claimed = Counter(each.place for each in look.decisions.values() if each.place is not None)
    for place, times in claimed.items():
        if times > 1:
            yield Violation(SAFETY, 1, f"{times} deliveries claim to be the record at {place}")
    for position, decision in look.decisions.items():
        event = seen.delivered.get(position)
        known = position in seen.delivered
        wrong = _contradicted(seen, decision, event, known, places, by_identity)
        if wrong:
            yield Violation(SAFETY, wrong[0], f"{position} is {decision}, but {wrong[1]}")
    if look.at_the_end:
        # An operator may give up what is on the log, where the log cannot tell at that time.
        given_up = {
            each.identity
            for each in look.decisions.values()
            if each.reason == "IDENTITY_RETRACTED" or each.verdict == _OPEN
        }
        for place, event in places.items():
            excused = event.identity in given_up and place not in seen.in_sight
            if place not in claimed and not excused:
                yield Violation(
                    SAFETY, 3, f"{event.identity} is readable at {place}, nobody admitted it"
                )


def _contradicted(  # noqa: PLR0911 - one check after another is how it reads best
    seen: Observed,
    decision: Decision,
    event: Event | None,
    known: bool,
    places: Mapping[Place, Event],
    by_identity: Mapping[Identity, list[Readable]],
) -> tuple[int, str] | None:
    """Return which promise a decision breaks and how; None where everything bears it out."""
    verdict, reason = decision.verdict, decision.reason
    if known and (event is None) != (reason in _MALFORMED) and reason != "RUN_CLOSED":
        return 3, f"what was delivered is {event}"
    if event is not None and decision.identity != event.identity:
        return 3, f"what was delivered is {event}"
    identity = (decision.identity[0], decision.identity[1] or "")
    payloads = {record.event.payload for record in by_identity.get(identity, ())}
    if verdict == "ADMITTED":
        found = places.get(decision.place) if decision.place is not None else None
        if found is None or found.identity != identity:
            return 3, f"the record there is {found}"
        if event is not None and found.payload != event.payload:
            return 2, f"the record there is {found}"
    if verdict == "DUPLICATE" and (not payloads or (event and event.payload not in payloads)):
        return 3, "no such event is readable"
    if reason == "PAYLOAD_MISMATCH" and not payloads - ({event.payload} if event else set()):
        return 2, "it contradicts nothing that is readable"
    if reason == "TOO_OLD" and event and event.time > seen.newest - seen.retention_ms:
        return 3, "it is in the window of every source"
    # What contradicts it may be admitted under a name that begins with its own.
    named = identity[0], identity[1].partition("~")[0]
    if reason == "PUBLISH_FAILED" and named not in seen.unpublishable:
        return 3, "the broker refuses nothing of it"
    if reason == "RUN_CLOSED" and identity[0] not in seen.closing:
        return 5, "nobody closed the run"
    if reason == "IDENTITY_RETRACTED" and not seen.given_up:
        return 3, "nobody gave anything up"
    return None


def _unbalanced(look: Look) -> Iterator[Violation]:
    for account in look.accounts:
        if not account.balanced or account.deliveries != account.decided:
            yield Violation(SAFETY, 3, f"the books do not balance: {account}")


def _red(look: Look) -> Iterator[Violation]:
    """Yield open contradictions of closed runs."""
    for position, decision in look.decisions.items():
        is_open = decision.reason == "PAYLOAD_MISMATCH" and not decision.disposed
        if decision.identity[0] in look.closed and (is_open or decision.verdict == _OPEN):
            yield Violation(
                SAFETY, 5, f"run {decision.identity[0]} is closed, {position} is {decision}"
            )


def _untrue(seen: Observed, by_identity: Mapping[Identity, list[Readable]]) -> Iterator[Violation]:
    """Yield answers that the log does not bear out."""
    places = {record.place: record.event for record in seen.readable}
    for answer in seen.answers:
        event = answer.event
        if answer.verdict == "ADMITTED":
            found = places.get(answer.place) if answer.place is not None else None
            if event is None or found is None or found[:3] != event[:3]:
                yield Violation(
                    SAFETY, 3, f"a client was told {answer}, the record there is {found}"
                )
        if answer.verdict == "DUPLICATE" and event is not None:
            payloads = {record.event.payload for record in by_identity.get(event.identity, ())}
            if event.payload not in payloads:
                yield Violation(SAFETY, 3, f"a client was told {answer}, no such event is readable")


def _unfinished(seen: Observed) -> Iterator[Violation]:
    """Yield what should have happened once the faults stopped."""
    if seen.stuck:
        yield Violation(LIVENESS, 3, seen.stuck)
    if not (seen.looks and seen.looks[-1].at_the_end):
        return
    decided = seen.looks[-1].decisions
    undecided = [position for position in seen.delivered if position not in decided]
    if undecided:
        yield Violation(LIVENESS, 3, f"{len(undecided)} deliveries are not decided: {undecided[0]}")
    if seen.unsettled:
        yield Violation(LIVENESS, 3, f"{seen.unsettled} blocks are not settled")
    if seen.unanswered:
        yield Violation(LIVENESS, 3, f"{seen.unanswered} requests got no answer")
