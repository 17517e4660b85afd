"""What an operator gives to strangers: the proof of an event's receipt, a whole run, the program that checks both."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import TypedDict

from admitone.core.errors import AdmitoneError
from admitone.evidence.audit.proof import ClosedRun, ProofDocument, prove
from admitone.evidence.audit.proof import export as write
from admitone.ledger.query_text import receipt_of
from admitone.ops.stores import Stores


class Exported(TypedDict):
    """What was written for strangers."""

    run_id: str
    folder: str
    receipts: int


def proof(
    stores: Stores, event_id: str, run_id: str | None = None, event_class: str | None = None
) -> ProofDocument:
    """Return the proof of an event's ticket; its run must be closed."""
    ticket = receipt_of(stores.ledger, event_id, run_id, event_class)["receipt"]
    if ticket is None:
        raise AdmitoneError(
            f"Event {event_id!r} was never admitted, so there is no receipt to prove.",
            f"admitone decisions --event {event_id} says why",
        )
    run = ClosedRun(ticket["run_id"], stores.ledger, stores.evidence)
    block_id, _, ordinal = ticket["id"].partition("-")
    return prove(run, int(block_id), int(ordinal), ticket["verdict"])


def export(stores: Stores, run_id: str, folder: Path) -> Exported:
    """Write a closed run for strangers."""
    run = ClosedRun(run_id, stores.ledger, stores.evidence)
    return {"run_id": run_id, "folder": str(folder), "receipts": write(run, folder)}
