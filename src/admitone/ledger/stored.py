"""What the stores have in common about their rows, however their values are spelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from admitone.core.decisions import CODE_OF_REASON, DECIDED_STATES, BlockState, Reason
from admitone.core.errors import ConfigurationError
from admitone.ledger.model import (
    Block,
    Destination,
    Mark,
    Source,
    SourceInfo,
)

SELECT_BLOCK = (
    "SELECT block_id, producer_id, partition, after_offset, first_offset, last_offset, deliveries, epoch, state, rules,"
    " claimed_at, decided_at, published_at, destinations, refused, runs, evidence_hash FROM block"
)
IS_DECIDED = f"state IN ({', '.join(repr(str(state)) for state in DECIDED_STATES)})"
SELECT_SOURCE = (
    "SELECT producer_id, partition, pipeline, topic, topic_id, mark, stream_time, re_read, door, decided, read_to,"
    " store, cached FROM source ORDER BY topic, producer_id, partition"
)
LATE_NUMBERS = (
    "SELECT producer_id, partition, max(first + records) FROM late GROUP BY producer_id, partition"
)
NEVER_FORGOTTEN = ", ".join(
    repr(str(state)) for state in (BlockState.IN_FLIGHT, BlockState.AMBIGUOUS, BlockState.RETRACTED)
)
"""Blocks whose identities outlive their segment: their fate is open, or they were given up."""
_LONGEST_STORE_NAME = 46
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


def sources_from(rows: Iterable[Sequence[Any]]) -> list[SourceInfo]:
    """Return the sources that rows of `SELECT_SOURCE` describe."""
    return [
        SourceInfo(
            Source(producer, partition), pipeline, topic, topic_id, Mark(mark, time), *rest
        )
        for producer, partition, pipeline, topic, topic_id, mark, time, *rest in rows
    ]  # fmt: skip


def slowest_active(placeholder: str) -> str:
    """Return the question, of a store twice and an idle time, for the stream time of its slowest active source.

    What is released is judged by the stream time of the source it first came from.
    """
    of_store = f"FROM source WHERE store = {placeholder} AND door <> 'release'"
    return (
        f"SELECT min(stream_time) {of_store} AND active_at >="
        f" (SELECT max(active_at) {of_store}) - {placeholder}"
    )


def is_active(facts: pa.Table) -> bool:
    """Tell whether a block holds an event that passed step 1: who sends nothing else is as good as silent."""
    return bool(facts["identity"].null_count < facts.num_rows)


def must_be_a_store(name: str) -> None:
    """Raise unless a name can begin the names of tables."""
    if (
        not (name.isascii() and name.isprintable() and 0 < len(name) <= _LONGEST_STORE_NAME)
        or '"' in name
    ):
        raise ConfigurationError(
            f"A store of keys cannot be called {name!r}: its segments are tables.",
            f"choose at most {_LONGEST_STORE_NAME} plain characters",
        )
