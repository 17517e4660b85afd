"""The ledger in one SQLite file (WAL, synchronous=FULL), safe with several writing processes.

Every writing transaction takes the write lock first, which stands for all the row locks the protocol asks for:
the ownership row, the run's row, the store's pointer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
import orjson
import pyarrow as pa

from admitone.core.decisions import (
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    BlockState,
    Meaning,
    Reason,
    Verdict,
)
from admitone.core.errors import Fenced, MarkMoved, NotFound, RunIsRed
from admitone.faults import crash_point
from admitone.ledger.claims import Deliveries, Holder, candidates, decide, meaning_for
from admitone.ledger.columns import BUS_SCHEMA, logical_digest, pack
from admitone.ledger.port import (
    Block,
    Blocked,
    Claim,
    Claimed,
    EvidenceFile,
    Mark,
    Outcome,
    Source,
)
from admitone.ledger.sqlite_reader import ADMISSION_STORE, SqliteReader
from admitone.ledger.sqlite_segments import Segments


class SqliteLedger(SqliteReader):
    """A `Ledger` on a SQLite file."""

    def register_source(self, source: Source, pipeline: str, topic: str, topic_id: str) -> None:
        """Make a source known; again is harmless."""
        with self._database.transaction() as db:
            db.execute(
                "INSERT INTO source (producer_id, partition, pipeline, topic, topic_id)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (*source, pipeline, topic, topic_id),
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

    def take_epoch(self, source: Source, generation: int | None) -> int:
        """Take over a source partition, or raise `Fenced` when the generation is not the current one."""
        with self._database.transaction() as db:
            row = db.execute(
                "SELECT s.pipeline, g.generation FROM source s JOIN generation g USING (pipeline)"
                " WHERE producer_id = ? AND partition = ?",
                source,
            ).fetchone()
            if row is None:
                raise NotFound(
                    f"Source {tuple(source)} or its pipeline's generation is not registered."
                )
            if generation is not None and row[1] != generation:
                raise Fenced(
                    f"Generation {generation} of pipeline {row[0]!r} ended; {row[1]} is running now.",
                    "let the newer pipeline run, or stop it first",
                )
            (epoch,) = db.execute(
                "UPDATE source SET epoch = epoch + 1 WHERE producer_id = ? AND partition = ?"
                " RETURNING epoch",
                source,
            ).fetchone()
        return int(epoch)

    def check_epoch(self, source: Source, epoch: int) -> None:
        """Raise `Fenced` when somebody else took the source over."""
        with self._database.snapshot() as db:
            _owned(db, source, epoch)

    def mark(self, source: Source) -> Mark:
        """Return how far the source is decided."""
        with self._database.snapshot() as db:
            return _mark(db, source)

    def claim(self, claim: Claim) -> Claimed | Blocked:
        """Decide every delivery of a block and reserve what is new, in one transaction."""
        deliveries = Deliveries.of(claim.facts)
        packed_facts = pack(claim.facts)
        runs = _runs_of(claim.facts)
        offsets = claim.facts["offset"]
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        with self._database.transaction() as db:
            _owned(db, claim.source, claim.epoch)
            _at_mark(db, claim.source, claim.after)
            closed = deliveries.in_closed_runs(_join_runs(db, runs))
            (block_id,) = db.execute(
                "INSERT INTO block (producer_id, partition, after_offset, first_offset, last_offset,"
                " deliveries, epoch, rules, claimed_at, destinations, runs)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                " RETURNING block_id",
                (
                    *claim.source, claim.after.offset, first, last, claim.facts.num_rows, claim.epoch,
                    claim.rules, claim.claimed_at,
                    orjson.dumps([astuple(place) for place in claim.destinations]).decode(),
                    orjson.dumps(runs).decode(),
                ),
            ).fetchone()  # fmt: skip
            holders = _reserve(db, claim, deliveries, candidates(deliveries, closed), block_id)
            verdicts = decide(deliveries, closed, holders, block_id, claim.retention_ms)
            if isinstance(verdicts, Blocked):
                db.execute("ROLLBACK")
                return verdicts
            db.execute(
                "UPDATE block SET facts = ?, verdicts = ? WHERE block_id = ?",
                (packed_facts, pack(verdicts), block_id),
            )
            db.execute("INSERT INTO journal VALUES (?, ?)", (block_id, claim.journal))
            crash_point("ledger.claim_written")
        block = Block(
            block_id, claim.source, claim.after.offset, first, last, claim.facts.num_rows, claim.epoch,
            BlockState.IN_FLIGHT, claim.rules, claim.claimed_at, None, None, claim.destinations, (), runs, None,
        )  # fmt: skip
        return Claimed(block, verdicts)

    def conclude(self, block: Block, epoch: int, outcome: Outcome) -> None:
        """Settle, abort or give up a claimed block; marks move unless it is aborted."""
        if outcome.state is BlockState.ABORTED:
            self._abort(block, epoch, outcome)
            return
        facts, verdicts, _ = self.columns(block.block_id)
        planned = verdicts["verdict"].to_numpy() == CODE_OF_VERDICT[Verdict.ADMITTED]
        verdicts = _with_outcome(block.block_id, verdicts, planned, outcome)
        admitted = verdicts["verdict"].to_numpy() == CODE_OF_VERDICT[Verdict.ADMITTED]
        bus = _bus_column(admitted, outcome)
        stream_time = facts["stream_time"][-1].as_py()
        with self._database.transaction() as db:
            _owned(db, block.source, epoch)
            _change_state(db, block, outcome)
            db.execute(
                "UPDATE block SET verdicts = ?, bus = ?, refused = ?, evidence_hash = ?"
                " WHERE block_id = ?",
                (
                    pack(verdicts), pack(bus), orjson.dumps(outcome.refused).decode(),
                    logical_digest(facts, verdicts, bus), block.block_id,
                ),
            )  # fmt: skip
            moved = db.execute(
                "UPDATE source SET mark = ?, stream_time = ? WHERE producer_id = ? AND partition = ?"
                " AND mark < ?",
                (block.last_offset, stream_time, *block.source, block.first_offset),
            ).rowcount
            if moved != 1:
                raise MarkMoved(
                    f"The mark of {tuple(block.source)} has passed block {block.block_id}."
                )
            db.executemany(
                "INSERT INTO anomaly (run_id, identity, payload_hash, block_id, ordinal)"
                " VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                _contradictions(block.block_id, facts, verdicts),
            )
            crash_point("ledger.outcome_written")

    def count_re_reads(self, source: Source, deliveries: int) -> None:
        """Count deliveries that were read again below the mark."""
        with self._database.transaction() as db:
            db.execute(
                "UPDATE source SET re_read = re_read + ? WHERE producer_id = ? AND partition = ?",
                (deliveries, *source),
            )

    def record_evidence(
        self, block_ids: Sequence[int], files: Sequence[EvidenceFile], at: int
    ) -> bool:
        """Say that the evidence of these blocks is durable in these files; False if others hold it."""
        numbers = orjson.dumps(list(block_ids)).decode()
        with self._database.transaction() as db:
            (already,) = db.execute(
                "SELECT count(*) FROM block WHERE evidence_at IS NOT NULL"
                " AND block_id IN (SELECT value FROM json_each(?))",
                (numbers,),
            ).fetchone()
            if already:
                listed = dict(db.execute("SELECT path, digest FROM evidence"))
                return all(listed.get(file.path) == file.digest for file in files)
            db.executemany(
                "INSERT INTO evidence VALUES (?, ?, ?, ?, ?)",
                [(file.path, file.kind, file.run_id, file.rows, file.digest) for file in files],
            )
            db.executemany(
                "INSERT INTO evidence_block VALUES (?, ?)",
                [(file.path, block_id) for file in files for block_id in block_ids],
            )
            db.execute(
                "UPDATE block SET evidence_at = ? WHERE block_id IN (SELECT value FROM json_each(?))",
                (at, numbers),
            )
        return True

    def expire_segments(self, retention_ms: int) -> list[str]:
        """Drop segments whose keys have expired for every source; return their names."""
        with self._database.snapshot() as db:
            (slowest,) = db.execute("SELECT min(stream_time) FROM source").fetchone()
            wanted = slowest is not None and Segments(db, ADMISSION_STORE).some_expired(slowest)
        if not wanted:
            return []
        with self._database.transaction() as db:
            store = Segments(db, ADMISSION_STORE)
            expired = store.give_up(slowest, retention_ms)
        for segment in expired:
            gone = False
            while not gone:
                with self._database.transaction() as db:
                    gone = Segments(db, ADMISSION_STORE).delete_some(segment)
        return [store.name(segment) for segment in expired]

    def expire_journal(self, evidence_before: int) -> int:
        """Drop journal rows whose evidence was durable before a moment; return how many."""
        with self._database.transaction() as db:
            return db.execute(
                "DELETE FROM journal WHERE block_id IN (SELECT block_id FROM block"
                " WHERE evidence_at < ? AND state IN ('SETTLED', 'RETRACTED'))",
                (evidence_before,),
            ).rowcount

    def close_run(self, run_id: str, artifact: bytes, seen_blocks: int) -> None:
        """Close a run, unless a block was claimed for it since `seen_blocks` were counted."""
        with self._database.transaction() as db:
            closed = db.execute(
                "UPDATE run SET state = 'CLOSED', artifact = ? WHERE run_id = ? AND state = 'OPEN'"
                " AND blocks = ? AND NOT EXISTS (SELECT 1 FROM block, json_each(block.runs) named"
                " WHERE block.state = 'IN_FLIGHT' AND named.key = ?)",
                (artifact, run_id, seen_blocks, run_id),
            ).rowcount
        if closed != 1:
            raise RunIsRed(
                f"Run {run_id!r} took deliveries, or was closed, while it was being checked.",
                f"admitone close {run_id}",
            )

    def _abort(self, block: Block, epoch: int, outcome: Outcome) -> None:
        with self._database.transaction() as db:
            _owned(db, block.source, epoch)
            _change_state(db, block, outcome)
            db.execute(
                "UPDATE block SET facts = NULL, verdicts = NULL WHERE block_id = ?",
                (block.block_id,),
            )
            db.execute("DELETE FROM journal WHERE block_id = ?", (block.block_id,))


def _owned(db: sqlite3.Connection, source: Source, epoch: int) -> None:
    row = db.execute(
        "SELECT epoch FROM source WHERE producer_id = ? AND partition = ?", source
    ).fetchone()
    if row is None or row[0] != epoch:
        raise Fenced(f"Source {tuple(source)} is held under epoch {row and row[0]}, not {epoch}.")


def _mark(db: sqlite3.Connection, source: Source) -> Mark:
    row = db.execute(
        "SELECT mark, stream_time FROM source WHERE producer_id = ? AND partition = ?", source
    ).fetchone()
    forgotten = Segments(db, ADMISSION_STORE).dropped_before()
    return Mark(row[0], row[1], forgotten) if row else Mark(forgotten_before=forgotten)


def _at_mark(db: sqlite3.Connection, source: Source, expected: Mark) -> None:
    found = _mark(db, source)
    in_flight = db.execute(
        "SELECT block_id FROM block WHERE producer_id = ? AND partition = ? AND state = 'IN_FLIGHT'",
        source,
    ).fetchone()
    if found != expected or in_flight:
        raise MarkMoved(
            f"Source {tuple(source)} was expected at {expected} with nothing in flight, it is at {found}"
            + (f" with block {in_flight[0]} in flight." if in_flight else ".")
        )


def _runs_of(facts: pa.Table) -> dict[str, int]:
    counts = facts["run"].combine_chunks().value_counts()
    return dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))


def _join_runs(db: sqlite3.Connection, runs: dict[str, int]) -> set[str]:
    """Count the block for its runs; return those that are closed."""
    db.executemany(
        "INSERT INTO run (run_id, blocks) VALUES (?, 1) ON CONFLICT DO UPDATE SET blocks = blocks + 1",
        [(run,) for run in runs],
    )
    return {
        run for (run,) in db.execute("SELECT run_id FROM run WHERE state = 'CLOSED'") if run in runs
    }


def _reserve(
    db: sqlite3.Connection,
    claim: Claim,
    deliveries: Deliveries,
    ordinals: np.ndarray,
    block_id: int,
) -> dict[int, Holder]:
    if not len(ordinals):
        return {}

    def decides(ordinal: int, holder: Holder) -> bool:
        meaning = meaning_for(holder, deliveries, ordinal, claim.retention_ms)
        return meaning is not Meaning.NEW

    event_times = deliveries.event_time[ordinals]
    rows = [
        (deliveries.keys[ordinal], ordinal, deliveries.hashes[ordinal], event_time)
        for ordinal, event_time in zip(ordinals.tolist(), event_times.tolist(), strict=True)
    ]
    rows.sort()
    store = Segments(db, ADMISSION_STORE)
    return store.claim(rows, claim.retention_ms, claim.rules, block_id, decides)


def _change_state(db: sqlite3.Connection, block: Block, outcome: Outcome) -> None:
    changed = db.execute(
        "UPDATE block SET state = ?, decided_at = ?, published_at = ?"
        " WHERE block_id = ? AND state = ?",
        (outcome.state, outcome.decided_at, outcome.published_at, block.block_id, block.state),
    ).rowcount
    if changed != 1:
        raise MarkMoved(f"Block {block.block_id} is no longer {block.state}.")


def _with_outcome(
    block_id: int, verdicts: pa.Table, planned: np.ndarray, outcome: Outcome
) -> pa.Table:
    """Turn planned admissions into what became of them, and what refers to them within the block too."""
    verdict = verdicts["verdict"].to_numpy().copy()
    reason = verdicts["reason"].to_numpy().copy()
    first = verdicts["first_ordinal"].fill_null(-1).to_numpy()
    within = verdicts["first_block"].fill_null(-1).to_numpy() == block_id
    if outcome.state is BlockState.AMBIGUOUS:
        verdict[planned | within] = CODE_OF_VERDICT[Verdict.AMBIGUOUS]
        reason[planned | within] = CODE_OF_REASON[Reason.PUBLISH_UNKNOWN]
    if outcome.refused:
        refused = np.isin(np.arange(len(verdict)), outcome.refused)
        refused |= within & np.isin(first, outcome.refused)
        verdict[refused] = CODE_OF_VERDICT[Verdict.QUARANTINED]
        reason[refused] = CODE_OF_REASON[Reason.PUBLISH_FAILED]
    return verdicts.set_column(0, "verdict", pa.array(verdict)).set_column(
        1, "reason", pa.array(reason)
    )


def _bus_column(admitted: np.ndarray, outcome: Outcome) -> pa.Table:
    offsets = np.full(len(admitted), -1, dtype=np.int64)
    if outcome.bus_offsets is not None:
        offsets[admitted] = outcome.bus_offsets
    return pa.table([pa.array(offsets, mask=offsets < 0)], schema=BUS_SCHEMA)


def _contradictions(
    block_id: int, facts: pa.Table, verdicts: pa.Table
) -> list[tuple[str, bytes, bytes, int, int]]:
    mismatched = np.flatnonzero(
        verdicts["reason"].to_numpy() == CODE_OF_REASON[Reason.PAYLOAD_MISMATCH]
    )
    rows = facts.take(pa.array(mismatched))
    return [
        (run, identity, digest, block_id, ordinal)
        for run, identity, digest, ordinal in zip(
            rows["run"].to_pylist(),
            rows["identity"].to_pylist(),
            rows["payload_hash"].to_pylist(),
            mismatched.tolist(),
            strict=True,
        )
    ]
