"""Keeping the PostgreSQL ledger: evidence that became durable, keys and originals that expire, runs that are closed."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.errors import LockNotAvailable

from admitone.core.errors import NotFound, RunIsRed
from admitone.core.segments import Segment
from admitone.ledger.model import ADMISSION_STORE, IDLE_AFTER_MS, EvidenceFile
from admitone.ledger.postgres_reader import newest_block
from admitone.ledger.postgres_segments import Segments
from admitone.ledger.postgres_topics import PostgresTopics
from admitone.ledger.postgres_values import key_of_run, stored_name
from admitone.ledger.stored import slowest_active
from admitone.postgres import Connection


class PostgresUpkeep(PostgresTopics):
    """The writes that do not change what was decided."""

    def record_evidence(
        self,
        block_ids: Sequence[int],
        files: Sequence[EvidenceFile],
        at: int,
        resolution_ids: Sequence[int] = (),
    ) -> bool:
        """Say that the evidence of these blocks is durable in these files; False if others hold it."""
        made_from = (
            ("block", "block_id", sorted(set(block_ids))),
            ("resolution", "resolution_id", sorted(set(resolution_ids))),
        )

        def work(db: Connection) -> bool:
            already = [
                evidence_at
                for table, key, numbers in made_from
                for (evidence_at,) in db.execute(
                    f"SELECT evidence_at FROM {table} WHERE {key} = ANY(%s)"  # noqa: S608
                    f" ORDER BY {key} FOR UPDATE",
                    (numbers,),
                )
                if evidence_at is not None
            ]
            if already:
                listed = db.execute(
                    "SELECT path, digest FROM evidence WHERE path = ANY(%s)",
                    ([file.path for file in files],),
                    binary=True,
                )
                digests: dict[str, bytes] = dict(listed.fetchall())
                return all(digests.get(file.path) == file.digest for file in files)
            for file in files:
                db.execute(
                    "INSERT INTO evidence (path, kind, run_id, rows, digest, checksum)"
                    " VALUES (%s, %s, %s, %s, %s, %s)",
                    (
                        file.path, file.kind, stored_name(file.run_id), file.rows, file.digest,
                        file.checksum,
                    ),
                )  # fmt: skip
            for table, key, numbers in made_from:
                db.execute(
                    f"INSERT INTO evidence_{table}"  # noqa: S608
                    " SELECT path, number FROM unnest(%s::text[]) AS path, unnest(%s::bigint[]) AS number",
                    ([file.path for file in files], numbers),
                )
                db.execute(
                    f"UPDATE {table} SET evidence_at = %s WHERE {key} = ANY(%s)",  # noqa: S608
                    (at, numbers),
                )
            return True

        return self._database.run(work)

    def replace_evidence(self, file: EvidenceFile) -> None:
        """Note the new checksum of a file that was written again with the same rows."""

        def work(db: Connection) -> None:
            changed = db.execute(
                "UPDATE evidence SET checksum = %s WHERE path = %s AND digest = %s",
                (file.checksum, file.path, file.digest),
            ).rowcount
            if changed != 1:
                raise NotFound(f"The ledger lists no file {file.path} with these rows.")

        self._database.run(work)

    def expire_segments(
        self,
        retention_ms: int,
        idle_after_ms: int = IDLE_AFTER_MS,
        store: str = ADMISSION_STORE,
    ) -> list[str]:
        """Drop segments of a store whose keys have expired for every active source; return their names.

        One that somebody still reads stays until the next time; what it held is forgotten all the same.
        """

        def look(db: Connection) -> tuple[int, list[Segment]] | None:
            row = db.execute(slowest_active("%s"), (store, store, idle_after_ms)).fetchone()
            if row is None or row[0] is None:
                return None
            return row[0], Segments(db, store).expired(row[0], retention_ms)

        found = self._database.read(look)
        if found is None:
            return []
        slowest, expired = found
        for segment in expired:
            self._database.run(lambda db: Segments(db, store).carry_unresolved(segment))  # noqa: B023
        if expired:
            expired = self._database.run(
                lambda db: Segments(db, store).give_up(expired, slowest, retention_ms)
            )
        return [name for segment in expired if (name := self._dropped(segment, store)) is not None]

    def expire_journal(self, evidence_before: int) -> int:
        """Drop journal rows whose evidence was durable before a moment; return how many."""
        return self._database.run(
            lambda db: (
                db.execute(
                    "DELETE FROM journal USING block WHERE journal.block_id = block.block_id"
                    " AND evidence_at < %s AND state IN ('SETTLED', 'RETRACTED') AND NOT EXISTS"
                    " (SELECT 1 FROM resolution r WHERE r.block_id = journal.block_id"
                    " AND r.evidence_at IS NULL)",
                    (evidence_before,),
                ).rowcount
            )
        )

    def close_run(self, run_id: str, artifact: bytes, newest: int) -> None:
        """Close a run, unless a block was claimed for it after the newest one that was checked."""
        key = key_of_run(run_id)

        def work(db: Connection) -> bool:
            if newest_block(db, run_id, lock=True) != newest:
                return False
            changed = db.execute(
                "UPDATE run SET state = 'CLOSED', artifact = %s WHERE run_key = %s AND state = 'OPEN'"
                " AND NOT EXISTS (SELECT 1 FROM block WHERE state = 'IN_FLIGHT' AND runs ? %s)",
                (artifact, key, stored_name(run_id)),
            ).rowcount
            return changed == 1

        if not self._database.run(work):
            raise RunIsRed(
                f"Run {run_id!r} took deliveries, or was closed, while it was being checked.",
                f"admitone close {run_id}",
            )

    def _dropped(self, segment: Segment, store: str) -> str | None:
        def drop(db: Connection) -> str | None:
            segments = Segments(db, store)
            try:
                segments.drop(segment)
            except LockNotAvailable:
                db.execute("ROLLBACK")
                return None
            return segments.name(segment)

        return self._database.run(drop)
