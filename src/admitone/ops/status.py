"""What is running and how far behind it is, as the interface spells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admitone.ops.lag import DedupLag, Lag


def status_document(
    process: Mapping[str, object] | None,
    lag: Lag,
    runs: Mapping[str, str],
    dedup_process: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return what runs, what waits for somebody, and which topics are not as agreed."""
    return {
        "running": process,
        "undecided": lag.undecided,
        "uncounted": lag.uncounted,
        "in_flight": lag.in_flight,
        "ambiguous": lag.ambiguous,
        "pending_evidence": lag.pending_evidence,
        "re_read": lag.re_read,
        "replays": {
            "boundary": lag.raw_replays._asdict(),
            "analytics": lag.admitted_replays._asdict(),
        },
        "drift": [checked.document() for checked in lag.drift],
        "runs": [{"run_id": run_id, "state": state} for run_id, state in runs.items()],
        "partitions": [
            {
                "query": query,
                "topic": partition.topic,
                "partition": partition.partition,
                "done": partition.done,
                "end": partition.end,
                "lag": partition.behind,
            }
            for query, partitions in lag.queries
            for partition in partitions
        ],
        "dedup": {
            "running": dedup_process,
            "ledger": _dedup_document(lag.dedup),
            "state": _dedup_document(lag.state),
        },
    }


def _dedup_document(lag: DedupLag | None) -> dict[str, Any] | None:
    """Return how far a dedup pipeline is, with what its engine says about itself."""
    if lag is None:
        return None
    return {
        "waiting": lag.waiting,
        "in_flight": lag.in_flight,
        "ambiguous": lag.ambiguous,
        "pending_evidence": lag.pending_evidence,
        "re_read": lag.re_read,
        "figures": dict(lag.figures),
    }
