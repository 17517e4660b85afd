"""A block as its row has it, on either database."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Final

import orjson

from admitone.core.decisions import BlockState
from admitone.ledger.model import Block, Destination, Source
from admitone.ledger.store import Row, Rows

SELECT_BLOCK: Final = (
    "SELECT block.block_id, block.producer_id, block.partition, after_offset, first_offset, last_offset, deliveries,"
    " block.epoch, block.state, rules, claimed_at, decided_at, published_at, destinations, refused, runs,"
    " evidence_hash, rules_hash, row_hash, read_back, awaits_operator FROM block"
)


def block_from(rows: Rows, row: Row) -> Block:
    """Return the block of a row that `SELECT_BLOCK` found."""
    (
        block_id, producer, partition, after, first, last, deliveries, epoch, state, rules, claimed_at,
        decided_at, published_at, destinations, refused, runs, evidence_hash, rules_hash,
        row_hash, read_back, awaits_operator,
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
        destinations=destinations_from(rows.loaded(destinations)),
        refused=tuple(rows.loaded(refused)),
        runs={rows.name(run): count for run, count in rows.loaded(runs).items()},
        evidence_hash=evidence_hash,
        rules_hash=rules_hash,
        row_hash=row_hash,
        read_back=bool(read_back),
        awaits_operator=bool(awaits_operator),
    )


def destinations_from(places: Sequence[Any]) -> tuple[Destination, ...]:
    """Return destinations as a row has them."""
    return tuple(
        Destination(topic, topic_id, kind, tuple(ends)) for topic, topic_id, kind, ends in places
    )


def row_digest(block: Block) -> bytes:
    """Return the hash over what a decided block's row says for good: what happens to it later is not in it.

    With it goes the hash over its columns, so that one vouches for both.
    """
    said = [
        block.block_id, *block.source, block.after, block.first_offset, block.last_offset, block.deliveries,
        block.epoch, block.rules, block.claimed_at, block.decided_at, block.published_at, block.read_back,
        [astuple(place) for place in block.destinations], sorted(block.runs.items()),
        (block.rules_hash or b"").hex(), (block.evidence_hash or b"").hex(),
    ]  # fmt: skip
    return hashlib.sha256(orjson.dumps(said)).digest()
