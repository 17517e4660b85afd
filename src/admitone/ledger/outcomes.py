"""What becomes of a claimed block's verdicts: at its conclusion, and by what is found out later.

Pure functions over columns, shared by the stores. A delivery that follows an event of unknown fate stays AMBIGUOUS
until that event's block is resolved; then the table of `core.decisions` says what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from admitone.core.decisions import (
    ADMISSION_OF_BLOCK,
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    DISPOSING_ACTIONS,
    JUDGEMENTS,
    BlockState,
    Reason,
    Verdict,
    meaning_of,
)
from admitone.core.errors import NotFound
from admitone.ledger.columns import BUS_SCHEMA, CHANGES_SCHEMA
from admitone.ledger.model import Block, Decided, Outcome, Resolution, Resolved

_ADMITTED = CODE_OF_VERDICT[Verdict.ADMITTED]
_QUARANTINED = CODE_OF_VERDICT[Verdict.QUARANTINED]
_AMBIGUOUS = CODE_OF_VERDICT[Verdict.AMBIGUOUS]
_MISMATCH = CODE_OF_REASON[Reason.PAYLOAD_MISMATCH]
_PUBLISH_FAILED = _QUARANTINED, CODE_OF_REASON[Reason.PUBLISH_FAILED]

Columns = tuple[pa.Table, pa.Table, pa.Table | None]


def runs_of(facts: pa.Table) -> dict[str, int]:
    """Return how many deliveries of each run a block holds."""
    counts = facts["run"].combine_chunks().value_counts()
    return dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist(), strict=True))


def concluded(
    block_id: int,
    facts: pa.Table,
    verdicts: pa.Table,
    outcome: Outcome,
    resolved: Mapping[int, First],
) -> tuple[pa.Table, pa.Table]:
    """Return the verdicts and the places on the log of a block that is settled or of unknown fate.

    `resolved` holds what became of other blocks that deliveries of this one follow, since it was claimed.
    """
    verdict = verdicts["verdict"].to_numpy().copy()
    reason = verdicts["reason"].to_numpy().copy()
    planned = verdict == _ADMITTED
    first_ordinal = verdicts["first_ordinal"].fill_null(-1).to_numpy()
    first_block = verdicts["first_block"].fill_null(-1).to_numpy()
    within = first_block == block_id
    for number, first in resolved.items():
        for ordinal in np.flatnonzero((verdict == _AMBIGUOUS) & (first_block == number)).tolist():
            verdict[ordinal], reason[ordinal] = first.judge(facts, ordinal, first_ordinal[ordinal])
    if outcome.state is BlockState.AMBIGUOUS:
        verdict[planned | within] = _AMBIGUOUS
        reason[planned | within] = CODE_OF_REASON[Reason.PUBLISH_UNKNOWN]
    if outcome.refused:
        refused = np.isin(np.arange(len(verdict)), outcome.refused)
        refused |= within & np.isin(first_ordinal, outcome.refused)
        verdict[refused], reason[refused] = _PUBLISH_FAILED
    offsets = np.full(len(verdict), -1, dtype=np.int64)
    if outcome.bus_offsets is not None:
        offsets[verdict == _ADMITTED] = outcome.bus_offsets
    bus = pa.table([pa.array(offsets, mask=offsets < 0)], schema=BUS_SCHEMA)
    return _judged(verdicts, verdict, reason), bus


@dataclass(frozen=True, slots=True)
class First:
    """A block that others follow, and what became of it."""

    state: BlockState
    refused: Collection[int]
    hashes: list[bytes | None]

    @classmethod
    def of(cls, state: BlockState, refused: Collection[int], facts: pa.Table) -> First:
        """Return a block's state with what the broker refused of it, and the payload hashes of its deliveries."""
        return cls(state, refused, facts["payload_hash"].to_pylist())

    def judge(self, facts: pa.Table, ordinal: int, first_ordinal: int) -> tuple[int, int]:
        """Return the verdict and reason of a delivery that followed one of this block."""
        if first_ordinal in self.refused:
            return _PUBLISH_FAILED
        same = facts["payload_hash"][ordinal].as_py() == self.hashes[first_ordinal]
        admission = ADMISSION_OF_BLOCK[self.state]
        judgement = JUDGEMENTS[meaning_of(admission, expired=False, same_hash=same)]
        assert judgement.verdict is not None
        return CODE_OF_VERDICT[judgement.verdict], CODE_OF_REASON[judgement.reason]


