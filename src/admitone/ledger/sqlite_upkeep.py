"""Keeping the SQLite ledger: evidence that became durable, keys and originals that expire, runs that are closed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple

import orjson

from admitone.core.errors import NotFound, RunIsRed
from admitone.ledger.model import ADMISSION_STORE, IDLE_AFTER_MS, EvidenceFile
from admitone.ledger.sqlite_reader import newest_block
from admitone.ledger.sqlite_segments import Segments
from admitone.ledger.sqlite_topics import SqliteTopics
from admitone.ledger.stored import slowest_active
from admitone.sqlite import LOOK_EVERY_S

_CARRIED_AT_ONCE = 2_000
_JOURNAL_AT_ONCE = 8 << 20
_PAUSE_S = 2 * LOOK_EVERY_S
"""Long enough for whoever waits for the write lock to find it free."""
_JOURNAL_EXPIRED = (
    "evidence_at < ? AND state IN ('SETTLED', 'RETRACTED')"
    " AND block_id NOT IN (SELECT block_id FROM resolution WHERE evidence_at IS NULL)"
)


class SqliteUpkeep(SqliteTopics):
    """The writes that do not change what was decided."""

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

    def expire_segments(
        self,
        retention_ms: int,
        idle_after_ms: int = IDLE_AFTER_MS,
        store: str = ADMISSION_STORE,
    ) -> list[str]:
        """Drop segments of a store whose keys have expired for every active source; return their names.

        The write lock is never held for long: what is to be found out is found out before, what is to be deleted goes
        slice by slice. A closed segment takes nothing more, so what was read about it stays true.
        """
        with self._database.snapshot() as db:
            segments = Segments(db, store)
            (slowest,) = db.execute(slowest_active("?"), (store, store, idle_after_ms)).fetchone()
            expired = [] if slowest is None else segments.expired(slowest, retention_ms)
            kept = [row for segment in expired for row in segments.unresolved(segment)]
        if not expired:
            return []
        for start in range(0, len(kept), _CARRIED_AT_ONCE):
            with self._database.transaction() as db:
                Segments(db, store).carry(kept[start : start + _CARRIED_AT_ONCE])
        with self._database.transaction() as db:
            expired = Segments(db, store).give_up(expired, slowest, retention_ms)
        for segment in expired:
            before: bytes | None = b""
            while before is not None:
                with self._database.snapshot() as db:
                    before = Segments(db, store).slice_end(segment)
                with self._database.transaction(durable=False) as db:
                    Segments(db, store).delete(segment, before)
                time.sleep(_PAUSE_S)
        return [segments.name(segment) for segment in expired]

    def expire_journal(self, evidence_before: int) -> int:
        """Drop journal rows whose evidence was durable before a moment; return how many."""
        with self._database.snapshot() as db:
            found = db.execute(
                "SELECT block_id, length(journal.deliveries) FROM journal JOIN block USING (block_id)"  # noqa: S608
                f" WHERE {_JOURNAL_EXPIRED}",
                (evidence_before,),
            ).fetchall()
        dropped = 0
        for numbers in _portions(found, _JOURNAL_AT_ONCE):
            with self._database.transaction(durable=False) as db:
                dropped += db.executemany(
                    "DELETE FROM journal WHERE block_id = (SELECT block_id FROM block"  # noqa: S608
                    f" WHERE {_JOURNAL_EXPIRED} AND block_id = ?)",
                    [(evidence_before, number) for number in numbers],
                ).rowcount
            time.sleep(_PAUSE_S)
        return dropped

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


def _portions(found: Iterable[tuple[int, int]], limit: int) -> Iterator[list[int]]:
    """Yield numbers, given with their sizes, in portions of at least one and about so much."""
    portion: list[int] = []
    held = 0
    for number, size in found:
        if portion and held + size > limit:
            yield portion
            portion, held = [], 0
        portion.append(number)
        held += size
    if portion:
        yield portion


def _has_evidence(db: sqlite3.Connection, table: str, key: str, chosen: Sequence[int]) -> bool:
    (already,) = db.execute(
        f"SELECT count(*) FROM {table} WHERE evidence_at IS NOT NULL"  # noqa: S608
        f" AND {key} IN (SELECT value FROM json_each(?))",
        (orjson.dumps(list(chosen)).decode(),),
    ).fetchone()
    return bool(already)
