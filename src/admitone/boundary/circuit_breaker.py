"""The circuit breaker: too much bad input stops the pipeline before it is decided."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from admitone.core.decisions import CODE_OF_REASON, Reason
from admitone.core.errors import CircuitOpen
from admitone.ledger.model import Claimed, Summary

Recent = Callable[[int], tuple[int, int]]
"""Returns how many of a source's last deliveries there are, and how many of them were quarantined."""

_DRIFT = CODE_OF_REASON[Reason.CONTRACT_DRIFT]


def too_much_quarantined(
    claimed: Claimed, recent: Recent, topic: str, limit: float, window: int
) -> CircuitOpen | None:
    """Return why a claimed block is better not decided; None when it is fine.

    Deliveries for a topic that drifted are left out: they are not bad, and the other topics are to go on.
    """
    block = claimed.block
    drift = int(np.count_nonzero(claimed.verdicts["reason"].to_numpy() == _DRIFT))
    total, bad = block.deliveries - drift, Summary.of(claimed.verdicts).quarantined - drift
    if bad <= limit * total:
        return None
    if total < window:
        before, bad_before = recent(window - total)
        total, bad = total + before, bad + bad_before
    if total < window or bad <= limit * total:
        return None
    return CircuitOpen(
        f"{bad:,} of the last {total:,} deliveries of {topic!r} partition"
        f" {block.source.partition} would be quarantined, more than {limit:.0%}:"
        f" stopped before offset {block.first_offset}, nothing from there on is decided.",
        "mend what produces or describes them and run again; or accept them with"
        " [pipeline] quarantine_limit = 1",
    )
