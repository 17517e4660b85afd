"""What a ledger does to a block, each within one transaction: claim, refuse, conclude.

Steps 2 and 4 of the admission protocol. Whatever of a claim needs no lock is ready before its transaction begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from admitone.core.decisions import BlockState
from admitone.core.errors import MarkMoved
from admitone.infra.crash_points import crash_point
from admitone.ledger.block_rows import row_digest
from admitone.ledger.claims import (
    Holder,
    Prepared,
    candidates,
    decide,
    held_by,
    must_be_at,
    must_be_fresh,
)
from admitone.ledger.columns import logical_digest, pack
from admitone.ledger.model import (
    THIS_BLOCK,
    Block,
    Blocked,
    Claimed,
    Destination,
    Mark,
    Outcome,
    Source,
    Summary,
    this_block,
)
from admitone.ledger.outcomes import First, bus_ranges, concluded, contradictions, followed
from admitone.ledger.segments import pointer_of, put_back
from admitone.ledger.sources import must_be_in, owned
from admitone.ledger.store import Document, KeyClaim, Rows, Store
from admitone.ledger.stored_reader import columns_of
from admitone.ledger.upstream_marks import move_upstream, must_have_seen, upstreams_of


class NeedsSegment(NamedTuple):
    """Nothing was claimed: a segment that takes events of this time must be opened first."""

    store: str
    newest_event_time: int


def claim_block(rows: Rows, store: Store, prepared: Prepared) -> Claimed | Blocked | NeedsSegment:
    """Decide every delivery of a block and reserve what is new, or roll everything back and say why."""
    claim, deliveries = prepared.claim, prepared.deliveries
    offset, stream_time, keys = owned(rows, claim.source, claim.epoch)
    closed = _take_no_more(rows, prepared)
    pointer = pointer_of(rows, keys, " FOR SHARE")
    found = Mark(offset, stream_time, pointer.dropped_before)
    must_be_at(claim.source, claim.after, found, _in_flight(rows, claim.source))
    if claim.upstream is not None:
        must_have_seen(claim, upstreams_of(rows, claim.source))
    must_be_fresh(claim.known, pointer.horizon(claim.retention_ms))
    must_be_in(rows, claim.database)
    newest = deliveries.newest
    if deliveries.moves_the_store(closed) and not pointer.takes(newest, claim.retention_ms):
        rows.roll_back()
        return NeedsSegment(keys, newest)
    block = prepared.block(*_insert_block(rows, prepared))
    ordinals, holders = candidates(deliveries, closed), dict[int, Holder]()
    if len(ordinals):
        assert pointer.opened is not None
        asked = KeyClaim(
            keys, pointer.opened, pointer.closed, deliveries, ordinals, block.block_id, prepared.decides
        )  # fmt: skip
        holders = store.claim_keys(rows, asked)
    verdicts = decide(deliveries, closed, holders, block.block_id, claim.retention_ms)
    if isinstance(verdicts, Blocked):
        rows.roll_back()
        return verdicts
    rows.note_runs(block.block_id, prepared.runs)
    rows.insert_columns(
        block.block_id, prepared.facts, prepared.names, pack(verdicts), claim.journal
    )
    crash_point("ledger.claim_written")
    return Claimed(block, verdicts, held_by(holders))


def refuse_records(rows: Rows, block: Block, epoch: int, ordinals: Iterable[int]) -> Block:
    """Note which records of a block the broker refuses, while it is in flight or of unknown fate."""
    owned(rows, block.source, epoch)
    refused = sorted({*block.refused, *ordinals})
    changed = rows.change(
        f"UPDATE block SET refused = %s WHERE {THIS_BLOCK} AND state IN ('IN_FLIGHT', 'AMBIGUOUS')",  # noqa: S608
        refused, *this_block(block),
    )  # fmt: skip
    _must_have_changed(block, changed)
    return replace(block, refused=tuple(refused))


def conclude_block(
    rows: Rows, block: Block, epoch: int, outcome: Outcome, facts: pa.Table, planned: pa.Table
) -> None:
    """Settle a block or make it ambiguous: its columns, its places on the log, its source's mark."""
    *_, store = owned(rows, block.source, epoch)
    put_back(rows, store, block.block_id, outcome.refused)
    resolved = _resolved(rows, followed(planned, block.block_id))
    verdicts, bus = concluded(block.block_id, facts, planned, outcome, resolved)
    decided = replace(
        block,
        decided_at=outcome.decided_at,
        published_at=outcome.published_at,
        evidence_hash=logical_digest(facts, verdicts, bus),
    )
    changed = rows.conclude(
        block,
        pack(verdicts) if not verdicts.equals(planned) else None,
        pack(bus),
        {
            "state": str(outcome.state),
            "decided_at": outcome.decided_at,
            "published_at": outcome.published_at,
            "refused": list(outcome.refused),
            "evidence_hash": decided.evidence_hash,
            "row_hash": row_digest(decided),
            **asdict(Summary.of(verdicts)),
        },
    )
    _must_have_changed(block, changed)
    note_places(rows, block.block_id, bus_ranges(block, facts, bus))
    note_contradictions(rows, contradictions(block.block_id, facts, verdicts))
    move_upstream(rows, block.source, facts)
    # A source without any event that passed step 1 is as good as silent.
    is_active = facts["identity"].null_count < facts.num_rows
    # Sent alone, and last: PostgreSQL applies no idle timeout after a pipelined batch.
    moved = rows.change(
        "UPDATE source SET mark = %s, stream_time = %s, decided = decided + %s,"
        " active_at = CASE WHEN %s THEN %s ELSE active_at END"
        " WHERE producer_id = %s AND partition = %s AND mark < %s",
        block.last_offset, facts["stream_time"][-1].as_py(), block.deliveries, is_active,
        block.claimed_at, *block.source, block.first_offset,
    )  # fmt: skip
    if moved != 1:
        raise MarkMoved(f"The mark of {tuple(block.source)} has passed block {block.block_id}.")
    crash_point("ledger.outcome_written")


