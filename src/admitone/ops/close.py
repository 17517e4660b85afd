"""What an operator does with a whole run: close it, see how it went, or verify that it still is what it was."""

from __future__ import annotations

from collections.abc import Collection

import orjson
from typing_extensions import TypedDict

from admitone.boundary.ledger_age import must_know_its_log
from admitone.core.closure import Blocker, GateDocument
from admitone.core.errors import NotFound
from admitone.core.moments import iso
from admitone.evidence.audit.closing import Closing, close_run, look
from admitone.evidence.audit.verify import Verification, repair_and_verify, verify_run
from admitone.ledger.model import Attempt
from admitone.ops.stores import Stores


class AttemptDocument(TypedDict):
    """One try at closing a run, with the gate as it was then."""

    at: str | None
    author: str
    closed: bool
    waived: list[str]
    gate: GateDocument


class AttemptsDocument(TypedDict):
    """Every try at closing a run, oldest first: the way from red to green."""

    run_id: str
    attempts: list[AttemptDocument]


def close(
    stores: Stores,
    run_id: str,
    waived: Collection[str] = (),
    author: str = "",
    *,
    dry_run: bool = False,
) -> Closing:
    """Close a run if it is green, in somebody's name; in a dry run only check its gate."""
    if dry_run:
        return look(run_id, stores.ledger, stores.transport, stores.settings, waived)
    must_know_its_log(stores.writing_ledger, stores.transport, stores.settings)
    ledger, transport = stores.writing_ledger, stores.transport
    return close_run(run_id, ledger, transport, stores.settings, waived, author)


def attempts(stores: Stores, run_id: str) -> AttemptsDocument:
    """Return every try at closing a run."""
    if run_id not in stores.ledger.runs():
        raise NotFound(f"There is no run {run_id!r}.", "admitone books shows the runs there are")
    return {"run_id": run_id, "attempts": list(map(_document, stores.ledger.attempts(run_id)))}


def _document(attempt: Attempt) -> AttemptDocument:
    kept = orjson.loads(attempt.document)
    for check in kept["gate"]["checks"]:
        check["blockers"] = tuple(Blocker(**each) for each in check["blockers"])
    return {
        "at": iso(attempt.at),
        "author": attempt.author,
        "closed": attempt.closed,
        "waived": kept["waived"],
        "gate": kept["gate"],
    }


def verify(
    stores: Stores, run_id: str, *, repair: bool = False, head: str | None = None
) -> Verification:
    """Compare a run with its artifact, or with the ledger while it is open; with repair, write first what can be.

    The chain of closings must hold the head that is given.
    """
    if repair:
        must_know_its_log(stores.writing_ledger, stores.transport, stores.settings)
        ledger = stores.writing_ledger
        return repair_and_verify(run_id, ledger, stores.transport, stores.settings, head)
    return verify_run(run_id, stores.ledger, stores.transport, stores.settings, head)
