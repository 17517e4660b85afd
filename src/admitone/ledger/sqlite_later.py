"""What happens to blocks of the SQLite ledger after they were decided: resolutions, evidence, expiry, closing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import astuple

import orjson
import pyarrow as pa

from admitone.core.decisions import Action, BlockState
from admitone.core.errors import Fenced, MarkMoved, NotFound, RunIsRed
from admitone.faults import crash_point
from admitone.ledger.columns import pack
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
from admitone.ledger.port import (
    Block,
    Destination,
    EvidenceFile,
    Late,
    Resolved,
    Source,
)
from admitone.ledger.sqlite_reader import (
    columns_of,
    newest_block,
    resolutions_of,
    stored_destinations,
)
from admitone.ledger.sqlite_segments import Segments
from admitone.ledger.sqlite_topics import SqliteTopics
from admitone.ledger.stored import ADMISSION_STORE


class SqliteLater(SqliteTopics):
    """The writes that come after the admission protocol."""

    def plan_late(
        self, block: Block, epoch: int, producer_id: int, destinations: Sequence[Destination]
    ) -> Late:
        """Give the records of a block of unknown fate new numbers, before they are published late."""
        _, verdicts, _ = self.columns(block.block_id)
        records = len(ambiguous_admissions(verdicts))
        source = Source(producer_id, block.source.partition)
        with self._database.transaction() as db:
            owned(db, block.source, epoch)
            _still_ambiguous(db, block.block_id)
            (first,) = db.execute(
                "SELECT coalesce(max(first + records), 0) FROM late"
                " WHERE producer_id = ? AND partition = ?",
                source,
            ).fetchone()
            db.execute(
                "INSERT OR REPLACE INTO late VALUES (?, ?, ?, ?, ?, ?)",
                (block.block_id, *source, first, records, stored_destinations(destinations)),
            )
        return Late(block.block_id, source, first, records, tuple(destinations))

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

    def record_evidence(
        self,
        block_ids: Sequence[int],
        files: Sequence[EvidenceFile],
        at: int,
        resolution_ids: Sequence[int] = (),
    ) -> bool:
        """Say that the evidence of these blocks is durable in these files; False if others hold it."""
        members = (
            ("block", "block_id", block_ids),
            ("resolution", "resolution_id", resolution_ids),
        )
        with self._database.transaction() as db:
            if any(_has_evidence(db, *member) for member in members):
                listed = dict(db.execute("SELECT path, digest FROM evidence"))
                return all(listed.get(file.path) == file.digest for file in files)
            for table, key, chosen in members:
                db.executemany(
                    f"INSERT INTO evidence_{table} VALUES (?, ?)",  # noqa: S608
                    [(file.path, number) for file in files for number in chosen],
                )
                db.execute(
                    f"UPDATE {table} SET evidence_at = ?"  # noqa: S608
                    f" WHERE {key} IN (SELECT value FROM json_each(?))",
                    (at, orjson.dumps(list(chosen)).decode()),
                )
            db.executemany(
                "INSERT INTO evidence VALUES (?, ?, ?, ?, ?, ?)", [astuple(file) for file in files]
            )
        return True

    def replace_evidence(self, file: EvidenceFile) -> None:
        """Note the new checksum of a file that was written again with the same rows."""
        with self._database.transaction() as db:
            changed = db.execute(
                "UPDATE evidence SET checksum = ? WHERE path = ? AND digest = ?",
                (file.checksum, file.path, file.digest),
            ).rowcount
            if changed != 1:
                raise NotFound(f"The ledger lists no file {file.path} with these rows.")

    def expire_segments(self, retention_ms: int) -> list[str]:
        """Drop segments whose keys have expired for every source; return their names."""
        with self._database.snapshot() as db:
            (slowest,) = db.execute(
                "SELECT min(stream_time) FROM source WHERE door <> 'release'"
            ).fetchone()
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
                " WHERE evidence_at < ? AND state IN ('SETTLED', 'RETRACTED'))"
                " AND block_id NOT IN (SELECT block_id FROM resolution WHERE evidence_at IS NULL)",
                (evidence_before,),
            ).rowcount

    def close_run(self, run_id: str, artifact: bytes, newest: int) -> None:
        """Close a run, unless a block was claimed for it after the newest one that was checked."""
        with self._database.transaction() as db:
            closed = 0
            if newest_block(db, run_id) == newest:
                closed = db.execute(
                    "UPDATE run SET state = 'CLOSED', artifact = ? WHERE run_id = ? AND state = 'OPEN'"
                    " AND NOT EXISTS (SELECT 1 FROM block JOIN block_run USING (block_id)"
                    " WHERE state = 'IN_FLIGHT' AND block_run.run_id = ?)",
                    (artifact, run_id, run_id),
                ).rowcount
        if closed != 1:
            raise RunIsRed(
                f"Run {run_id!r} took deliveries, or was closed, while it was being checked.",
                f"admitone close {run_id}",
            )


def owned(db: sqlite3.Connection, source: Source, epoch: int) -> None:
    """Raise `Fenced` unless the source is held under this epoch."""
    row = db.execute(
        "SELECT epoch FROM source WHERE producer_id = ? AND partition = ?", source
    ).fetchone()
    if row is None or row[0] != epoch:
        raise Fenced(f"Source {tuple(source)} is held under epoch {row and row[0]}, not {epoch}.")


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


def _has_evidence(db: sqlite3.Connection, table: str, key: str, chosen: Sequence[int]) -> bool:
    (already,) = db.execute(
        f"SELECT count(*) FROM {table} WHERE evidence_at IS NOT NULL"  # noqa: S608
        f" AND {key} IN (SELECT value FROM json_each(?))",
        (orjson.dumps(list(chosen)).decode(),),
    ).fetchone()
    return bool(already)


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
