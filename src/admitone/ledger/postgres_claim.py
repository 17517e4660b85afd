"""Step 2 in PostgreSQL: the transaction that decides a block's deliveries and reserves what is new.

Locks, always in this order: the ownership row of the source, the rows of the runs and the store's pointer (shared),
the keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from admitone.faults import crash_point
from admitone.ledger.claims import (
    Holder,
    Prepared,
    candidates,
    decide,
    held_by,
    must_be_at,
    must_be_fresh,
)
from admitone.ledger.columns import pack
from admitone.ledger.model import (
    Block,
    Blocked,
    Claimed,
    Mark,
    Source,
)
from admitone.ledger.postgres_later import owned
from admitone.ledger.postgres_reader import upstreams_of
from admitone.ledger.postgres_segments import Segments
from admitone.ledger.postgres_values import (
    key_of_run,
    stored_destinations,
    stored_name,
    stored_runs,
)
from admitone.ledger.upstream import must_have_seen
from admitone.postgres import Connection

_WRITE: Final = (
    "WITH f AS (INSERT INTO facts VALUES (%s, %b)), n AS (INSERT INTO names VALUES (%s, %b)),"
    " v AS (INSERT INTO verdicts VALUES (%s, %b, NULL)) INSERT INTO journal VALUES (%s, %b)"
)


@dataclass(frozen=True, slots=True)
class NeedsSegment:
    """Nothing was claimed: a segment that takes events of this time must be opened first."""

    newest_event_time: int
    store: str


def claim_block(db: Connection, prepared: Prepared) -> Claimed | Blocked | NeedsSegment:
    """Claim a block, or roll everything back and say why."""
    claim, deliveries = prepared.claim, prepared.deliveries
    offset, stream_time, store_name = owned(db, claim.source, claim.epoch)
    closed = deliveries.in_closed_runs(_join_runs(db, prepared.runs))
    store = Segments(db, store_name)
    pointer = store.pointer(" FOR SHARE")
    forgotten = pointer.dropped_before if pointer else None
    _at_mark(db, claim.source, Mark(offset, stream_time, forgotten), claim.after)
    if claim.upstream is not None:
        must_have_seen(claim, upstreams_of(db, claim.source))
    must_be_fresh(claim.known, pointer.horizon(claim.retention_ms) if pointer else None)
    ordinals = candidates(deliveries, closed)
    holders: dict[int, Holder] = {}
    if deliveries.moves_the_store(closed):
        newest = deliveries.newest
        if pointer is None or not pointer.takes(newest, claim.retention_ms):
            db.execute("ROLLBACK")
            return NeedsSegment(newest, store_name)
    block = _insert_block(db, prepared)
    if pointer is not None and len(ordinals):
        holders = store.claim(deliveries, ordinals, pointer, block.block_id, prepared.decides)
    verdicts = decide(deliveries, closed, holders, block.block_id, claim.retention_ms)
    if isinstance(verdicts, Blocked):
        db.execute("ROLLBACK")
        return verdicts
    number = block.block_id
    db.execute(
        _WRITE,
        (number, prepared.facts, number, prepared.names, number, pack(verdicts), number, claim.journal),
    )  # fmt: skip
    crash_point("ledger.claim_written")
    return Claimed(block, verdicts, held_by(holders))


def _at_mark(db: Connection, source: Source, found: Mark, expected: Mark) -> None:
    in_flight = db.execute(
        "SELECT block_id FROM block WHERE producer_id = %s AND partition = %s AND state = 'IN_FLIGHT'",
        source,
    ).fetchone()
    must_be_at(source, expected, found, in_flight[0] if in_flight else None)


def _join_runs(db: Connection, runs: Iterable[str]) -> set[str]:
    """Make the block's runs known and keep them as they are; return those that are closed."""
    names = {key_of_run(run): run for run in runs}
    query = "SELECT run_key, state FROM run WHERE run_key = ANY(%s) ORDER BY run_key FOR SHARE"
    found: dict[UUID, str] = dict(db.execute(query, (list(names),)).fetchall())
    new = sorted(names.keys() - found.keys())
    if new:
        db.execute(
            "INSERT INTO run (run_key, run_id) SELECT * FROM unnest(%s::uuid[], %s::text[])"
            " ON CONFLICT DO NOTHING",
            (new, [stored_name(names[key]) for key in new]),
        )
        found = dict(db.execute(query, (list(names),)).fetchall())
    return {names[key] for key, state in found.items() if state == "CLOSED"}


def _insert_block(db: Connection, prepared: Prepared) -> Block:
    claim = prepared.claim
    row = db.execute(
        "INSERT INTO block (producer_id, partition, after_offset, first_offset, last_offset, deliveries,"
        " epoch, rules, claimed_at, destinations, runs)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) RETURNING block_id",
        (
            *claim.source, claim.after.offset, prepared.first_offset, prepared.last_offset,
            claim.facts.num_rows, claim.epoch, claim.rules, claim.claimed_at,
            stored_destinations(claim.destinations), stored_runs(prepared.runs),
        ),
    ).fetchone()  # fmt: skip
    assert row is not None
    return prepared.block(row[0])
