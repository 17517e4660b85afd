"""How a block's deliveries are decided, once it is known what the ledger holds for their identities.

Both stores call this inside their claiming transaction. A delivery is a *candidate* when it passed step 1,
its run is open, and no earlier delivery of the block has its identity: the lower offset wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from admitone.core.decisions import (
    ADMISSION_OF_BLOCK,
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    DECIDED_STATES,
    JUDGEMENTS,
    AdmissionState,
    BlockState,
    Meaning,
    Reason,
    Verdict,
    meaning_of,
)
from admitone.core.errors import MarkMoved
from admitone.core.identity import KEY_BYTES
from admitone.core.segment_times import oldest_live
from admitone.ledger.columns import VERDICTS_SCHEMA, digest_words, fixed_bytes, pack, unpack
from admitone.ledger.model import (
    Block,
    Blocked,
    Claim,
    Held,
    KnownRepeats,
    Mark,
    Source,
    Stale,
)
from admitone.ledger.name_filter import filter_of
from admitone.ledger.outcomes import runs_of

_ADMITTED = CODE_OF_VERDICT[Verdict.ADMITTED]
_DUPLICATE = CODE_OF_VERDICT[Verdict.DUPLICATE]
_QUARANTINED = CODE_OF_VERDICT[Verdict.QUARANTINED]
_MISMATCH = CODE_OF_REASON[Reason.PAYLOAD_MISMATCH]
_CLOSED = CODE_OF_REASON[Reason.RUN_CLOSED]
_NO_TIME = np.iinfo(np.int64).min
_NOBODY = -1


class Holder(NamedTuple):
    """The row the ledger holds for an identity, with the state of its block."""

    block_id: int
    ordinal: int
    payload_hash: bytes
    event_time: int
    state: BlockState
    refused: tuple[int, ...]

    @property
    def admission(self) -> AdmissionState:
        """Return the state of the identity: its block's, unless the broker refused this very record."""
        if self.ordinal in self.refused and self.state in DECIDED_STATES:
            return AdmissionState.NONE
        return ADMISSION_OF_BLOCK[self.state]


@dataclass(frozen=True, slots=True)
class Deliveries:
    """A block's facts in the form the decision needs them; made before the transaction begins."""

    keys: list[bytes]
    hashes: list[bytes]
    """The first sixteen bytes of each payload hash: all that an identity's row keeps of it."""
    event_time: np.ndarray
    stream_time: np.ndarray
    reason: np.ndarray
    run: pa.DictionaryArray
    first: np.ndarray
    """The ordinal of the block's first delivery with the same identity; -1 where there is no identity."""
    replayed: np.ndarray
    known: KnownRepeats | None = None

    @classmethod
    def of(cls, facts: pa.Table, known: KnownRepeats | None = None) -> Deliveries:
        """Read the facts of a block and find the repetitions within it, but for those that are known."""
        reason = facts["reason"].to_numpy()
        replayed = (reason == 0) & facts["identity"].is_null().to_numpy()
        asking = (reason == 0) & ~replayed
        if known is not None:
            asking[known.ordinals] = False
        admissible = np.flatnonzero(asking)
        named = (
            _bytes_of(facts["identity"], admissible),
            _bytes_of(facts["payload_hash"], admissible),
        )
        keys, hashes = [b""] * len(reason), [b""] * len(reason)
        first = np.full(len(reason), _NOBODY, dtype=np.int64)
        seen: dict[bytes, int] = {}
        for ordinal, identity, digest in zip(admissible.tolist(), *named, strict=True):
            key = keys[ordinal] = identity[:KEY_BYTES]
            hashes[ordinal] = digest[:KEY_BYTES]
            first[ordinal] = seen.setdefault(key, ordinal)
        return cls(
            keys,
            hashes,
            facts["event_time"].fill_null(_NO_TIME).to_numpy(),
            facts["stream_time"].fill_null(_NO_TIME).to_numpy(),
            reason,
            facts["run"].combine_chunks(),
            first,
            replayed,
            known,
        )

    @property
    def newest(self) -> int:
        """Return the highest stream time of the block, by which its segment is chosen."""
        return int(self.stream_time.max())

    def moves_the_store(self, closed: np.ndarray) -> bool:
        """Tell whether any delivery belongs into the store, also one that need not be looked for."""
        asking = (self.first >= 0) & ~closed
        if self.known is not None:
            asking[self.known.ordinals] = ~closed[self.known.ordinals]
        return bool(asking.any())

    def in_closed_runs(self, closed: set[str]) -> np.ndarray:
        """Return which deliveries belong to a run that no longer takes any."""
        names = self.run.dictionary.to_pylist()
        is_closed = np.array([name in closed for name in names] or [False])
        closed_of_row: np.ndarray = is_closed[np.asarray(self.run.indices)]
        return closed_of_row


