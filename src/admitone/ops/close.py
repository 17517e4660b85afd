"""What an operator does with a whole run: close it, or verify that it still is what it was."""

from __future__ import annotations

from collections.abc import Collection

from admitone.boundary.ledger_age import must_know_its_log
from admitone.evidence.audit.closing import Closing, close_run, look
from admitone.evidence.audit.verify import Verification, repair_and_verify, verify_run
from admitone.ops.stores import Stores


def close(
    stores: Stores, run_id: str, waived: Collection[str] = (), *, dry_run: bool = False
) -> Closing:
    """Close a run if it is green; in a dry run only check its gate."""
    if dry_run:
        return look(run_id, stores.ledger, stores.transport, stores.settings, waived)
    must_know_its_log(stores.writing_ledger, stores.transport, stores.settings)
    return close_run(run_id, stores.writing_ledger, stores.transport, stores.settings, waived)


def verify(stores: Stores, run_id: str, *, repair: bool = False) -> Verification:
    """Compare a run with its artifact, or with the ledger while it is open; with repair, write first what can be."""
    if repair:
        must_know_its_log(stores.writing_ledger, stores.transport, stores.settings)
        return repair_and_verify(run_id, stores.writing_ledger, stores.transport, stores.settings)
    return verify_run(run_id, stores.ledger, stores.transport, stores.settings)
