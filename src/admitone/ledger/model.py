"""What a ledger keeps and is asked: sources, claims, blocks, resolutions, and how they are described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from admitone.core.decisions import (
    BLOCK_TRANSITIONS,
    CODE_OF_VERDICT,
    VERDICT_CODES,
    Action,
    BlockState,
    Reason,
    Verdict,
)
from admitone.core.replay_filter import Reached, Upstream
from admitone.core.segment_times import Segment, segment_for

NOTHING_DECIDED = -1
_QUARANTINED = CODE_OF_VERDICT[Verdict.QUARANTINED]
_AMBIGUOUS = CODE_OF_VERDICT[Verdict.AMBIGUOUS]
ADMISSION_STORE = "admission"
"""The keys that all boundaries on a ledger share; each dedup pipeline has a store of its own."""
STREAM, SYNCHRONOUS_DOOR, RELEASE_DOOR = "stream", "synchronous", "release"
"""How deliveries come in: from a topic, one request at a time, or once more out of quarantine."""
PRODUCED_AS = {STREAM: "boundary", SYNCHRONOUS_DOOR: "door", RELEASE_DOOR: RELEASE_DOOR}
"""What the producer id of each is named after, beside its pipeline and its topic."""
RELEASED_FROM = f"{RELEASE_DOOR}:"
"""What stands before the topic that deliveries are released from."""
IDLE_AFTER_MS = 600_000
NEVER_FORGOTTEN = ", ".join(
    repr(str(state)) for state in (BlockState.IN_FLIGHT, BlockState.AMBIGUOUS, BlockState.RETRACTED)
)
"""Blocks whose identities outlive their segment: their fate is open, or they were given up."""
ALLOWED_TRANSITIONS = " OR ".join(
    f"(OLD.state = '{before}' AND NEW.state = '{after}')"
    for before, after in sorted(BLOCK_TRANSITIONS)
)
"""How a block's state may change, as the triggers of both databases say it."""


class Source(NamedTuple):
    """One partition of one incarnation of a source topic."""

    producer_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a source is decided: its last decided offset and its stream time there.

    Events before `forgotten_before` are too old whatever the stream time: their keys may be gone.
    """

    offset: int = NOTHING_DECIDED
    stream_time: int | None = None
    forgotten_before: int | None = None


@dataclass(frozen=True, slots=True)
class Destination:
    """A topic of the topic map, as it was when a block was claimed; the facts' `route` counts them."""

    topic: str
    topic_id: str
    offset_kind: str
    ends: tuple[int, ...]


KnownEnds = Mapping[tuple[str, str], Sequence[int]]
"""By topic and its id: up to which offset of each partition the log holds nothing that a ledger does not know."""


@dataclass(frozen=True, slots=True)
class KnownRepeats:
    """Deliveries of a block that repeat settled ones, as a cache knows; none of these is older than `since`."""

    ordinals: np.ndarray
    first_block: np.ndarray
    first_ordinal: np.ndarray
    since: int


