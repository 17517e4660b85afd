"""What happens to blocks of the PostgreSQL ledger after they were decided: late plans, resolutions, disposals.

A block's row is locked before it is judged. Blocks that follow another one are always younger than it, and rows are
locked from the oldest to the youngest, so that two resolutions never wait for each other.
"""

from __future__ import annotations

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
from admitone.ledger.postgres_reader import columns_of, resolutions_of
from admitone.ledger.postgres_upkeep import PostgresUpkeep
from admitone.ledger.postgres_values import (
    key_of_run,
    stored_destinations,
    stored_name,
)
from admitone.postgres import Connection


class PostgresLater(PostgresUpkeep):
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

        def plan(db: Connection) -> Late:
            owned(db, block.source, epoch)
            _still_ambiguous(db, block.block_id)
            # Blocks of several sources may be given numbers of the same late producer.
            db.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"late {tuple(source)}",)
            )
            row = db.execute(
                "SELECT coalesce(max(first + records), 0) FROM late"
                " WHERE producer_id = %s AND partition = %s",
                source,
            ).fetchone()
            assert row is not None
            number = row[0] if first is None else first
            db.execute(
                "INSERT INTO late VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (block_id) DO UPDATE SET"
                " producer_id = excluded.producer_id, partition = excluded.partition,"
                " first = excluded.first, records = excluded.records,"
                " destinations = excluded.destinations",
                (block.block_id, *source, number, records, stored_destinations(destinations)),
            )
            return Late(block.block_id, source, number, records, tuple(destinations))

        return self._database.run(plan)

    def resolve(self, block: Block, epoch: int, resolved: Resolved) -> None:
        """Say what became of a block of unknown fate, and with it of everything that follows it."""

        def work(db: Connection) -> None:
            owned(db, block.source, epoch)
            _still_ambiguous(db, block.block_id)
            db.execute(
                "UPDATE block SET state = %s WHERE block_id = %s",
                (str(resolved.state), block.block_id),
            )
            # Whoever concludes a follower from now on waits for the row above, and sees what it says.
            others = db.execute(
                "SELECT block_id FROM block WHERE ambiguous > 0 AND block_id <> %s"
                " AND state <> 'IN_FLIGHT' ORDER BY block_id FOR UPDATE",
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

        self._database.run(work)

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

        def work(db: Connection) -> int:
            db.execute("SELECT 1 FROM block WHERE block_id = %s FOR UPDATE", (block_id,))
            facts, verdicts, _ = _now(db, block_id)
            changes = disposal(block_id, ordinals, verdicts, resolutions_of(db, block_id))
            if changes.num_rows:
                _insert_resolution(db, block_id, None, action, at, None, author, reason, changes)
                settled = contradictions(block_id, facts, verdicts, mismatched(changes))
                for identity, payload_hash in sorted({(row[1], row[2]) for row in settled}):
                    db.execute(
                        "UPDATE anomaly SET state = 'RESOLVED'"
                        " WHERE identity = %s AND payload_hash = %s",
                        (identity, payload_hash),
                    )
            return int(changes.num_rows)

        return self._database.run(work)


def owned(
    db: Connection, source: Source, epoch: int, *, lock: bool = True
) -> tuple[int, int | None, str]:
    """Return a source's mark, stream time and store, locked; raise `Fenced` unless it is held under this epoch."""
    row = db.execute(
        "SELECT epoch, mark, stream_time, store FROM source WHERE producer_id = %s AND partition = %s"  # noqa: S608
        + (" FOR UPDATE" if lock else ""),
        source,
    ).fetchone()
    if row is None or row[0] != epoch:
        raise Fenced(f"Source {tuple(source)} is held under epoch {row and row[0]}, not {epoch}.")
    return row[1], row[2], row[3]


def note_places(db: Connection, block_id: int, places: Iterable[tuple[str, int, int, int]]) -> None:
    """Remember which stretch of each partition of the log a block's records lie in."""
    db.cursor().executemany(
        "INSERT INTO place VALUES (%s, %s, %s, %s, %s)"
        " ON CONFLICT (topic, partition, first_offset, block_id)"
        " DO UPDATE SET last_offset = excluded.last_offset",
        [(*place, block_id) for place in places],
    )


def note_contradictions(db: Connection, rows: Iterable[tuple[str, bytes, bytes, int, int]]) -> None:
    """Open an anomaly for each contradiction, again where one was resolved before."""
    firsts: dict[tuple[bytes, bytes], tuple[str, int, int]] = {}
    for run, identity, payload_hash, block_id, ordinal in rows:
        firsts.setdefault((identity, payload_hash), (run, block_id, ordinal))
    if not firsts:
        return
    # In the order of their keys, as everything two transactions may both write.
    db.cursor().executemany(
        "INSERT INTO anomaly (identity, payload_hash, run_key, block_id, ordinal)"
        " VALUES (%s, %s, %s, %s, %s) ON CONFLICT (identity, payload_hash) DO UPDATE SET state = 'OPEN'",
        [(*key, key_of_run(run), *place) for key, (run, *place) in sorted(firsts.items())],
    )


def _still_ambiguous(db: Connection, block_id: int) -> None:
    row = db.execute(
        "SELECT state FROM block WHERE block_id = %s FOR UPDATE", (block_id,)
    ).fetchone()
    if row is None or row[0] != BlockState.AMBIGUOUS:
        raise MarkMoved(f"Block {block_id} is {row[0] if row else 'unknown'}, not AMBIGUOUS.")


def _now(db: Connection, block_id: int) -> Columns:
    """Return a block's columns as they stand."""
    return as_it_stands(columns_of(db, block_id), resolutions_of(db, block_id))


def _append(db: Connection, consequence: Consequence, resolved: Resolved) -> None:
    """Append a resolution of a block and bring its row up to date."""
    block_id, cause = consequence.block_id, consequence.cause
    _insert_resolution(
        db, block_id, cause, resolved.action, resolved.at,
        resolved.published_at if cause is None else None, resolved.author, resolved.reason,
        consequence.changes,
    )  # fmt: skip
    db.execute(
        "UPDATE block SET verdict_bits = %s, reason_bits = %s, quarantined = %s, ambiguous = %s"
        " WHERE block_id = %s",
        (*astuple(consequence.summary), block_id),
    )
    note_contradictions(db, consequence.contradictions)


def _insert_resolution(
    db: Connection,
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
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %b)",
        (
            block_id,
            cause,
            str(action),
            at,
            published_at,
            stored_name(author),
            stored_name(reason),
            pack(changes),
        ),
    )
