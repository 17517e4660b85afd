"""The ledger on a database: each writing call is one transaction, or says why it takes more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from admitone.core.decisions import Action, BlockState
from admitone.core.errors import Fenced, NotFound, RunIsRed
from admitone.ledger import block_transactions, resolutions, segments, upkeep
from admitone.ledger.block_transactions import NeedsSegment, claim_block, conclude_block, owned
from admitone.ledger.claims import Prepared
from admitone.ledger.model import (
    ADMISSION_STORE,
    IDLE_AFTER_MS,
    AcceptedTopic,
    Block,
    Blocked,
    Claim,
    Claimed,
    Destination,
    EvidenceFile,
    Late,
    Mark,
    Outcome,
    Resolved,
    Source,
)
from admitone.ledger.reader import StoredReader
from admitone.ledger.store import Rows


class StoredLedger(StoredReader):
    """A `Ledger` on a database."""

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
        segments.must_be_a_store(store)
        self._store.run(
            lambda rows: rows.change(
                "INSERT INTO source (producer_id, partition, pipeline, topic, topic_id, door, store)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                *source, pipeline, topic, topic_id, door, store,
            )
        )  # fmt: skip

    def take_generation(self, pipeline: str) -> int:
        """Start a new generation of a pipeline; tasks of older ones get no epoch any more."""

        def work(rows: Rows) -> int:
            row = rows.first(
                "INSERT INTO generation VALUES (%s, 1) ON CONFLICT (pipeline) DO UPDATE SET"
                " generation = generation.generation + 1 RETURNING generation",
                pipeline,
            )
            assert row is not None
            return int(row[0])

        return self._store.run(work)

    def take_epoch(self, source: Source, generation: int | None, beyond: int = 0) -> int:
        """Take over a source partition, or raise `Fenced` when the generation is not the current one."""

        def work(rows: Rows) -> int:
            taken = rows.first(
                "UPDATE source SET epoch = greatest(epoch, %s) + 1 WHERE producer_id = %s AND partition = %s"
                " RETURNING epoch, pipeline",
                beyond,
                *source,
            )
            if taken is None:
                raise NotFound(f"Source {tuple(source)} is not registered.")
            epoch, pipeline = taken
            if generation is not None:
                # Shared until the end: a new generation that begins meanwhile comes after this epoch.
                row = rows.first(
                    "SELECT generation FROM generation WHERE pipeline = %s FOR SHARE", pipeline
                )
                current = row[0] if row else None
                if current != generation:
                    raise Fenced(
                        f"Generation {generation} of pipeline {pipeline!r} ended; {current} is running now.",
                        "let the newer pipeline run, or stop it first",
                    )
            return int(epoch)

        return self._store.run(work)

    def check_epoch(self, source: Source, epoch: int) -> None:
        """Raise `Fenced` when another worker took the source over."""
        self._store.read(lambda rows: owned(rows, source, epoch, lock=False))

    def mark(self, source: Source) -> Mark:
        """Return how far the source is decided."""
        row = self._store.read(
            lambda rows: rows.first(
                "SELECT mark, stream_time, dropped_before FROM source LEFT JOIN store ON name = store"
                " WHERE producer_id = %s AND partition = %s",
                *source,
            )
        )
        return Mark(*row) if row else Mark()

    def horizon(self, source: Source, retention_ms: int) -> int | None:
        """Return the event time from which on no row of a source's store can have been taken over."""

        def ask(rows: Rows) -> int | None:
            row = rows.first(
                "SELECT store FROM source WHERE producer_id = %s AND partition = %s", *source
            )
            return segments.pointer_of(rows, row[0]).horizon(retention_ms) if row else None

        return self._store.read(ask)

    def claim(self, claim: Claim) -> Claimed | Blocked:
        """Decide every delivery of a block and reserve what is new, in one transaction.

        Before it, in another one, the segment is opened that can take its keys, where that is a new one.
        """
        prepared = Prepared.of(claim)
        self._store.stage(prepared.deliveries)
        while True:
            found = self._store.run(lambda rows: claim_block(rows, self._store, prepared))
            if not isinstance(found, NeedsSegment):
                return found
            needed = found
            self._store.run(
                lambda rows: segments.open_segment(rows, *needed, claim.retention_ms)  # noqa: B023
            )

    def refuse(self, block: Block, epoch: int, ordinals: Sequence[int]) -> Block:
        """Note, before the rest is published, which records of a block in flight the broker refuses."""
        return self._store.run(
            lambda rows: block_transactions.refuse_records(rows, block, epoch, ordinals)
        )

    def conclude(
        self,
        block: Block,
        epoch: int,
        outcome: Outcome,
        claimed: tuple[pa.Table, pa.Table] | None = None,
    ) -> None:
        """Settle, abort or give up a claimed block; marks move unless it is aborted."""
        if outcome.state is BlockState.ABORTED:
            self._store.run(
                lambda rows: block_transactions.abort_block(rows, block, epoch, outcome)
            )
        else:
            columns = claimed or self.columns(block.block_id)[:2]
            self._store.run(lambda rows: conclude_block(rows, block, epoch, outcome, *columns))

    def plan_late(
        self,
        block: Block,
        epoch: int,
        producer_id: int,
        destinations: Sequence[Destination],
        first: int | None = None,
    ) -> Late:
        """Give the records of a block of unknown fate new numbers, before they are published late."""
        return self._store.run(
            lambda rows: resolutions.plan_late(rows, block, epoch, producer_id, destinations, first)
        )

    def resolve(self, block: Block, epoch: int, resolved: Resolved) -> None:
        """Say what became of a block of unknown fate, and with it of everything that follows it."""
        self._store.run(lambda rows: resolutions.resolve_block(rows, block, epoch, resolved))

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
        return self._store.run(
            lambda rows: resolutions.dispose(rows, block_id, ordinals, action, at, author, reason)
        )

    def count_re_reads(self, source: Source, deliveries: int) -> None:
        """Count deliveries that were read again below the mark."""
        self._count("re_read", source, deliveries)

    def count_cached(self, source: Source, deliveries: int) -> None:
        """Count duplicates that a cache knew."""
        self._count("cached", source, deliveries)

    def read_up_to(self, ends: Mapping[Source, int]) -> None:
        """Note that every record of these sources before an offset is decided; it never goes back."""
        self._store.run(
            lambda rows: rows.change_each(
                "UPDATE source SET read_to = %s WHERE producer_id = %s AND partition = %s"
                " AND coalesce(read_to, -1) < %s",
                # In one order, because a worker that settles a block locks its source's row.
                [(end, *source, end) for source, end in sorted(ends.items())],
            )
        )

    def record_evidence(
        self,
        block_ids: Sequence[int],
        files: Sequence[EvidenceFile],
        at: int,
        resolution_ids: Sequence[int] = (),
    ) -> bool:
        """Say that the evidence of these blocks, or resolutions, is durable in these files; False if others hold it."""
        return self._store.run(
            lambda rows: upkeep.record_evidence(rows, block_ids, files, at, resolution_ids)
        )

    def replace_evidence(self, file: EvidenceFile) -> None:
        """Note the new checksum of a file that was written again with the same rows."""
        self._store.run(lambda rows: upkeep.replace_evidence(rows, file))

    def expire_segments(
        self,
        retention_ms: int,
        idle_after_ms: int = IDLE_AFTER_MS,
        store: str = ADMISSION_STORE,
    ) -> list[str]:
        """Drop segments of a store whose keys have expired for every active source; return their names."""
        return segments.expire(self._store, store, retention_ms, idle_after_ms)

    def expire_journal(self, evidence_before: int) -> int:
        """Drop journal rows whose evidence was durable before a moment; return how many."""
        return upkeep.expire_journal(self._store, evidence_before)

    def newest_block(self, run_id: str) -> int:
        """Return the newest block that was claimed with deliveries of a run; 0 if there is none.

        It waits for the claims under way: one of them may have an older number and be seen later.
        """
        return self._store.run(lambda rows: upkeep.newest_block(rows, run_id))

    def close_run(self, run_id: str, artifact: bytes, newest_block: int) -> None:
        """Close a run, unless a block was claimed for it after the newest one that was checked."""
        if not self._store.run(lambda rows: upkeep.close_run(rows, run_id, artifact, newest_block)):
            raise RunIsRed(
                f"Run {run_id!r} took deliveries, or was closed, while it was being checked.",
                f"admitone close {run_id}",
            )

    def accept_topic(self, accepted: AcceptedTopic) -> bool:
        """Accept an incarnation of a topic; False when it is the one that counts already."""
        return self._store.run(lambda rows: upkeep.accept_topic(rows, accepted))

    def _count(self, column: str, source: Source, deliveries: int) -> None:
        self._store.run(
            lambda rows: rows.change(
                f"UPDATE source SET {column} = {column} + %s WHERE producer_id = %s AND partition = %s",  # noqa: S608
                deliveries,
                *source,
            )
        )
