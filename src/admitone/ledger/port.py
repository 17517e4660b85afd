"""The ledger: the only place where it is decided whether an identity is new.

What every implementation guarantees:

- *One admission.* Of all claims for an identity that is not live, exactly one gets it.
- *Ownership.* Every writing call names the epoch it holds; under an older one it fails with `Fenced` and
  changes nothing.
- *Progress with the truth.* A mark moves only in the transaction that decides what it passes, and only from
  the value that was read.
- *Durability.* What a call returned survives the machine.
- *Transitions.* A block's state changes only along `core.decisions.BLOCK_TRANSITIONS`, enforced by the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from admitone.core.decisions import Action, BlockState
from admitone.ledger.model import (
    ADMISSION_STORE,
    ANYTHING,
    IDLE_AFTER_MS,
    AcceptedTopic,
    Anomaly,
    Attempt,
    Block,
    Blocked,
    ChainedClosing,
    Claim,
    Claimed,
    Closure,
    Decided,
    Derived,
    Destination,
    EvidenceFile,
    Filter,
    KnownEnds,
    Late,
    Mark,
    Outcome,
    Resolution,
    Resolved,
    Source,
    SourceInfo,
    UpstreamInfo,
)


class LedgerReader(Protocol):
    """Questions; the query side gets only these."""

    def snapshot(self) -> AbstractContextManager[object]:
        """Let every question asked within see one and the same state."""

    def ledger_id(self) -> str:
        """Return the id that this ledger got when it was made; a copy of it has the same."""

    def sources(self) -> list[SourceInfo]:
        """Return every source this ledger has seen."""

    def next_offset(self, source: Source) -> int | None:
        """Return the offset to read a source from next, None where nothing was ever read."""

    def upstreams(self, source: Source | None = None) -> list[UpstreamInfo]:
        """Return the marks by which replays are found, of one source or of all.

        They move, never back, in the transaction that settles a block or makes it ambiguous.
        """

    def runs(self) -> dict[str, str]:
        """Return the state of each run, OPEN or CLOSED."""

    def blocks(
        self,
        *,
        states: Sequence[BlockState] | None = None,
        source: Source | None = None,
        ids: Sequence[int] | None = None,
    ) -> list[Block]:
        """Return block rows in the order they were claimed."""

    def last_blocks(self) -> list[Block]:
        """Return the block of each source that reaches furthest, whatever became of it."""

    def decided_rows(self) -> Iterator[Block]:
        """Yield the rows of all decided blocks, source by source, in the order of their offsets."""

    def derived(self, block_id: int) -> Derived:
        """Return what is kept beside a block's columns and follows from them."""

    def blocks_in(self, topic: str, partition: int, first: int, last: int) -> list[int]:
        """Return the decided blocks that have records within a stretch of the log."""

    def columns(self, block_id: int) -> tuple[pa.Table, pa.Table, pa.Table | None]:
        """Return a block's facts, verdicts and bus columns, as they were first decided."""

    def decided(self, wanted: Filter = ANYTHING) -> Iterator[Decided]:
        """Yield the decided blocks that may hold what is wanted, with their columns as they stand now.

        Blocks are left out by what their rows say: range, times, runs, verdicts, places on the log, names.
        """

    def resolutions(self, block_ids: Sequence[int] | None = None) -> list[Resolution]:
        """Return what was decided later, about some blocks or all, oldest first."""

    def late(self, block_id: int) -> Late | None:
        """Return the plan to publish a block late, where there is one."""

    def late_numbers(self) -> dict[Source, int]:
        """Return the next number of every producer that published something late."""

    def recent(self, source: Source, deliveries: int) -> tuple[int, int]:
        """Return how many of a source's last deliveries, at least as many as asked for, were quarantined.

        The first number is how many there are: whole blocks, newest first, without those that hold deliveries for
        a topic that had drifted.
        """

    def journal(self, block_id: int) -> bytes | None:
        """Return a block's original deliveries, while they are kept."""

    def anomalies(self, run_id: str | None = None) -> list[Anomaly]:
        """Return the open contradictions."""

    def pending_evidence(self, pipeline: str | None = None) -> list[int]:
        """Return the decided blocks, of one pipeline or of all, whose evidence is not durable yet."""

    def pending_resolutions(self, pipeline: str | None = None) -> list[int]:
        """Return the resolutions, of one pipeline or of all, whose evidence is not durable yet."""

    def evidence_files(self, run_id: str | None = None) -> list[EvidenceFile]:
        """Return the evidence files that are durable."""

    def evidence_of(self, path: str) -> tuple[list[int], list[int]]:
        """Return the blocks, or the resolutions, that a file was made from."""

    def closure(self, run_id: str) -> bytes | None:
        """Return the closing artifact of a run."""

    def attempts(self, run_id: str) -> list[Attempt]:
        """Return every try at closing a run, oldest first."""

    def closings(self) -> list[ChainedClosing]:
        """Return the chain of all closings, oldest first."""

    def rules(self) -> dict[bytes, bytes]:
        """Return every document of rules that was ever decided by, under its hash."""

    def accepted_topics(self, cluster: str) -> list[AcceptedTopic]:
        """Return every acceptance of topics of a cluster, oldest first: of each topic the last one counts."""

    def reading_back(self) -> dict[str, KnownEnds]:
        """Return the pipelines whose reading back was begun and not ended, each with the ends it begins at."""

    def now_ms(self) -> int:
        """Return what time it is by the ledger's clock, which blocks are claimed by."""

    def close(self) -> None:
        """Release what is open."""


