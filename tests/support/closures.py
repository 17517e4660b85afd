"""What closes a run, for tests of stores that do not look into it."""

from __future__ import annotations

from admitone.ledger.model import Attempt, ChainedClosing, Closure


def closure(
    run_id: str, artifact: bytes = b"artifact", closing: ChainedClosing | None = None
) -> Closure:
    return Closure(Attempt(run_id, 7, "ann", True, "{}"), artifact, closing)
