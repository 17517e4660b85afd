"""The ledger in one SQLite file (WAL, synchronous=FULL), safe with several writing processes.

Every writing transaction takes the write lock first, which stands for all the row locks the protocol asks for:
the ownership row, the run's row, the store's pointer, the blocks that are followed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import numpy as np
import orjson
import pyarrow as pa

from admitone.core.decisions import BlockState
from admitone.core.errors import Fenced, MarkMoved, NotFound
from admitone.faults import crash_point
from admitone.ledger.claims import (
    Deliveries,
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
    ADMISSION_STORE,
    Block,
    Blocked,
    Claim,
    Claimed,
    Mark,
    Outcome,
    Source,
)
from admitone.ledger.outcomes import (
    First,
    Summary,
    bus_ranges,
    concluded,
    contradictions,
    followed,
)
from admitone.ledger.sqlite_later import SqliteLater, note_contradictions, note_places, owned
from admitone.ledger.sqlite_reader import columns_of, stored_destinations, upstreams_of
from admitone.ledger.sqlite_segments import Row, Segments, stage
from admitone.ledger.stored import is_active, must_be_a_store
from admitone.ledger.upstream import (
    marks_of,
    moved_rows,
    must_have_seen,
    progress_of,
    sees_upstream,
    upsert_upstream,
)


class SqliteLedger(SqliteLater):
    """A `Ledger` on a SQLite file: ownership, and the transactions of the admission protocol."""

    def register_source(
        self,
        source: Source,
        pipeline: str,
        topic: str,
        topic_id: str,
        door: str = "stream",
        store: str = ADMISSION_STORE,
    ) -> None:
        """Make a source known, and the store its identities are kept in; again is harmless."""
        must_be_a_store(store)
        with self._database.transaction() as db:
            db.execute(
                "INSERT INTO source (producer_id, partition, pipeline, topic, topic_id, door, store)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (*source, pipeline, topic, topic_id, door, store),
            )

    def take_generation(self, pipeline: str) -> int:
        """Start a new generation of a pipeline; tasks of older ones get no epoch any more."""
        with self._database.transaction() as db:
            (generation,) = db.execute(
                "INSERT INTO generation VALUES (?, 1) ON CONFLICT DO UPDATE SET"
                " generation = generation + 1 RETURNING generation",
                (pipeline,),
            ).fetchone()
        return int(generation)

    def take_epoch(self, source: Source, generation: int | None, beyond: int = 0) -> int:
        """Take over a source partition, or raise `Fenced` when the generation is not the current one."""
        with self._database.transaction() as db:
            row = db.execute(
                "SELECT s.pipeline, g.generation FROM source s LEFT JOIN generation g USING (pipeline)"
                " WHERE producer_id = ? AND partition = ?",
                source,
            ).fetchone()
            if row is None:
                raise NotFound(f"Source {tuple(source)} is not registered.")
            if generation is not None and row[1] != generation:
                raise Fenced(
                    f"Generation {generation} of pipeline {row[0]!r} ended; {row[1]} is running now.",
                    "let the newer pipeline run, or stop it first",
                )
            (epoch,) = db.execute(
                "UPDATE source SET epoch = max(epoch, ?) + 1 WHERE producer_id = ? AND partition = ?"
                " RETURNING epoch",
                (beyond, *source),
            ).fetchone()
        return int(epoch)

    def check_epoch(self, source: Source, epoch: int) -> None:
        """Raise `Fenced` when somebody else took the source over."""
        with self._database.snapshot() as db:
            owned(db, source, epoch)

    def mark(self, source: Source) -> Mark:
        """Return how far the source is decided."""
        with self._database.snapshot() as db:
            return _mark(db, source)

    def horizon(self, source: Source, retention_ms: int) -> int | None:
        """Return the event time from which on no row of a source's store can have been taken over."""
        with self._database.snapshot() as db:
            row = db.execute(
                "SELECT store FROM source WHERE producer_id = ? AND partition = ?", source
            ).fetchone()
            return Segments(db, row[0]).horizon(retention_ms) if row else None

    def claim(self, claim: Claim) -> Claimed | Blocked:
        """Decide every delivery of a block and reserve what is new, in one transaction."""
        prepared = Prepared.of(claim)
        deliveries = prepared.deliveries
        nothing_closed = np.zeros(claim.facts.num_rows, dtype=bool)
        rows = _rows(deliveries, candidates(deliveries, nothing_closed))
        with self._database.scratch() as db:
            stage(db, rows)
        # Everybody waits for this lock, so what can be made ready is ready.
        with self._database.transaction() as db:
            store = owned(db, claim.source, claim.epoch)
            _at_mark(db, claim.source, claim.after)
            if claim.upstream is not None:
                must_have_seen(claim, upstreams_of(db, claim.source))
            closed = deliveries.in_closed_runs(_join_runs(db, prepared.runs))
            if closed.any():
                rows = _rows(deliveries, candidates(deliveries, closed))
                stage(db, rows)
            block = _insert_block(db, prepared)
            block_id = block.block_id
            holders: dict[int, Holder] = {}
            segments = Segments(db, store)
            must_be_fresh(claim.known, segments.horizon(claim.retention_ms))
            if deliveries.moves_the_store(closed):
                holders = segments.claim(
                    rows, deliveries.newest, claim.retention_ms, block_id, prepared.decides
                )
            verdicts = decide(deliveries, closed, holders, block_id, claim.retention_ms)
            if isinstance(verdicts, Blocked):
                db.execute("ROLLBACK")
                return verdicts
            db.executemany(
                "INSERT INTO block_run VALUES (?, ?)", [(run, block_id) for run in prepared.runs]
            )
            db.execute("INSERT INTO facts VALUES (?, ?)", (block_id, prepared.facts))
            db.execute("INSERT INTO names VALUES (?, ?)", (block_id, prepared.names))
            db.execute("INSERT INTO verdicts VALUES (?, ?, NULL)", (block_id, pack(verdicts)))
            db.execute("INSERT INTO journal VALUES (?, ?)", (block_id, claim.journal))
            crash_point("ledger.claim_written")
        return Claimed(block, verdicts, held_by(holders))

    def refuse(self, block: Block, epoch: int, ordinals: Sequence[int]) -> Block:
        """Note, before the rest is published, which records of a block in flight the broker refuses."""
        refused = tuple(sorted({*block.refused, *ordinals}))
        with self._database.transaction() as db:
            owned(db, block.source, epoch)
            changed = db.execute(
                "UPDATE block SET refused = ? WHERE block_id = ? AND state = 'IN_FLIGHT'",
                (orjson.dumps(refused).decode(), block.block_id),
            ).rowcount
            if changed != 1:
                raise MarkMoved(f"Block {block.block_id} is no longer in flight.")
        return replace(block, refused=refused)

    def conclude(
        self,
        block: Block,
        epoch: int,
        outcome: Outcome,
        claimed: tuple[pa.Table, pa.Table] | None = None,
    ) -> None:
        """Settle, abort or give up a claimed block; marks move unless it is aborted."""
        if outcome.state is BlockState.ABORTED:
            self._abort(block, epoch, outcome)
            return
        facts, verdicts = claimed or self.columns(block.block_id)[:2]
        stream_time = facts["stream_time"][-1].as_py()
        with self._database.transaction() as db:
            store = owned(db, block.source, epoch)
            _change_state(db, block, outcome)
            Segments(db, store).put_back(block.block_id, outcome.refused)
            verdicts, bus = concluded(
                block.block_id, facts, verdicts, outcome,
                _resolved(db, followed(verdicts, block.block_id)),
            )  # fmt: skip
            summary = Summary.of(verdicts)
            db.execute(
                "UPDATE block SET refused = ?, evidence_hash = ?, verdict_bits = ?, reason_bits = ?,"
                " quarantined = ?, ambiguous = ? WHERE block_id = ?",
                (
                    orjson.dumps(outcome.refused).decode(), logical_digest(facts, verdicts, bus),
                    *astuple(summary), block.block_id,
                ),
            )  # fmt: skip
            db.execute(
                "UPDATE verdicts SET verdicts = ?, bus = ? WHERE block_id = ?",
                (pack(verdicts), pack(bus), block.block_id),
            )
            note_places(db, block.block_id, bus_ranges(block, facts, bus))
            note_contradictions(db, contradictions(block.block_id, facts, verdicts))
            moved = db.execute(
                "UPDATE source SET mark = ?, stream_time = ?, decided = decided + ?,"
                " active_at = CASE WHEN ? THEN max(coalesce(active_at, 0), ?) ELSE active_at END"
                " WHERE producer_id = ? AND partition = ? AND mark < ?",
                (
                    block.last_offset, stream_time, block.deliveries, is_active(facts),
                    outcome.decided_at, *block.source, block.first_offset,
                ),
            ).rowcount  # fmt: skip
            if moved != 1:
                raise MarkMoved(
                    f"The mark of {tuple(block.source)} has passed block {block.block_id}."
                )
            _move_upstream(db, block.source, facts)
            crash_point("ledger.outcome_written")

    def count_re_reads(self, source: Source, deliveries: int) -> None:
        """Count deliveries that were read again below the mark."""
        with self._database.transaction() as db:
            db.execute(
                "UPDATE source SET re_read = re_read + ? WHERE producer_id = ? AND partition = ?",
                (deliveries, *source),
            )

    def count_cached(self, source: Source, deliveries: int) -> None:
        """Count duplicates that a cache knew."""
        with self._database.transaction() as db:
            db.execute(
                "UPDATE source SET cached = cached + ? WHERE producer_id = ? AND partition = ?",
                (deliveries, *source),
            )

    def read_up_to(self, ends: Mapping[Source, int]) -> None:
        """Note that every record of these sources before an offset is decided; it never goes back."""
        with self._database.transaction() as db:
            db.executemany(
                "UPDATE source SET read_to = ? WHERE producer_id = ? AND partition = ?"
                " AND coalesce(read_to, -1) < ?",
                [(end, *source, end) for source, end in ends.items()],
            )

    def _abort(self, block: Block, epoch: int, outcome: Outcome) -> None:
        with self._database.transaction() as db:
            store = owned(db, block.source, epoch)
            _change_state(db, block, outcome)
            Segments(db, store).put_back(block.block_id)
            for table in ("facts", "names", "verdicts", "journal"):
                db.execute(f"DELETE FROM {table} WHERE block_id = ?", (block.block_id,))  # noqa: S608


