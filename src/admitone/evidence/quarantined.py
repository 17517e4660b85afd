"""What is in quarantine, one delivery at a time: its original bytes, and the admission it contradicts."""

from __future__ import annotations

from collections.abc import Iterable

from admitone.core.decisions import DISPOSING_ACTIONS, Verdict
from admitone.core.errors import NotFound
from admitone.evidence.evidence_store import EvidenceStore
from admitone.evidence.originals import original
from admitone.ledger.decision_rows import Decision, decisions, in_quarantine
from admitone.ledger.model import Filter
from admitone.ledger.port import LedgerReader
from admitone.ledger.query_text import record_from


class QuarantinedDelivery(Decision):
    """One quarantined delivery with its bytes, and the admission it contradicts."""

    envelope: str | None
    first_decision: Decision | None
    first_envelope: str | None


def is_done(row: Decision) -> bool:
    """Tell whether something was done about a quarantined delivery."""
    return row["resolution"] is not None and row["resolution"]["action"] in DISPOSING_ACTIONS


def still_quarantined(ledger: LedgerReader, ids: Iterable[str]) -> dict[int, list[int]]:
    """Return the deliveries that ids name, by block; each must be in quarantine still."""
    chosen: dict[int, list[int]] = {}
    for text in ids:
        record = record_from(text)
        if record is None or not in_quarantine(ledger, Filter(record=record)):
            raise _unknown(text)
        chosen.setdefault(record[0], []).append(record[1])
    return chosen


def quarantined(ledger: LedgerReader, store: EvidenceStore, text: str) -> QuarantinedDelivery:
    """Return one quarantined delivery with its bytes and the first admission, where it has one."""
    record = record_from(text)
    wanted = Filter(verdict=Verdict.QUARANTINED, record=record)
    found = None if record is None else next(decisions(ledger, wanted), None)
    if record is None or found is None:
        raise _unknown(text)
    first_row, first_value = None, None
    if found["first"] is not None:
        first = found["first"]
        place = (first["producer_id"], first["partition"], first["offset"])
        first_row = next(decisions(ledger, Filter(source=place)))
        block_id, _, ordinal = first_row["id"].partition("-")
        first_value = original(ledger, store, int(block_id), int(ordinal))
    return {
        **found,
        "envelope": _text(original(ledger, store, *record)),
        "first_decision": first_row,
        "first_envelope": _text(first_value),
    }


def _unknown(text: str) -> NotFound:
    return NotFound(
        f"There is no quarantined delivery {text!r} that something can be done about.",
        "admitone quarantine list",
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="backslashreplace")
