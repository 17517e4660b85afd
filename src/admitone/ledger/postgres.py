"""The ledger in PostgreSQL, for any number of writing processes.

Every transaction takes its locks in one order: the ownership row of the source, the rows of the runs, the store's
pointer, blocks from the oldest to the youngest, keys. Everything is READ COMMITTED; what must not change between two
statements is locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Final

import pyarrow as pa

from admitone.core.decisions import BlockState
from admitone.core.errors import Fenced, MarkMoved, NotFound
from admitone.faults import crash_point
from admitone.ledger.claims import Prepared
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
from admitone.ledger.outcomes import First, Summary, bus_ranges, concluded, contradictions, followed
from admitone.ledger.postgres_claim import NeedsSegment, claim_block
from admitone.ledger.postgres_later import PostgresLater, note_contradictions, note_places, owned
from admitone.ledger.postgres_reader import columns_of, upstreams_of
from admitone.ledger.postgres_segments import Segments
from admitone.ledger.stored import is_active, must_be_a_store
from admitone.ledger.upstream import (
    marks_of,
    moved_rows,
    progress_of,
    sees_upstream,
    upsert_upstream,
)
from admitone.postgres import Connection


class PostgresLedger(PostgresLater):
    """A `Ledger` on a PostgreSQL database: ownership, and the transactions of the admission protocol."""

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
        self._database.run(
            lambda db: db.execute(
                "INSERT INTO source (producer_id, partition, pipeline, topic, topic_id, door, store)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (*source, pipeline, topic, topic_id, door, store),
            )
        )

    def take_generation(self, pipeline: str) -> int:
        """Start a new generation of a pipeline; tasks of older ones get no epoch any more."""

        def work(db: Connection) -> int:
            row = db.execute(
                "INSERT INTO generation VALUES (%s, 1) ON CONFLICT (pipeline) DO UPDATE SET"
                " generation = generation.generation + 1 RETURNING generation",
                (pipeline,),
            ).fetchone()
            assert row is not None
            return int(row[0])

        return self._database.run(work)

    def take_epoch(self, source: Source, generation: int | None, beyond: int = 0) -> int:
        """Take over a source partition, or raise `Fenced` when the generation is not the current one."""

        def work(db: Connection) -> int:
            taken = db.execute(
                "UPDATE source SET epoch = greatest(epoch, %s) + 1 WHERE producer_id = %s AND partition = %s"
                " RETURNING epoch, pipeline",
                (beyond, *source),
            ).fetchone()
            if taken is None:
                raise NotFound(f"Source {tuple(source)} is not registered.")
            epoch, pipeline = taken
            if generation is not None:
                # Shared until the end: a new generation that begins meanwhile comes after this epoch.
                row = db.execute(
                    "SELECT generation FROM generation WHERE pipeline = %s FOR SHARE", (pipeline,)
                ).fetchone()
                current = row[0] if row else None
                if current != generation:
                    raise Fenced(
                        f"Generation {generation} of pipeline {pipeline!r} ended; {current} is running now.",
                        "let the newer pipeline run, or stop it first",
                    )
            return int(epoch)

        return self._database.run(work)

    def check_epoch(self, source: Source, epoch: int) -> None:
        """Raise `Fenced` when somebody else took the source over."""
        self._database.read(lambda db: owned(db, source, epoch, lock=False))

    def mark(self, source: Source) -> Mark:
        """Return how far the source is decided."""

        def work(db: Connection) -> Mark:
            row = db.execute(
                "SELECT mark, stream_time, dropped_before FROM source LEFT JOIN store ON name = store"
                " WHERE producer_id = %s AND partition = %s",
                source,
            ).fetchone()
            return Mark(*row) if row else Mark()

        return self._database.read(work)

    def horizon(self, source: Source, retention_ms: int) -> int | None:
        """Return the event time from which on no row of a source's store can have been taken over."""

        def work(db: Connection) -> int | None:
            row = db.execute(
                "SELECT store FROM source WHERE producer_id = %s AND partition = %s", source
            ).fetchone()
            pointer = Segments(db, row[0]).pointer() if row else None
            return pointer.horizon(retention_ms) if pointer else None

        return self._database.read(work)

    def claim(self, claim: Claim) -> Claimed | Blocked:
        """Decide every delivery of a block and reserve what is new, in one transaction."""
        prepared = Prepared.of(claim)
        while True:
            found = self._database.run(lambda db: claim_block(db, prepared))
            if not isinstance(found, NeedsSegment):
                return found
            needed = found
            self._database.run(
                lambda db: Segments(db, needed.store).advance(  # noqa: B023
                    needed.newest_event_time,  # noqa: B023
                    claim.retention_ms,
                )
            )

    def refuse(self, block: Block, epoch: int, ordinals: Sequence[int]) -> Block:
        """Note, before the rest is published, which records of a block in flight the broker refuses."""
        refused = tuple(sorted({*block.refused, *ordinals}))

        def work(db: Connection) -> Block:
            owned(db, block.source, epoch)
            changed = db.execute(
                "UPDATE block SET refused = %s WHERE block_id = %s AND state = 'IN_FLIGHT'",
                (list(refused), block.block_id),
            ).rowcount
            if changed != 1:
                raise MarkMoved(f"Block {block.block_id} is no longer in flight.")
            return replace(block, refused=refused)

        return self._database.run(work)

    def conclude(
        self,
        block: Block,
        epoch: int,
        outcome: Outcome,
        claimed: tuple[pa.Table, pa.Table] | None = None,
    ) -> None:
        """Settle, abort or give up a claimed block; marks move unless it is aborted."""
        if outcome.state is BlockState.ABORTED:
            self._database.run(lambda db: _abort(db, block, epoch, outcome))
        else:
            columns = claimed or self.columns(block.block_id)[:2]
            self._database.run(lambda db: _conclude(db, block, epoch, outcome, *columns))

    def count_re_reads(self, source: Source, deliveries: int) -> None:
        """Count deliveries that were read again below the mark."""
        self._database.run(
            lambda db: db.execute(
                "UPDATE source SET re_read = re_read + %s WHERE producer_id = %s AND partition = %s",
                (deliveries, *source),
            )
        )

    def count_cached(self, source: Source, deliveries: int) -> None:
        """Count duplicates that a cache knew."""
        self._database.run(
            lambda db: db.execute(
                "UPDATE source SET cached = cached + %s WHERE producer_id = %s AND partition = %s",
                (deliveries, *source),
            )
        )

    def read_up_to(self, ends: Mapping[Source, int]) -> None:
        """Note that every record of these sources before an offset is decided; it never goes back."""
        self._database.run(
            lambda db: db.cursor().executemany(
                "UPDATE source SET read_to = %s WHERE producer_id = %s AND partition = %s"
                " AND coalesce(read_to, -1) < %s",
                # In one order, because whoever settles a block locks its source's row.
                [(end, *source, end) for source, end in sorted(ends.items())],
            )
        )