def abort_block(rows: Rows, block: Block, epoch: int, outcome: Outcome) -> None:
    """Take a claim back, as if it had never been; its deliveries are read again."""
    *_, store = owned(rows, block.source, epoch)
    put_back(rows, store, block.block_id, None)
    changed = rows.change(
        "UPDATE block SET state = %s, decided_at = %s, published_at = %s"  # noqa: S608
        f" WHERE {THIS_BLOCK} AND state = 'IN_FLIGHT'",
        str(outcome.state), outcome.decided_at, outcome.published_at, *this_block(block),
    )  # fmt: skip
    _must_have_changed(block, changed)
    for table in ("facts", "names", "verdicts", "journal"):
        rows.change(f"DELETE FROM {table} WHERE block_id = %s", block.block_id)  # noqa: S608


def note_places(rows: Rows, block_id: int, places: Iterable[tuple[str, int, int, int]]) -> None:
    """Remember which stretch of each partition of the log a block's records lie in."""
    rows.change_each(
        "INSERT INTO place VALUES (%s, %s, %s, %s, %s)"
        " ON CONFLICT (topic, partition, first_offset, block_id)"
        " DO UPDATE SET last_offset = excluded.last_offset",
        [(*place, block_id) for place in places],
    )


def note_contradictions(rows: Rows, found: Iterable[tuple[str, bytes, bytes, int, int]]) -> None:
    """Open an anomaly for each contradiction, again where one was resolved before."""
    firsts: dict[tuple[bytes, bytes], tuple[str, int, int]] = {}
    for run, identity, payload_hash, block_id, ordinal in found:
        firsts.setdefault((identity, payload_hash), (run, block_id, ordinal))
    if not firsts:
        return
    # In the order of their keys, as everything two transactions may both write.
    rows.change_each(
        f"INSERT INTO anomaly (identity, payload_hash, {rows.run_key}, block_id, ordinal)"  # noqa: S608
        f" VALUES (%s, %s, %s, %s, %s) ON CONFLICT ({rows.anomaly_key}) DO UPDATE SET state = 'OPEN'",
        [(*key, rows.key_of_run(run), *place) for key, (run, *place) in sorted(firsts.items())],
    )


def stored_destinations(places: Sequence[Destination]) -> Document:
    """Return destinations as they are stored."""
    return Document([astuple(place) for place in places])


def _take_no_more(rows: Rows, prepared: Prepared) -> np.ndarray:
    """Return which deliveries come to a run that is closed, or came after it was."""
    claim, states = prepared.claim, rows.join_runs(prepared.runs)
    closed = {run for run, state in states.items() if state.is_closed}
    if claim.after_closing is not None:
        after: np.ndarray = prepared.deliveries.in_closed_runs(closed)
        after[claim.after_closing] = True
        return after
    closed |= {run for run, state in states.items() if state.was_closed}
    return prepared.deliveries.in_closed_runs(closed)


def _in_flight(rows: Rows, source: Source) -> int | None:
    row = rows.first(
        "SELECT block_id FROM block WHERE producer_id = %s AND partition = %s AND state = 'IN_FLIGHT'",
        *source,
    )
    return row[0] if row else None


def _insert_block(rows: Rows, prepared: Prepared) -> tuple[int, int]:
    """Return the number of a new block, and when it was claimed."""
    claim = prepared.claim
    row = rows.first(
        "INSERT INTO block (producer_id, partition, after_offset, first_offset, last_offset, deliveries,"  # noqa: S608
        " epoch, rules, rules_hash, claimed_at, read_back, destinations, runs)"
        f" VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, {rows.now_ms}, %s, %s, %s) RETURNING block_id, claimed_at",
        *claim.source, claim.after.offset, prepared.first_offset, prepared.last_offset,
        claim.facts.num_rows, claim.epoch, claim.rules, claim.rules_hash, int(claim.reads_back),
        stored_destinations(claim.destinations),
        Document({rows.text(run): count for run, count in prepared.runs.items()}),
    )  # fmt: skip
    assert row is not None
    block_id, claimed_at = row
    return block_id, claimed_at


def _must_have_changed(block: Block, changed: int) -> None:
    if changed != 1:
        raise MarkMoved(f"Block {block.block_id} is no longer {block.state}.")


def _resolved(rows: Rows, block_ids: Iterable[int]) -> dict[int, First]:
    """Return what became of the blocks that are followed, where they are no longer of unknown fate.

    They are kept as they are until the end: a worker that resolves one later finds the follower decided.
    """
    wanted = list(block_ids)
    if not wanted:
        return {}
    found = rows.all(
        "SELECT block_id, state, refused FROM block WHERE block_id = ANY(%s) ORDER BY block_id FOR SHARE",
        wanted,
    )
    return {
        block_id: First.of(BlockState(state), rows.loaded(refused), columns_of(rows, block_id)[0])
        for block_id, state, refused in found
        if state != BlockState.AMBIGUOUS
    }