def _mark(db: sqlite3.Connection, source: Source) -> Mark:
    row = db.execute(
        "SELECT mark, stream_time, dropped_before FROM source LEFT JOIN store ON name = store"
        " WHERE producer_id = ? AND partition = ?",
        source,
    ).fetchone()
    return Mark(*row) if row else Mark()


def _at_mark(db: sqlite3.Connection, source: Source, expected: Mark) -> None:
    found = _mark(db, source)
    in_flight = db.execute(
        "SELECT block_id FROM block WHERE producer_id = ? AND partition = ? AND state = 'IN_FLIGHT'",
        source,
    ).fetchone()
    must_be_at(source, expected, found, in_flight[0] if in_flight else None)


def _move_upstream(db: sqlite3.Connection, source: Source, facts: pa.Table) -> None:
    if sees_upstream(facts):
        moved = progress_of(facts, marks_of(upstreams_of(db, source)))
        db.executemany(upsert_upstream("?"), moved_rows(source, moved))


def _insert_block(db: sqlite3.Connection, prepared: Prepared) -> Block:
    claim = prepared.claim
    (block_id,) = db.execute(
        "INSERT INTO block (producer_id, partition, after_offset, first_offset, last_offset,"
        " deliveries, epoch, rules, claimed_at, destinations, runs)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING block_id",
        (
            *claim.source, claim.after.offset, prepared.first_offset, prepared.last_offset,
            claim.facts.num_rows, claim.epoch, claim.rules, claim.claimed_at,
            stored_destinations(claim.destinations), orjson.dumps(prepared.runs).decode(),
        ),
    ).fetchone()  # fmt: skip
    return prepared.block(block_id)