class Ledger(LedgerReader, Protocol):
    """The questions, and the writes of the admission protocol."""

    def database(self) -> str:
        """Return which database holds the ledger: another one after a failover, or where a copy was put back."""

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

    def take_generation(self, pipeline: str) -> int:
        """Start a new generation of a pipeline; tasks of older ones get no epoch any more."""

    def take_epoch(self, source: Source, generation: int | None, beyond: int = 0) -> int:
        """Take over a source partition, or raise `Fenced` when the generation is not the current one.

        Without a generation the source is seized from its worker, to resolve what it left in flight. The epoch is
        higher than any before and than `beyond`: a ledger that was restored may have to catch up with the log.
        """

    def check_epoch(self, source: Source, epoch: int) -> None:
        """Raise `Fenced` when another worker took the source over."""

    def mark(self, source: Source) -> Mark:
        """Return how far the source is decided."""

    def horizon(self, source: Source, retention_ms: int) -> int | None:
        """Return the event time from which on no row of a source's store can have been taken over.

        A retention before the end of the open segment: no claim's stream time has reached that end. None where no
        segment is open.
        """

    def claim(self, claim: Claim) -> Claimed | Blocked:
        """Decide every delivery of a block and reserve what is new, in one transaction.

        `Stale` when the horizon of its store has passed what a cache knows; `Fenced` when the ledger has moved.
        """

    def conclude(
        self,
        block: Block,
        epoch: int,
        outcome: Outcome,
        claimed: tuple[pa.Table, pa.Table] | None = None,
    ) -> None:
        """Settle, abort or give up a claimed block; marks move unless it is aborted.

        `claimed` are its facts and verdicts, where the worker that claimed it still has them.
        """

    def refuse(self, block: Block, epoch: int, ordinals: Sequence[int]) -> Block:
        """Note, before the rest is published, which records of a block the broker refuses.

        Of a block in flight, or of one of unknown fate that is to be published late.
        """

    def plan_late(
        self,
        block: Block,
        epoch: int,
        producer_id: int,
        destinations: Sequence[Destination],
        first: int | None = None,
    ) -> Late:
        """Give the records of a block of unknown fate new numbers, before they are published late.

        Only after it was proved that nothing is on the log under the numbers of an earlier plan; or the numbers from
        `first` on, which the log already holds them under.
        """

    def resolve(self, block: Block, epoch: int, resolved: Resolved) -> None:
        """Say what became of a block of unknown fate, and with it of everything that follows it."""

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

    def count_re_reads(self, source: Source, deliveries: int) -> None:
        """Count deliveries that were read again below the mark."""

    def count_cached(self, source: Source, deliveries: int) -> None:
        """Count duplicates that a cache knew."""

    def read_up_to(self, ends: Mapping[Source, int], database: str | None = None) -> None:
        """Note that every record of these sources before an offset is decided; it never goes back.

        `Fenced` when the ledger has moved from the database where they were decided: there it may not be true.

        A log's last offsets may hold no record. Without this nobody could tell, once they are gone, that none is lost.
        """

    def record_evidence(
        self,
        block_ids: Sequence[int],
        files: Sequence[EvidenceFile],
        at: int,
        resolution_ids: Sequence[int] = (),
        database: str | None = None,
    ) -> bool:
        """Say that the evidence of these blocks, or of these resolutions, is durable in these files.

        False, and nothing is said, when other files hold the evidence of any of them already, or when the ledger has
        moved from the database that they were read from: there the numbers may be those of others.
        """

    def replace_evidence(self, file: EvidenceFile) -> None:
        """Note the new checksum of a file that was written again with the same rows."""

    def expire_segments(
        self,
        retention_ms: int,
        idle_after_ms: int = IDLE_AFTER_MS,
        store: str = ADMISSION_STORE,
    ) -> list[str]:
        """Drop segments of a store whose keys have expired for every active source; return their names.

        A source is active if it took an event within the idle time before the last one that any source of the store
        took, by the time that the ledger saw pass between claims: no clock that jumps makes a source idle. For one that
        comes back later, what was dropped meanwhile is too old: its mark says so.
        """

    def expire_journal(self, evidence_before: int) -> int:
        """Drop journal rows whose evidence was durable before a moment; return how many."""

    def newest_block(self, run_id: str) -> int:
        """Return the newest block that was claimed with deliveries of a run; 0 if there is none.

        It waits for claims that are under way, so that what is checked afterwards holds everything up to it.
        """

    def keep_rules(self, rules_hash: bytes, document: bytes) -> None:
        """Keep a document of rules, before anything is decided by it; again is harmless."""

    def note_attempt(self, attempt: Attempt) -> None:
        """Keep a try at closing a run that the gate refused."""

    def close_run(self, closure: Closure, newest_block: int) -> None:
        """Close a run, unless a block was claimed for it after the newest one that was checked; keep the try.

        `RunIsRed`, too, when another closing took its number in the chain meanwhile.
        """

    def begin_reading_back(self, pipeline: str, ends: KnownEnds, at: int) -> None:
        """Note from which ends the log is read back for a pipeline; the ends of a note that is there stand."""

    def number_blocks_beyond(self, block_id: int) -> None:
        """Give new blocks numbers beyond this one, which the log names: who reads it takes them for younger ones."""

    def end_reading_back(self, pipeline: str, closed_runs: Collection[str]) -> None:
        """Remove the note of a pipeline that was read back, in one transaction with what is to hold from then on.

        Its blocks of unknown fate await an operator. Runs that were closed since the copy take nothing until they are
        closed again.
        """

    def accept_topic(self, accepted: AcceptedTopic) -> bool:
        """Accept an incarnation of a topic; False when it is the one that counts already."""