_CONCLUDE: Final = (
    "WITH v AS (UPDATE verdicts SET verdicts = coalesce(%b, verdicts), bus = %b WHERE block_id = %s)"
    " UPDATE block SET state = %s, decided_at = %s, published_at = %s, refused = %s, evidence_hash = %s,"
    " verdict_bits = %s, reason_bits = %s, quarantined = %s, ambiguous = %s"
    " WHERE block_id = %s AND state = 'IN_FLIGHT'"
)


def _conclude(
    db: Connection,
    block: Block,
    epoch: int,
    outcome: Outcome,
    facts: pa.Table,
    planned: pa.Table,
) -> None:
    *_, store = owned(db, block.source, epoch)
    Segments(db, store).put_back(block.block_id, outcome.refused)
    resolved = _resolved(db, followed(planned, block.block_id))
    verdicts, bus = concluded(block.block_id, facts, planned, outcome, resolved)
    row = (
        str(outcome.state), outcome.decided_at, outcome.published_at, list(outcome.refused),
        logical_digest(facts, verdicts, bus), *astuple(Summary.of(verdicts)), block.block_id,
    )  # fmt: skip
    packed = pack(verdicts) if not verdicts.equals(planned) else None
    changed = db.execute(_CONCLUDE, (packed, pack(bus), block.block_id, *row)).rowcount
    _must_have_changed(block, changed)
    note_places(db, block.block_id, bus_ranges(block, facts, bus))
    note_contradictions(db, contradictions(block.block_id, facts, verdicts))
    _move_upstream(db, block.source, facts)
    # By itself, and last: a server does not end who is suspended right behind several statements sent at once.
    moved = db.execute(
        "UPDATE source SET mark = %s, stream_time = %s, decided = decided + %s,"
        " active_at = CASE WHEN %s THEN greatest(active_at, %s) ELSE active_at END"
        " WHERE producer_id = %s AND partition = %s AND mark < %s",
        (
            block.last_offset, facts["stream_time"][-1].as_py(), block.deliveries, is_active(facts),
            outcome.decided_at, *block.source, block.first_offset,
        ),
    ).rowcount  # fmt: skip
    if moved != 1:
        raise MarkMoved(f"The mark of {tuple(block.source)} has passed block {block.block_id}.")
    crash_point("ledger.outcome_written")


def _move_upstream(db: Connection, source: Source, facts: pa.Table) -> None:
    if sees_upstream(facts):
        moved = progress_of(facts, marks_of(upstreams_of(db, source)))
        db.cursor().executemany(upsert_upstream("%s"), moved_rows(source, moved))


def _abort(db: Connection, block: Block, epoch: int, outcome: Outcome) -> None:
    *_, store = owned(db, block.source, epoch)
    Segments(db, store).put_back(block.block_id)
    changed = db.execute(
        "UPDATE block SET state = %s, decided_at = %s, published_at = %s"
        " WHERE block_id = %s AND state = 'IN_FLIGHT'",
        (str(outcome.state), outcome.decided_at, outcome.published_at, block.block_id),
    ).rowcount
    _must_have_changed(block, changed)
    for table in ("facts", "names", "verdicts", "journal"):
        db.execute(f"DELETE FROM {table} WHERE block_id = %s", (block.block_id,))  # noqa: S608


def _must_have_changed(block: Block, changed: int) -> None:
    if changed != 1:
        raise MarkMoved(f"Block {block.block_id} is no longer {block.state}.")


def _resolved(db: Connection, block_ids: Iterable[int]) -> dict[int, First]:
    """Return what became of the blocks that are followed, where they are no longer of unknown fate.

    They are kept as they are until the end: whoever resolves one later finds the follower decided.
    """
    wanted = list(block_ids)
    if not wanted:
        return {}
    rows = db.execute(
        "SELECT block_id, state FROM block WHERE block_id = ANY(%s) ORDER BY block_id FOR SHARE",
        (wanted,),
    ).fetchall()
    return {
        block_id: First.of(BlockState(state), columns_of(db, block_id)[0])
        for block_id, state in rows
        if state != BlockState.AMBIGUOUS
    }