def followed(verdicts: pa.Table, block_id: int | None = None) -> set[int]:
    """Return the other blocks whose fate decides deliveries of this one."""
    waiting = verdicts.filter(pa.array(verdicts["verdict"].to_numpy() == _AMBIGUOUS))
    return {
        number for number in waiting["first_block"].to_pylist() if number not in (None, block_id)
    }


def ambiguous_admissions(verdicts: pa.Table, refused: Collection[int] = ()) -> np.ndarray:
    """Return the ordinals that were published, or not, when a block's fate became unknown.

    Without those that the broker refused when they were to be published late.
    """
    own = verdicts["first_block"].is_null().to_numpy()
    chosen: np.ndarray = np.flatnonzero((verdicts["verdict"].to_numpy() == _AMBIGUOUS) & own)
    return chosen[~np.isin(chosen, list(refused))]


class Consequence(NamedTuple):
    """What a resolution changes in one block, and how its columns stand afterwards."""

    block_id: int
    cause: int | None
    changes: pa.Table
    columns: Columns


def consequences(
    block: Block, resolved: Resolved, now: Callable[[int], Columns], others: Iterable[int]
) -> Iterator[Consequence]:
    """Yield what the fate of a block changes: in itself first, then in other blocks that may follow it.

    `now` returns a block's columns as they stand.
    """
    own = now(block.block_id)
    first = First.of(resolved.state, block.refused, own[0])
    changes = _own_changes(block, own[1], resolved) + _follower_changes(block.block_id, first, own)
    yield _consequence(block.block_id, None, own, changes)
    for number in others:
        columns = now(number)
        changes = _follower_changes(block.block_id, first, columns)
        if changes:
            yield _consequence(number, block.block_id, columns, changes)


def disposal(
    block_id: int, ordinals: Iterable[int], verdicts: pa.Table, before: Iterable[Resolution]
) -> pa.Table:
    """Return what a disposal records: the quarantined deliveries it is about, less those already done.

    The decisions stay as they are.
    """
    verdict, reason = verdicts["verdict"].to_pylist(), verdicts["reason"].to_pylist()
    wanted = set(ordinals)
    unknown = wanted - set(np.flatnonzero(verdicts["verdict"].to_numpy() == _QUARANTINED).tolist())
    if unknown:
        raise NotFound(
            f"Delivery {block_id}-{min(unknown)} is not in quarantine.",
            "admitone quarantine list shows what is",
        )
    todo = sorted(wanted - disposed(before))
    return _table([_change(ordinal, verdict[ordinal], reason[ordinal]) for ordinal in todo])


def disposed(resolutions: Iterable[Resolution]) -> set[int]:
    """Return the ordinals about which something was done."""
    return {
        ordinal
        for resolution in resolutions
        if resolution.action in DISPOSING_ACTIONS
        for ordinal in resolution.changes["ordinal"].to_pylist()
    }


def standing(block: Block, columns: Columns, resolutions: list[Resolution]) -> Decided:
    """Return a block and its columns with everything that was decided later."""
    published_at = [r.published_at for r in resolutions if r.published_at is not None]
    if published_at:
        block = replace(block, published_at=published_at[-1])
    return Decided(block, *as_it_stands(columns, resolutions))


def as_it_stands(columns: Columns, resolutions: Iterable[Resolution]) -> Columns:
    """Return a block's columns with everything that was decided later."""
    changes = [resolution.changes for resolution in resolutions]
    return _changed(columns, changes) if changes else columns


def _changed(columns: Columns, changes: list[pa.Table]) -> Columns:
    facts, verdicts, bus = columns
    verdict = verdicts["verdict"].to_numpy().copy()
    reason = verdicts["reason"].to_numpy().copy()
    offsets = (
        np.full(len(verdict), -1, dtype=np.int64)
        if bus is None
        else bus["bus_offset"].fill_null(-1).to_numpy().copy()
    )
    for table in changes:
        ordinals = table["ordinal"].to_numpy()
        verdict[ordinals] = table["verdict"].to_numpy()
        reason[ordinals] = table["reason"].to_numpy()
        known = table["bus_offset"].is_valid().to_numpy()
        offsets[ordinals[known]] = table["bus_offset"].drop_null().to_numpy()
    bus = pa.table([pa.array(offsets, mask=offsets < 0)], schema=BUS_SCHEMA)
    return facts, _judged(verdicts, verdict, reason), bus


