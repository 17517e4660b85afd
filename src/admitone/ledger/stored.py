"""What the stores have in common about their rows, however their values are spelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from admitone.core.decisions import CODE_OF_REASON, DECIDED_STATES, BlockState, Reason
from admitone.ledger.port import Block, Destination, Source

ADMISSION_STORE = "admission"
"""The keys that all boundaries on a ledger share."""

SELECT_BLOCK = (
    "SELECT block_id, producer_id, partition, after_offset, first_offset, last_offset, deliveries, epoch, state, rules,"
    " claimed_at, decided_at, published_at, destinations, refused, runs, evidence_hash FROM block"
)
IS_DECIDED = f"state IN ({', '.join(repr(str(state)) for state in DECIDED_STATES)})"
MET_NO_DRIFT = f"(reason_bits & {1 << CODE_OF_REASON[Reason.CONTRACT_DRIFT]}) = 0"
"""Nothing of the block was meant for a topic that had drifted."""


def block_from(row: Sequence[Any]) -> Block:
    """Return the block that a row of `SELECT_BLOCK` describes, its documents already read."""
    (
        block_id, producer, partition, after, first, last, deliveries, epoch, state, rules, claimed_at,
        decided_at, published_at, destinations, refused, runs, evidence_hash,
    ) = row  # fmt: skip
    return Block(
        block_id=block_id,
        source=Source(producer, partition),
        after=after,
        first_offset=first,
        last_offset=last,
        deliveries=deliveries,
        epoch=epoch,
        state=BlockState(state),
        rules=rules,
        claimed_at=claimed_at,
        decided_at=decided_at,
        published_at=published_at,
        destinations=destinations_from(destinations),
        refused=tuple(refused),
        runs=runs,
        evidence_hash=evidence_hash,
    )


def destinations_from(places: Iterable[Any]) -> tuple[Destination, ...]:
    """Return destinations from the lists they are stored as."""
    return tuple(
        Destination(topic, topic_id, kind, tuple(ends)) for topic, topic_id, kind, ends in places
    )
