"""Questions as people and programs spell them: positions, identities and moments as text, an event's ticket."""

from __future__ import annotations

from typing_extensions import TypedDict

from admitone.core.decisions import Reason, Verdict
from admitone.core.envelope import timestamp_ms
from admitone.core.errors import NotFound
from admitone.ledger.decision_rows import Decision, decisions
from admitone.ledger.model import Filter
from admitone.ledger.port import LedgerReader

_LONGEST_NUMBER = 20


class EventReceipt(TypedDict):
    """One event's ticket and every delivery that claimed it."""

    receipt: Decision | None
    deliveries: list[Decision]


def identity_from(text: str) -> bytes:
    """Return the identity that 64 hexadecimal digits name."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ValueError(f"expected 64 hexadecimal digits, got {text!r}")
    return found


def source_from(text: str) -> tuple[int | None, int, int]:
    """Return the source position that `[PRODUCER:]PARTITION:OFFSET` names."""
    try:
        *producer, partition, offset = (_number(part) for part in text.split(":"))
        if len(producer) > 1:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"expected PARTITION:OFFSET or PRODUCER:PARTITION:OFFSET, got {text!r}"
        ) from None
    return (producer[0] if producer else None), partition, offset


def bus_from(text: str) -> tuple[str, int, int]:
    """Return the place on the log that `TOPIC:PARTITION:OFFSET` names."""
    try:
        topic, partition, offset = text.rsplit(":", 2)
        return topic, _number(partition), _number(offset)
    except ValueError:
        raise ValueError(f"expected TOPIC:PARTITION:OFFSET, got {text!r}") from None


def moment_from(text: str) -> int:
    """Return the moment that a timestamp names."""
    found = timestamp_ms(text)
    if found is None:
        raise ValueError(f"expected a moment such as 2026-11-15T10:00:00Z, got {text!r}")
    return found


def record_from(text: str) -> tuple[int, int] | None:
    """Return the block and ordinal that a decision's id names; None where it is no such id."""
    block_id, _, ordinal = text.partition("-")
    parts = (block_id, ordinal)
    if not all(
        part.isascii() and part.isdecimal() and len(part) < _LONGEST_NUMBER for part in parts
    ):
        return None
    record = int(block_id), int(ordinal)
    return record if max(record) < 2**63 else None


def filter_from(
    *,
    run: str | None = None,
    verdict: Verdict | None = None,
    reason: Reason | None = None,
    event: str | None = None,
    event_class: str | None = None,
    identity: str | None = None,
    source: str | None = None,
    bus: str | None = None,
    since: str | None = None,
    until: str | None = None,
    after: str | None = None,
) -> Filter:
    """Return which decisions are wanted; raise ValueError where a text is not what it should be."""
    return Filter(
        run_id=run,
        verdict=verdict,
        reason=reason,
        event_id=event,
        event_class=event_class,
        identity=None if identity is None else identity_from(identity),
        source=None if source is None else source_from(source),
        bus=None if bus is None else bus_from(bus),
        since=None if since is None else moment_from(since),
        until=None if until is None else moment_from(until),
        after=None if after is None else record_from(after),
    )


def receipt_of(
    ledger: LedgerReader, event_id: str, run_id: str | None, event_class: str | None
) -> EventReceipt:
    """Return one event's ticket and every delivery that claimed it."""
    wanted = Filter(run_id=run_id, event_id=event_id, event_class=event_class)
    rows = list(decisions(ledger, wanted))
    if not rows:
        raise NotFound(
            f"No delivery of event {event_id!r} was decided.",
            "admitone status shows what is waiting; admitone decisions lists what is not",
        )
    identities = sorted({row["identity"] for row in rows if row["identity"]})
    if len(identities) > 1:
        owners = ", ".join(
            sorted({f"--run {row['run_id']} --class {row['event_class']}" for row in rows})
        )
        raise NotFound(
            f"{len(identities)} events have the id {event_id!r}.", f"choose one: {owners}"
        )
    return {"receipt": next(filter(_is_ticket, rows), None), "deliveries": rows}


def _is_ticket(row: Decision) -> bool:
    return row["verdict"] in (Verdict.ADMITTED, Verdict.AMBIGUOUS)


def _number(text: str) -> int:
    found = int(text)
    if not -(2**63) <= found < 2**63:
        raise ValueError
    return found