class Stale(Exception):
    """Nothing was claimed: what a cache knows is certain only if it is newer than it was asked for."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A block that asks for its identities (step 2)."""

    source: Source
    epoch: int
    after: Mark
    facts: pa.Table
    journal: bytes
    destinations: tuple[Destination, ...]
    retention_ms: int
    rules: int
    rules_hash: bytes | None = None
    """Under which hash the ledger keeps the rules it was read by."""
    upstream: Mapping[Upstream, Reached] | None = None
    """The marks by which replays among its deliveries were found; None where none were looked for."""
    known: KnownRepeats | None = None
    """What need not be looked for."""
    after_closing: np.ndarray | None = None
    """While reading back: which ordinals came after their run was closed; else the ledger knows which runs are."""
    database: str | None = None
    """Which database held the ledger when it was compared with the log; None where that does not matter."""

    @property
    def reads_back(self) -> bool:
        """Tell whether its deliveries were decided before, by a ledger that is lost."""
        return self.after_closing is not None


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing was claimed: the delivery at `ordinal` cannot be decided in this block.

    `by_block` is the block of another source that holds its identity in flight; None when an earlier delivery
    of this very block has expired by then and the rest only needs a block of its own.
    """

    ordinal: int
    by_block: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a claimed block (step 4)."""

    state: BlockState
    bus_offsets: np.ndarray | None
    published_at: int | None
    decided_at: int
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A block's row, without its columns."""

    block_id: int
    source: Source
    after: int
    first_offset: int
    last_offset: int
    deliveries: int
    epoch: int
    state: BlockState
    rules: int
    claimed_at: int
    """By the ledger's clock; all other moments of a block are by its worker's."""
    decided_at: int | None
    published_at: int | None
    destinations: tuple[Destination, ...]
    refused: tuple[int, ...]
    runs: Mapping[str, int]
    evidence_hash: bytes | None
    rules_hash: bytes | None = None
    """Under which hash the rules it was decided by are kept; blocks of older versions have none."""
    row_hash: bytes | None = None
    """SHA-256 over what its row says for good; blocks of older versions have none."""
    read_back: bool = False
    """It was put back from the log, which names it by the numbers and moments of a ledger that is lost."""
    awaits_operator: bool = False
    """The ledger was restored, and an operator may have given it up since the copy: only an operator publishes it."""


THIS_BLOCK = (
    "block_id = %s AND producer_id = %s AND partition = %s AND first_offset = %s AND epoch = %s"
)
"""The condition that a row is this very block: a ledger that went back gives its number to another one."""


def this_block(block: Block) -> tuple[int, ...]:
    """Return the values of `THIS_BLOCK`."""
    return block.block_id, *block.source, block.first_offset, block.epoch


class Decided(NamedTuple):
    """A decided block with its facts, verdicts and bus columns, as they stand."""

    block: Block
    facts: pa.Table
    verdicts: pa.Table
    bus: pa.Table | None