def _judged(verdicts: pa.Table, verdict: np.ndarray, reason: np.ndarray) -> pa.Table:
    columns = [pa.array(verdict), pa.array(reason), *verdicts.columns[2:]]
    return pa.table(columns, schema=verdicts.schema)


def bus_ranges(block: Block, facts: pa.Table, bus: pa.Table) -> list[tuple[str, int, int, int]]:
    """Return (topic, partition, first, last) of the places a block has on the log."""
    offsets = bus["bus_offset"].fill_null(-1).to_numpy()
    there = offsets >= 0
    route = facts["route"].fill_null(-1).to_numpy()[there]
    partition = facts["partition"].fill_null(-1).to_numpy()[there]
    offsets = offsets[there]
    found = []
    for number, place in sorted(set(zip(route.tolist(), partition.tolist(), strict=True))):
        chosen = offsets[(route == number) & (partition == place)]
        topic = block.destinations[number].topic
        found.append((topic, place, int(chosen.min()), int(chosen.max())))
    return found


def contradictions(
    block_id: int, facts: pa.Table, verdicts: pa.Table, changes: pa.Table | None = None
) -> list[tuple[str, bytes, bytes, int, int]]:
    """Return (run, identity, hash, block, ordinal) of the deliveries that contradict an admission.

    Of all of them, or of those that changes are about, which the verdicts show already.
    """
    chosen = np.flatnonzero(verdicts["reason"].to_numpy() == _MISMATCH)
    if changes is not None:
        chosen = chosen[np.isin(chosen, changes["ordinal"].to_numpy())]
    if not len(chosen):
        return []
    rows = facts.take(pa.array(chosen))
    return [
        (run, identity, digest, block_id, ordinal)
        for run, identity, digest, ordinal in zip(
            rows["run"].to_pylist(),
            rows["identity"].to_pylist(),
            rows["payload_hash"].to_pylist(),
            chosen.tolist(),
            strict=True,
        )
    ]


def _consequence(
    block_id: int, cause: int | None, columns: Columns, changes: list[dict[str, Any]]
) -> Consequence:
    table = _table(changes)
    return Consequence(block_id, cause, table, _changed(columns, [table]))


def _own_changes(block: Block, verdicts: pa.Table, resolved: Resolved) -> list[dict[str, Any]]:
    """Return what a resolution says about the admissions of the block itself."""
    ordinals = ambiguous_admissions(verdicts, block.refused).tolist()
    changes = [
        _change(ordinal, *_PUBLISH_FAILED)
        for ordinal in sorted({*ambiguous_admissions(verdicts).tolist()} - {*ordinals})
    ]
    if resolved.state is BlockState.RETRACTED:
        retracted = CODE_OF_REASON[Reason.IDENTITY_RETRACTED]
        return changes + [_change(ordinal, _QUARANTINED, retracted) for ordinal in ordinals]
    assert resolved.bus_offsets is not None
    return changes + [
        _change(ordinal, _ADMITTED, 0, offset)
        for ordinal, offset in zip(ordinals, resolved.bus_offsets.tolist(), strict=True)
    ]


def _follower_changes(block_id: int, first: First, columns: Columns) -> list[dict[str, Any]]:
    """Return what the fate of a block means for the deliveries that follow it."""
    facts, verdicts, _ = columns
    waiting = (verdicts["verdict"].to_numpy() == _AMBIGUOUS) & (
        verdicts["first_block"].fill_null(-1).to_numpy() == block_id
    )
    firsts = verdicts["first_ordinal"]
    return [
        _change(ordinal, *first.judge(facts, ordinal, firsts[ordinal].as_py()))
        for ordinal in np.flatnonzero(waiting).tolist()
    ]


def _table(changes: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(changes, schema=CHANGES_SCHEMA)


def _change(ordinal: int, verdict: int, reason: int, offset: int | None = None) -> dict[str, Any]:
    return {"ordinal": ordinal, "verdict": verdict, "reason": reason, "bus_offset": offset}
