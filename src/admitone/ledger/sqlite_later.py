"""What happens to blocks of the SQLite ledger after they were decided: late plans, resolutions, disposals."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple

import pyarrow as pa

from admitone.core.decisions import Action, BlockState
from admitone.core.errors import Fenced, MarkMoved
from admitone.faults import crash_point
from admitone.ledger.columns import pack
from admitone.ledger.model import (
    Block,
    Destination,
    Late,
    Resolved,
    Source,
)
from admitone.ledger.outcomes import (
    Columns,
    Consequence,
    ambiguous_admissions,
    as_it_stands,
    bus_ranges,
    consequences,
    contradictions,
    disposal,
    mismatched,
)
from admitone.ledger.sqlite_reader import (
    columns_of,
    resolutions_of,
    stored_destinations,
)
from admitone.ledger.sqlite_upkeep import SqliteUpkeep


class SqliteLater(SqliteUpkeep):
    """What is found out, or done, about blocks after they were decided."""

    def plan_late(
        self,
        block: Block,
        epoch: int,
        producer_id: int,
        destinations: Sequence[Destination],
        first: int | None = None,
    ) -> Late:
        """Give the records of a block of unknown fate new numbers, before they are published late."""
        _, verdicts, _ = self.columns(block.block_id)
        records = len(ambiguous_admissions(verdicts))
        source = Source(producer_id, block.source.partition)
        with self._database.transaction() as db:
            owned(db, block.source, epoch)
            _still_ambiguous(db, block.block_id)
            (next_number,) = db.execute(
                "SELECT coalesce(max(first + records), 0) FROM late"
                " WHERE producer_id = ? AND partition = ?",
                source,
            ).fetchone()
            number = next_number if first is None else first
            db.execute(
                "INSERT OR REPLACE INTO late VALUES (?, ?, ?, ?, ?, ?)",
                (block.block_id, *source, number, records, stored_destinations(destinations)),
            )
        return Late(block.block_id, source, number, records, tuple(destinations))

    def resolve(self, block: Block, epoch: int, resolved: Resolved) -> None:
        """Say what became of a block of unknown fate, and with it of everything that follows it."""
        with self._database.transaction() as db:
            owned(db, block.source, epoch)
            _still_ambiguous(db, block.block_id)
            db.execute(
                "UPDATE block SET state = ? WHERE block_id = ?", (resolved.state, block.block_id)
            )
            others = db.execute(
                "SELECT block_id FROM block WHERE ambiguous > 0 AND block_id <> ?"
                " AND state <> 'IN_FLIGHT' ORDER BY block_id",
                (block.block_id,),
            ).fetchall()
            for consequence in consequences(
                block, resolved, lambda number: _now(db, number), (number for (number,) in others)
            ):
                _append(db, consequence, resolved)
                facts, _, bus = consequence.columns
                if consequence.cause is None and bus is not None:
                    note_places(db, block.block_id, bus_ranges(block, facts, bus))
            crash_point("ledger.resolution_written")

    def dispose(
        self,
        block_id: int,
        ordinals: Sequence[int],
        action: Action,
        at: int,
        author: str,
        reason: str,
    ) -> int:
        """Say what was done about quarantined deliveries; return how many, those already done left out."""
        with self._database.transaction() as db:
            facts, verdicts, _ = _now(db, block_id)
            changes = disposal(block_id, ordinals, verdicts, resolutions_of(db, block_id))
            if changes.num_rows:
                _insert_resolution(db, block_id, None, action, at, None, author, reason, changes)
                settled = contradictions(block_id, facts, verdicts, mismatched(changes))
                db.executemany(
                    "UPDATE anomaly SET state = 'RESOLVED'"
                    " WHERE run_id = ? AND identity = ? AND payload_hash = ?",
                    [row[:3] for row in settled],
                )
        return int(changes.num_rows)


def owned(db: sqlite3.Connection, source: Source, epoch: int) -> str:
    """Return the store of a source; raise `Fenced` unless it is held under this epoch."""
    row = db.execute(
        "SELECT epoch, store FROM source WHERE producer_id = ? AND partition = ?", source
    ).fetchone()
    if row is None or row[0] != epoch:
        raise Fenced(f"Source {tuple(source)} is held under epoch {row and row[0]}, not {epoch}.")
    return str(row[1])


def note_places(
    db: sqlite3.Connection, block_id: int, places: Iterable[tuple[str, int, int, int]]
) -> None:
    """Remember which stretch of each partition of the log a block's records lie in."""
    db.executemany(
        "INSERT OR REPLACE INTO place VALUES (?, ?, ?, ?, ?)",
        [(*place, block_id) for place in places],
    )


def note_contradictions(
    db: sqlite3.Connection, rows: Iterable[tuple[str, bytes, bytes, int, int]]
) -> None:
    """Open an anomaly for each contradiction, again where one was resolved before."""
    db.executemany(
        "INSERT INTO anomaly (run_id, identity, payload_hash, block_id, ordinal)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET state = 'OPEN'",
        rows,
    )


def _still_ambiguous(db: sqlite3.Connection, block_id: int) -> None:
    row = db.execute("SELECT state FROM block WHERE block_id = ?", (block_id,)).fetchone()
    if row is None or row[0] != BlockState.AMBIGUOUS:
        raise MarkMoved(f"Block {block_id} is {row[0] if row else 'unknown'}, not AMBIGUOUS.")


def _now(db: sqlite3.Connection, block_id: int) -> Columns:
    """Return a block's columns as they stand."""
    return as_it_stands(columns_of(db, block_id), resolutions_of(db, block_id))


def _append(db: sqlite3.Connection, consequence: Consequence, resolved: Resolved) -> None:
    """Append a resolution of a block and bring its row up to date."""
    block_id, cause = consequence.block_id, consequence.cause
    _insert_resolution(
        db, block_id, cause, resolved.action, resolved.at,
        resolved.published_at if cause is None else None, resolved.author, resolved.reason,
        consequence.changes,
    )  # fmt: skip
    db.execute(
        "UPDATE block SET verdict_bits = ?, reason_bits = ?, quarantined = ?, ambiguous = ?"
        " WHERE block_id = ?",
        (*astuple(consequence.summary), block_id),
    )
    note_contradictions(db, consequence.contradictions)


def _insert_resolution(
    db: sqlite3.Connection,
    block_id: int,
    cause: int | None,
    action: Action,
    at: int,
    published_at: int | None,
    author: str,
    reason: str,
    changes: pa.Table,
) -> None:
    db.execute(
        "INSERT INTO resolution (block_id, cause, action, at, published_at, author, reason, changes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (block_id, cause, action, at, published_at, author, reason, pack(changes)),
    )