@dataclass(frozen=True, slots=True)
class Prepared:
    """A claim with everything that can be computed before its transaction begins."""

    claim: Claim
    deliveries: Deliveries
    facts: bytes
    names: bytes
    runs: dict[str, int]
    first_offset: int
    last_offset: int

    @classmethod
    def of(cls, claim: Claim) -> Prepared:
        """Prepare a claim."""
        facts, offsets = claim.facts, claim.facts["offset"]
        return cls(
            claim,
            Deliveries.of(facts, claim.known),
            pack(facts),
            names_of_facts(facts),
            runs_of(facts),
            offsets[0].as_py(),
            offsets[-1].as_py(),
        )

    def decides(self, ordinal: int, holder: Holder) -> bool:
        """Tell whether a held identity leaves a delivery no choice; otherwise the block takes its place."""
        meaning = meaning_for(holder, self.deliveries, ordinal, self.claim.retention_ms)
        return meaning is not Meaning.NEW

    def block(self, block_id: int, claimed_at: int) -> Block:
        """Return the block that the claim becomes."""
        claim = self.claim
        return Block(
            block_id, claim.source, claim.after.offset, self.first_offset, self.last_offset,
            claim.facts.num_rows, claim.epoch, BlockState.IN_FLIGHT, claim.rules, claimed_at,
            None, None, claim.destinations, (), self.runs, None, rules_hash=claim.rules_hash,
            read_back=claim.reads_back,
        )  # fmt: skip


def names_of_facts(facts: pa.Table) -> bytes:
    """Return the filter over the names in a block."""
    identities = digest_words(facts["identity"].drop_null())[:, 0]
    return filter_of(facts["event_id"].to_pylist(), identities)


def must_be_at(source: Source, expected: Mark, found: Mark, in_flight: int | None) -> None:
    """Raise `MarkMoved` unless a source is where a claim believes it to be, with nothing in flight."""
    if found != expected or in_flight is not None:
        raise MarkMoved(
            f"Source {tuple(source)} was expected at {expected} with nothing in flight, it is at {found}"
            + (f" with block {in_flight} in flight." if in_flight is not None else ".")
        )


def candidates(deliveries: Deliveries, closed: np.ndarray) -> np.ndarray:
    """Return the ordinals whose identities the block claims."""
    ordinals = np.arange(len(deliveries.first))
    chosen: np.ndarray = ordinals[(deliveries.first == ordinals) & ~closed]
    return chosen


def meaning_for(holder: Holder, deliveries: Deliveries, ordinal: int, retention_ms: int) -> Meaning:
    """Return what a held identity means for one delivery, at that delivery's stream time."""
    oldest = oldest_live(int(deliveries.stream_time[ordinal]), retention_ms)
    return meaning_of(
        holder.admission,
        expired=holder.event_time < oldest,
        same_hash=holder.payload_hash == deliveries.hashes[ordinal],
    )