@dataclass(frozen=True, slots=True)
class Late:
    """The plan to publish a block of unknown fate again, under numbers of its own (EVD-8)."""

    block_id: int
    source: Source
    first: int
    records: int
    destinations: tuple[Destination, ...]


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of a block of unknown fate, and who found out."""

    state: BlockState
    action: Action
    bus_offsets: np.ndarray | None
    published_at: int | None
    at: int
    author: str
    reason: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """What was decided later about deliveries of a decided block; appended, never changed.

    `changes` follows `columns.CHANGES_SCHEMA`: the ordinals, and what holds for them from then on.
    """

    resolution_id: int
    block_id: int
    cause: int | None
    action: Action
    at: int
    published_at: int | None
    author: str
    reason: str
    changes: pa.Table


@dataclass(frozen=True, slots=True)
class Filter:
    """Which decisions are wanted; None means any."""

    run_id: str | None = None
    verdict: Verdict | None = None
    reason: Reason | None = None
    event_id: str | None = None
    event_class: str | None = None
    identity: bytes | None = None
    source: tuple[int | None, int, int] | None = None
    bus: tuple[str, int, int] | None = None
    since: int | None = None
    until: int | None = None
    record: tuple[int, int] | None = None
    """The block and ordinal of one delivery."""
    after: tuple[int, int] | None = None
    """The block and ordinal after which to go on."""


class Held(NamedTuple):
    """Deliveries whose identity the ledger held, and the event time it holds for each."""

    ordinals: np.ndarray
    event_times: np.ndarray


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim was granted: a verdict for every delivery, ADMITTED meaning *to be published*."""

    block: Block
    verdicts: pa.Table
    held: Held


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source, where it comes from, and how far it is decided."""

    source: Source
    pipeline: str
    topic: str
    topic_id: str
    mark: Mark
    re_read: int
    door: str = "stream"
    decided: int = 0
    """How many of its deliveries are decided: offsets may have gaps, so they do not tell."""
    read_to: int | None = None
    """Every record before this offset is decided, also where the last offsets hold none; None until it is read."""
    store: str = ADMISSION_STORE
    """Where its identities are kept."""
    cached: int = 0
    """How many of its duplicates were found without asking the ledger."""

    @property
    def next_offset(self) -> int | None:
        """Return the offset to read from next, None where nothing was ever read."""
        decided = self.mark.offset + 1 if self.mark.offset > NOTHING_DECIDED else None
        known = [offset for offset in (decided, self.read_to) if offset is not None]
        return max(known, default=None)


@dataclass(frozen=True, slots=True)
class AcceptedTopic:
    """An incarnation of a destination topic that may be written to from then on, and who says so."""

    cluster: str
    topic: str
    topic_id: str
    at: int
    author: str
    reason: str


@dataclass(frozen=True, slots=True)
class UpstreamInfo:
    """How far a source has seen one upstream producer and partition, and what came again (RPL-2, RPL-5)."""

    source: Source
    upstream: Upstream
    reached: Reached
    replayed: int
    order_violations: int


@dataclass(frozen=True, slots=True)
class Anomaly:
    """An open contradiction: one identity, another payload than the one admitted (ADM-5)."""

    run_id: str
    identity: bytes
    payload_hash: bytes
    block_id: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """A file of receipts, quarantine or archive rows, made from whole blocks."""

    path: str
    kind: str
    run_id: str
    rows: int
    digest: bytes
    """Hash over the logical rows, which a rewritten file must have again."""
    checksum: bytes
    """SHA-256 over the file's bytes."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a block's row says about its verdicts, so that questions can pass it over."""

    verdict_bits: int
    reason_bits: int
    quarantined: int
    ambiguous: int

    @classmethod
    def of(cls, verdicts: pa.Table) -> Summary:
        """Return the summary of a block's verdicts."""
        counts = np.bincount(verdicts["verdict"].to_numpy(), minlength=len(VERDICT_CODES))
        reasons = np.bincount(verdicts["reason"].to_numpy())
        return cls(
            sum(1 << code for code in np.flatnonzero(counts).tolist()),
            sum(1 << code for code in np.flatnonzero(reasons).tolist()),
            int(counts[_QUARANTINED]),
            int(counts[_AMBIGUOUS]),
        )


class Derived(NamedTuple):
    """What is kept beside a block's columns and follows from them, so that questions find it quickly."""

    summary: Summary
    names: bytes
    places: list[tuple[str, int, int, int]]
    """Topic, partition, first and last offset of each stretch of the log that holds its records."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at closing a run: who made it, when, and the gate as it was then."""

    run_id: str
    at: int
    author: str
    closed: bool
    document: str
    """JSON, as the audit made it."""


@dataclass(frozen=True, slots=True)
class ChainedClosing:
    """A closing in the chain of all closings of a ledger."""

    number: int
    """From 1 on, without a gap."""
    run_id: str
    statement: bytes
    """What was closed and which closing came before it, as canonical JSON."""
    seal: str | None
    """Who signed the statement, as JSON; None where the configuration says that nobody does."""
    head: bytes
    """SHA-256 over the statement: the next one names it."""


@dataclass(frozen=True, slots=True)
class Closure:
    """What closes a run."""

    attempt: Attempt
    artifact: bytes
    closing: ChainedClosing | None = None


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a store of keys stands."""

    retention: int
    opened: Segment | None
    closed: tuple[Segment, ...]
    dropped_before: int | None

    def takes(self, newest_event_time: int, retention_ms: int) -> bool:
        """Tell whether the open segment can take such keys."""
        return (
            self.opened is not None
            and retention_ms <= self.retention
            and segment_for(newest_event_time, retention_ms).start <= self.opened.start
            and newest_event_time < self.opened.end
        )

    def horizon(self, retention_ms: int) -> int | None:
        """Return a retention before the end of the open segment."""
        return self.opened.end - retention_ms if self.opened else None


ANYTHING = Filter()
