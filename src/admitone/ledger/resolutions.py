"""What happens to blocks after they were decided: late plans, resolutions, disposals; each within one transaction.

A block's row is locked before it is judged. Blocks that follow another one are always younger than it, and rows are
locked from the oldest to the youngest, so that two resolutions never wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace

import pyarrow as pa

from admitone.core.decisions import Action, BlockState
from admitone.core.errors import MarkMoved
from admitone.infra.crash_points import crash_point
from admitone.ledger.block_transactions import (
    note_contradictions,
    note_places,
    stored_destinations,
)
from admitone.ledger.columns import pack
from admitone.ledger.model import Block, Destination, Late, Resolved, Source, Summary
from admitone.ledger.outcomes import (
    Columns,
    Consequence,
    ambiguous_admissions,
    as_it_stands,
    bus_ranges,
    consequences,
    contradictions,
    disposal,
)
from admitone.ledger.sources import owned
from admitone.ledger.store import Rows
from admitone.ledger.stored_reader import columns_of, resolutions_of


def plan_late(
    rows: Rows,
    block: Block,
    epoch: int,
    producer_id: int,
    destinations: Sequence[Destination],
    first: int | None = None,
) -> Late:
    """Give the records of a block of unknown fate new numbers, before they are published late."""
    owned(rows, block.source, epoch)
    block = _must_be_ambiguous(rows, block)
    records = len(ambiguous_admissions(columns_of(rows, block.block_id)[1], block.refused))
    source = Source(producer_id, block.source.partition)
    # Blocks of several sources may be given numbers of the same late producer.
    rows.lock(f"late {tuple(source)}")
    if first is None:
        row = rows.first(
            "SELECT coalesce(max(first + records), 0) FROM late WHERE producer_id = %s AND partition = %s",
            *source,
        )
        assert row is not None
        first = int(row[0])
    rows.change(
        "INSERT INTO late VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (block_id) DO UPDATE SET"
        " producer_id = excluded.producer_id, partition = excluded.partition,"
        " first = excluded.first, records = excluded.records, destinations = excluded.destinations",
        block.block_id, *source, first, records, stored_destinations(destinations),
    )  # fmt: skip
    return Late(block.block_id, source, first, records, tuple(destinations))


def resolve_block(rows: Rows, block: Block, epoch: int, resolved: Resolved) -> None:
    """Say what became of a block of unknown fate, and with it of everything that follows it."""
    owned(rows, block.source, epoch)
    block = _must_be_ambiguous(rows, block)
    rows.change(
        "UPDATE block SET state = %s WHERE block_id = %s", str(resolved.state), block.block_id
    )
    # A worker that concludes a follower from now on waits for the row above, and sees what it says.
    others = rows.all(
        "SELECT block_id FROM block WHERE ambiguous > 0 AND block_id <> %s"
        " AND state <> 'IN_FLIGHT' ORDER BY block_id FOR UPDATE",
        block.block_id,
    )
    for consequence in consequences(
        block, resolved, lambda number: _now(rows, number), (number for (number,) in others)
    ):
        _append(rows, consequence, resolved)
        facts, _, bus = consequence.columns
        if consequence.cause is None and bus is not None:
            note_places(rows, block.block_id, bus_ranges(block, facts, bus))
    crash_point("ledger.resolution_written")


def dispose(
    rows: Rows,
    block_id: int,
    ordinals: Sequence[int],
    action: Action,
    at: int,
    author: str,
    reason: str,
) -> int:
    """Say what was done about quarantined deliveries; return how many, those already done left out."""
    rows.all("SELECT 1 FROM block WHERE block_id = %s FOR UPDATE", block_id)
    facts, verdicts, _ = _now(rows, block_id)
    changes = disposal(block_id, ordinals, verdicts, resolutions_of(rows, [block_id]))
    if changes.num_rows:
        _insert_resolution(rows, block_id, None, action, at, None, author, reason, changes)
        settled = contradictions(block_id, facts, verdicts, changes)
        rows.change_each(
            "UPDATE anomaly SET state = 'RESOLVED'"  # noqa: S608
            f" WHERE {rows.run_key} = %s AND identity = %s AND payload_hash = %s",
            [
                (rows.key_of_run(run), identity, payload_hash)
                for identity, payload_hash, run in sorted({(i, h, r) for r, i, h, *_ in settled})
            ],
        )
    return int(changes.num_rows)


def _must_be_ambiguous(rows: Rows, block: Block) -> Block:
    """Return a block of unknown fate with all that the broker refused of it."""
    row = rows.first(
        "SELECT state, refused FROM block WHERE block_id = %s FOR UPDATE", block.block_id
    )
    if row is None or row[0] != BlockState.AMBIGUOUS:
        raise MarkMoved(f"Block {block.block_id} is {row[0] if row else 'unknown'}, not AMBIGUOUS.")
    return replace(block, refused=tuple(rows.loaded(row[1])))


def _now(rows: Rows, block_id: int) -> Columns:
    """Return a block's columns as they stand."""
    return as_it_stands(columns_of(rows, block_id), resolutions_of(rows, [block_id]))


def _append(rows: Rows, consequence: Consequence, resolved: Resolved) -> None:
    """Append a resolution of a block and bring its row up to date."""
    block_id, cause, changes, (facts, verdicts, _) = consequence
    _insert_resolution(
        rows, block_id, cause, resolved.action, resolved.at,
        resolved.published_at if cause is None else None, resolved.author, resolved.reason,
        changes,
    )  # fmt: skip
    rows.change(
        "UPDATE block SET verdict_bits = %s, reason_bits = %s, quarantined = %s, ambiguous = %s"
        " WHERE block_id = %s",
        *astuple(Summary.of(verdicts)), block_id,
    )  # fmt: skip
    note_contradictions(rows, contradictions(block_id, facts, verdicts, changes))


def _insert_resolution(
    rows: Rows,
    block_id: int,
    cause: int | None,
    action: Action,
    at: int,
    published_at: int | None,
    author: str,
    reason: str,
    changes: pa.Table,
) -> None:
    rows.change(
        "INSERT INTO resolution (block_id, cause, action, at, published_at, author, reason, changes)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %b)",
        block_id, cause, str(action), at, published_at, rows.text(author), rows.text(reason),
        pack(changes),
    )  # fmt: skip