def decide(
    deliveries: Deliveries,
    closed: np.ndarray,
    holders: dict[int, Holder],
    block_id: int,
    retention_ms: int,
) -> pa.Table | Blocked:
    """Return the verdict of every delivery, or where the block must end.

    `holders` maps a candidate's ordinal to the row that decides it; candidates without one are new.
    """
    size = len(deliveries.first)
    first, ordinals = deliveries.first, np.arange(size)
    verdict = np.full(size, _QUARANTINED, dtype=np.uint8)
    verdict[deliveries.replayed] = CODE_OF_VERDICT[Verdict.REPLAYED]
    reason = deliveries.reason.astype(np.uint8)
    # A replay brings nothing that a closed run would have to refuse.
    reason[closed & ~deliveries.replayed] = _CLOSED
    first_block = np.full(size, _NOBODY, dtype=np.int64)
    first_ordinal = np.full(size, _NOBODY, dtype=np.int32)

    open_identity = (first >= 0) & ~closed
    verdict[open_identity] = _ADMITTED
    repeats = np.flatnonzero(open_identity & (first != ordinals))
    oldest = deliveries.stream_time[repeats] - retention_ms + 1
    expired = deliveries.event_time[first[repeats]] < oldest
    blocked = [Blocked(int(repeats[expired][0]), None)] if expired.any() else []
    members: dict[int, list[int]] = {}
    for ordinal in repeats.tolist():
        head = int(first[ordinal])
        members.setdefault(head, []).append(ordinal)
        same = deliveries.hashes[ordinal] == deliveries.hashes[head]
        verdict[ordinal] = _DUPLICATE if same else _QUARANTINED
        reason[ordinal] = 0 if same else _MISMATCH
        first_block[ordinal], first_ordinal[ordinal] = block_id, head
    if deliveries.known is not None:
        known, is_open = deliveries.known, ~closed[deliveries.known.ordinals]
        again = known.ordinals[is_open]
        verdict[again] = _DUPLICATE
        first_block[again] = known.first_block[is_open]
        first_ordinal[again] = known.first_ordinal[is_open]

    for head, holder in holders.items():
        for ordinal in (head, *members.get(head, ())):
            meaning = meaning_for(holder, deliveries, ordinal, retention_ms)
            if meaning in (Meaning.WAIT, Meaning.NEW):
                by_block = holder.block_id if meaning is Meaning.WAIT else None
                blocked.append(Blocked(ordinal, by_block))
                break
            judgement = JUDGEMENTS[meaning]
            verdict[ordinal] = CODE_OF_VERDICT[judgement.verdict]  # type: ignore[index]
            reason[ordinal] = CODE_OF_REASON[judgement.reason]
            first_block[ordinal], first_ordinal[ordinal] = holder.block_id, holder.ordinal
    if blocked:
        return min(blocked, key=lambda found: found.ordinal)
    return pa.table(
        [
            pa.array(verdict),
            pa.array(reason),
            pa.array(first_block, mask=first_block < 0),
            pa.array(first_ordinal, mask=first_ordinal < 0),
        ],
        schema=VERDICTS_SCHEMA,
    )


def held_by(holders: Mapping[int, Holder]) -> Held:
    """Return the event times that the ledger holds for deliveries."""
    times = [holder.event_time for holder in holders.values()]
    return Held(np.array(list(holders), dtype=np.int64), np.array(times, dtype=np.int64))


def must_be_fresh(known: KnownRepeats | None, horizon: int | None) -> None:
    """Raise `Stale` where what a cache knows may have been taken over since."""
    if known is not None and len(known.ordinals) and (horizon is None or horizon > known.since):
        raise Stale


def keys_of(packed_facts: bytes) -> list[bytes]:
    """Return the keys of all identities of a block."""
    return [
        identity[:KEY_BYTES]
        for identity in unpack(packed_facts)["identity"].drop_null().to_pylist()
    ]


def _bytes_of(column: pa.ChunkedArray, rows: np.ndarray) -> list[bytes]:
    values = column.combine_chunks().take(pa.array(rows))
    data, width = bytes(fixed_bytes(values)), values.type.byte_width
    return [data[start : start + width] for start in range(0, len(data), width)]