def _join_runs(db: sqlite3.Connection, runs: dict[str, int]) -> set[str]:
    """Make the block's runs known; return those that are closed."""
    db.executemany(
        "INSERT INTO run (run_id) VALUES (?) ON CONFLICT DO NOTHING", [(run,) for run in runs]
    )
    return {
        run for (run,) in db.execute("SELECT run_id FROM run WHERE state = 'CLOSED'") if run in runs
    }


def _resolved(db: sqlite3.Connection, block_ids: set[int]) -> dict[int, First]:
    """Return what became of the blocks that are followed, where they are no longer of unknown fate."""
    found = {}
    for block_id in sorted(block_ids):
        (state,) = db.execute("SELECT state FROM block WHERE block_id = ?", (block_id,)).fetchone()
        if state != BlockState.AMBIGUOUS:
            found[block_id] = First.of(BlockState(state), columns_of(db, block_id)[0])
    return found


def _rows(deliveries: Deliveries, ordinals: np.ndarray) -> list[Row]:
    """Return what a claim asks for, in key order."""
    event_times = deliveries.event_time[ordinals]
    rows = [
        (deliveries.keys[ordinal], ordinal, deliveries.hashes[ordinal], event_time)
        for ordinal, event_time in zip(ordinals.tolist(), event_times.tolist(), strict=True)
    ]
    rows.sort()
    return rows


def _change_state(db: sqlite3.Connection, block: Block, outcome: Outcome) -> None:
    changed = db.execute(
        "UPDATE block SET state = ?, decided_at = ?, published_at = ?"
        " WHERE block_id = ? AND state = 'IN_FLIGHT'",
        (outcome.state, outcome.decided_at, outcome.published_at, block.block_id),
    ).rowcount
    if changed != 1:
        raise MarkMoved(f"Block {block.block_id} is no longer {block.state}.")
