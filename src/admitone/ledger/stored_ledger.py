"""The ledger on a database: each writing call is one transaction, or says why it takes more."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from admitone.core.decisions import BlockState
from admitone.ledger import block_transactions, resolutions, restoring, segments, sources, upkeep
from admitone.ledger.claims import Prepared
from admitone.ledger.model import (
    ADMISSION_STORE,
    IDLE_AFTER_MS,
    Block,
    Blocked,
    Claim,
    Claimed,
    Outcome,
    Source,
)
from admitone.ledger.store import Rows, Store
from admitone.ledger.stored_reader import StoredReader, reading

P = ParamSpec("P")
T = TypeVar("T")


def in_transaction(
    work: Callable[Concatenate[Rows, P], T],
) -> Callable[Concatenate[StoredLedger, P], T]:
    """Return the method that does this work in one transaction."""

    @wraps(work)
    def run(self: StoredLedger, /, *values: P.args, **named: P.kwargs) -> T:
        return self._store.run(lambda rows: work(rows, *values, **named))

    return run


class StoredLedger(StoredReader):
    """A `Ledger` on a database."""

    _store: Store

    register_source = in_transaction(sources.register)
    take_generation = in_transaction(sources.take_generation)
    take_epoch = in_transaction(sources.take_epoch)
    database = reading(sources.database_of)
    mark = reading(sources.mark_of)
    horizon = reading(sources.horizon_of)
    count_re_reads = in_transaction(sources.count_re_reads)
    count_cached = in_transaction(sources.count_cached)
    read_up_to = in_transaction(sources.read_up_to)
    refuse = in_transaction(block_transactions.refuse_records)
    plan_late = in_transaction(resolutions.plan_late)
    resolve = in_transaction(resolutions.resolve_block)
    dispose = in_transaction(resolutions.dispose)
    record_evidence = in_transaction(upkeep.record_evidence)
    replace_evidence = in_transaction(upkeep.replace_evidence)
    newest_block = in_transaction(upkeep.newest_block_of)
    keep_rules = in_transaction(upkeep.keep_rules)
    note_attempt = in_transaction(upkeep.note_attempt)
    close_run = in_transaction(upkeep.close_run)
    accept_topic = in_transaction(upkeep.accept_topic)
    begin_reading_back = in_transaction(restoring.begin)
    number_blocks_beyond = in_transaction(restoring.number_blocks_beyond)
    end_reading_back = in_transaction(restoring.end)

    def __init__(self, store: Store) -> None:
        super().__init__(store)

    def check_epoch(self, source: Source, epoch: int) -> None:
        """Raise `Fenced` when another worker took the source over."""
        self._store.read(lambda rows: sources.owned(rows, source, epoch, lock=False))

    def claim(self, claim: Claim) -> Claimed | Blocked:
        """Decide every delivery of a block and reserve what is new, in one transaction.

        Before it, in another one, the segment is opened that can take its keys, where that is a new one.
        """
        prepared = Prepared.of(claim)
        self._store.stage(prepared.deliveries)
        while True:
            found = self._store.run(
                lambda rows: block_transactions.claim_block(rows, self._store, prepared)
            )
            if not isinstance(found, block_transactions.NeedsSegment):
                return found
            needed = found
            self._store.run(
                lambda rows: segments.open_segment(rows, *needed, claim.retention_ms)  # noqa: B023
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
            self._store.run(
                lambda rows: block_transactions.conclude_block(
                    rows, block, epoch, outcome, *columns
                )
            )

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
