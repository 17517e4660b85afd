"""What the ledger says about a run, block by block: the questions of the gate that need no file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.decisions import (
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    DISPOSING_ACTIONS,
    REASON_CODES,
    VERDICT_CODES,
    Reason,
    Verdict,
)
from admitone.core.identity import identity_of
from admitone.evidence.audit.derived_rows import differs, journal_differs
from admitone.evidence.audit.identities import keyed_sources, wrong_identities, wrong_keys
from admitone.evidence.audit.once_audit import OnceAudit
from admitone.evidence.audit.replay_audit import ReplayAudit
from admitone.evidence.audit.run_on_log import RunOnLog
from admitone.evidence.audit.scope import Scope
from admitone.evidence.evidence_rows import (
    SHOWN,
    AdmittedRows,
    BlockRows,
    DeliveryRows,
    ResolutionRows,
)
from admitone.ledger.columns import logical_digest
from admitone.ledger.model import Block, Decided, Filter, Resolution
from admitone.ledger.outcomes import Columns
from admitone.ledger.port import LedgerReader

_ADMITTED = CODE_OF_VERDICT[Verdict.ADMITTED]
_DUPLICATE = CODE_OF_VERDICT[Verdict.DUPLICATE]
_QUARANTINED = CODE_OF_VERDICT[Verdict.QUARANTINED]
_AMBIGUOUS = CODE_OF_VERDICT[Verdict.AMBIGUOUS]
_MISMATCH = CODE_OF_REASON[Reason.PAYLOAD_MISMATCH]
_CLOSED = CODE_OF_REASON[Reason.RUN_CLOSED]
_BLOCKS_REMEMBERED = 64

Member = tuple[str, int]
"""What evidence is made from: ("block", its number) or ("resolution", its number)."""
BLOCK, RESOLUTION = "block", "resolution"


@dataclass(slots=True)
class DecisionAudit:
    """What was found in the ledger's own columns."""

    blocks: int = 0
    deduplicated: int = 0
    """Those of the blocks that a dedup pipeline decided."""
    admissions: int = 0
    wrong_identities: int = 0
    unplaced: int = 0
    """Admissions without a place on the log."""
    topics: set[str] = field(default_factory=set)
    """The topics that admissions went to."""
    contradictions: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    """Deliveries that contradict an admission and were not disposed of, by identity and payload hash."""
    underived: list[str] = field(default_factory=list)
    """Blocks beside whose columns lies what does not follow from them."""
    journals: list[int] = field(default_factory=list)
    """Blocks whose original deliveries are others than was decided about."""
    rules: set[bytes] = field(default_factory=set)
    """Under which hashes the rules are kept that its blocks were decided by."""
    counts: Counter[Verdict] = field(default_factory=Counter)
    """Its deliveries by verdict, recounted from the columns."""
    deliveries: int = 0
    """How many deliveries its blocks said at their claims they would decide."""
    seconds: int = 0
    """Duplicates and contradictions that were compared with the first admission they refer to."""
    misjudged: int = 0
    """Those of them that the first admission does not bear out."""
    replays: int = 0
    unexplained: int = 0
    """Replays that no delivery before them bears out."""
    quarantined: Counter[Reason] = field(default_factory=Counter)
    ambiguous: int = 0
    altered: list[int] = field(default_factory=list)
    """Blocks whose columns are not those that were decided."""
    called_for: defaultdict[str, dict[Member, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """How many rows of each kind of evidence each block and resolution calls for."""
    later: set[Member] = field(default_factory=set)
    """What was decided after the closing."""

    @property
    def only_deduplicated(self) -> bool:
        """Tell whether the run is a dedup pipeline's alone: the topic map is none of its business."""
        return 0 < self.blocks == self.deduplicated


def audit_decisions(
    scope: Scope, ledger: LedgerReader, once: OnceAudit, log: RunOnLog | None, *, archive: bool
) -> DecisionAudit:
    """Look at every decided block of a run once, and hand its places on the log over.

    Without an archive the ledger's own columns are what identities and records are compared by.
    """
    found = DecisionAudit()
    firsts, replays, keyed = _Firsts(ledger), ReplayAudit(ledger), keyed_sources(ledger)
    for decided in ledger.decided(Filter(run_id=scope.run_id)):
        block, facts, verdicts, bus = decided
        resolutions = ledger.resolutions([block.block_id])
        if not facts.num_rows == verdicts.num_rows == block.deliveries:
            found.altered.append(block.block_id)
            continue
        of_run = _of_run(facts, scope.run_id)
        first = ledger.columns(block.block_id) if resolutions else (facts, verdicts, bus)
        _count_evidence(found, scope, decided, first, resolutions, of_run)
        if (what := differs(ledger, decided, resolutions)) is not None:
            found.underived.append(f"{what} of block {block.block_id}")
        if journal_differs(ledger, decided, keyed=block.source in keyed, archive=archive):
            found.journals.append(block.block_id)
        if not scope.holds(block):
            continue
        found.blocks += 1
        found.rules |= {block.rules_hash} if block.rules_hash else set()
        found.deduplicated += block.source in keyed
        verdict = verdicts["verdict"].to_numpy()
        _count(found, scope.run_id, block, verdict[of_run])
        admitted = np.flatnonzero((verdict == _ADMITTED) & of_run)
        found.ambiguous += int(np.count_nonzero((verdict == _AMBIGUOUS) & of_run))
        chosen = facts.take(pa.array(admitted))
        _check_admitted(found, scope.run_id, block, chosen, block.source in keyed)
        _check_seconds(found, firsts, decided, of_run)
        replays.check(block, facts, verdicts, of_run)
        _check_quarantined(found, decided, resolutions, of_run)
        placed = 0
        for rows in _members(block, first, resolutions):
            there = rows.admitted(scope.run_id)
            placed += len(there.ordinals)
            if log is not None:
                log.note(there)
            if not archive:
                _expect(once, log, there, keyed=block.source in keyed)
        found.unplaced += len(admitted) - placed
    found.replays, found.unexplained = replays.replays, replays.unexplained
    return found


def _members(
    block: Block, first: Columns, resolutions: Sequence[Resolution]
) -> Iterator[DeliveryRows]:
    """Yield a block as it was first decided, then what each resolution says of it."""
    yield BlockRows(block, first)
    for resolution in resolutions:
        yield ResolutionRows(resolution, block, first)


def _expect(once: OnceAudit, log: RunOnLog | None, admitted: AdmittedRows, *, keyed: bool) -> None:
    if not len(admitted.ordinals):
        return
    names = [admitted.facts[name].to_pylist() for name in ("run", "class", "event_id")]
    identities = (
        admitted.facts["identity"].to_pylist() if keyed else [identity_of(*who) for who in zip(*names, strict=True)]
    )  # fmt: skip
    times = admitted.facts["event_time"].to_numpy()
    once.add(identities, times, admitted.block.block_id, admitted.ordinals)
    if log is not None:
        log.expect(admitted, None)


def _count(found: DecisionAudit, run_id: str, block: Block, verdicts: np.ndarray) -> None:
    found.deliveries += block.runs.get(run_id, 0)
    for code, count in zip(*np.unique(verdicts, return_counts=True), strict=True):
        found.counts[VERDICT_CODES[code]] += int(count)


def _of_run(facts: pa.Table, run_id: str) -> np.ndarray:
    runs = facts["run"].combine_chunks()
    names = runs.dictionary.to_pylist()
    code = names.index(run_id) if run_id in names else -1
    chosen: np.ndarray = np.asarray(runs.indices) == code
    return chosen


def _count_evidence(
    found: DecisionAudit,
    scope: Scope,
    decided: Decided,
    first: Columns,
    resolutions: Sequence[Resolution],
    of_run: np.ndarray,
) -> None:
    """Note what rows of evidence a block and its resolutions call for; check the hash over its columns."""
    block = decided.block
    if block.evidence_hash != logical_digest(*(table for table in first if table is not None)):
        found.altered.append(block.block_id)
    members: list[tuple[Member, tuple[str, ...], np.ndarray]] = [
        ((BLOCK, block.block_id), BlockRows.kinds, first[1]["verdict"].to_numpy()[of_run])
    ]
    for resolution in resolutions:
        changes = resolution.changes
        here = of_run[changes["ordinal"].to_numpy()]
        member = (RESOLUTION, resolution.resolution_id)
        members.append((member, ResolutionRows.kinds, changes["verdict"].to_numpy()[here]))
    for member, kinds, codes in members:
        for kind in kinds:
            rows = int(np.count_nonzero(np.isin(codes, SHOWN[kind])))
            if rows:
                found.called_for[kind][member] = rows
        if not scope.holds(block):
            found.later.add(member)


def _check_admitted(
    found: DecisionAudit, run_id: str, block: Block, admitted: pa.Table, keyed: bool
) -> None:
    if not admitted.num_rows:
        return
    found.admissions += admitted.num_rows
    names = (
        admitted["class"].combine_chunks(),
        admitted["event_id"],
        admitted["identity"].combine_chunks(),
    )
    found.wrong_identities += wrong_keys(*names) if keyed else wrong_identities(run_id, *names)
    routes = np.unique(admitted["route"].to_numpy()).tolist()
    found.topics |= {block.destinations[route].topic for route in routes}


class _Firsts:
    """The payload hashes and standing verdicts of blocks that others refer to, the latest remembered."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self.of = lru_cache(maxsize=_BLOCKS_REMEMBERED)(self._read)

    def _read(self, block_id: int) -> tuple[pa.Array, pa.Array, np.ndarray] | None:
        for _, facts, verdicts, _ in self._ledger.decided(Filter(record=(block_id, 0))):
            identities, hashes = (facts[n].combine_chunks() for n in ("identity", "payload_hash"))
            return identities, hashes, verdicts["verdict"].to_numpy()
        return None


def _check_seconds(
    found: DecisionAudit, firsts: _Firsts, decided: Decided, of_run: np.ndarray
) -> None:
    """Compare every duplicate and every contradiction with the admission it refers to.

    That is one of the same identity, with the same payload or another one, and earlier: in an older block, or before it
    in its own.
    """
    block, facts, verdicts, _ = decided
    verdict = verdicts["verdict"].to_numpy()
    contradicts = (verdict == _QUARANTINED) & (verdicts["reason"].to_numpy() == _MISMATCH)
    rows = np.flatnonzero(((verdict == _DUPLICATE) | contradicts) & of_run)
    if not len(rows):
        return
    found.seconds += len(rows)
    first_block = verdicts["first_block"].fill_null(-1).to_numpy()[rows]
    first_ordinal = verdicts["first_ordinal"].fill_null(-1).to_numpy()[rows]
    own, who = (facts[name].combine_chunks() for name in ("payload_hash", "identity"))
    for block_id in np.unique(first_block).tolist():
        chosen = first_block == block_id
        first = firsts.of(block_id)
        if first is None:
            found.misjudged += int(np.count_nonzero(chosen))
            continue
        identities, hashes, standing = first
        seconds, ordinals = rows[chosen], first_ordinal[chosen]
        same = _equal(own, seconds, hashes, ordinals)
        right = (same != contradicts[seconds]) & (standing[ordinals] == _ADMITTED)
        right &= _equal(who, seconds, identities, ordinals)
        right &= (ordinals < seconds) if block_id == block.block_id else block_id < block.block_id
        found.misjudged += int(np.count_nonzero(~right))


def _equal(one: pa.Array, rows: np.ndarray, other: pa.Array, others: np.ndarray) -> np.ndarray:
    equal = pc.equal(one.take(pa.array(rows)), other.take(pa.array(others)))
    return np.asarray(pc.fill_null(equal, False))


def _check_quarantined(
    found: DecisionAudit, decided: Decided, resolutions: Sequence[Resolution], of_run: np.ndarray
) -> None:
    """Count what is in quarantine and was neither released nor discarded."""
    _, facts, verdicts, _ = decided
    reason = verdicts["reason"].to_numpy()
    still = (verdicts["verdict"].to_numpy() == _QUARANTINED) & of_run & (reason != _CLOSED)
    for resolution in resolutions:
        if resolution.action in DISPOSING_ACTIONS:
            still[resolution.changes["ordinal"].to_numpy()] = False
    for code, count in zip(*np.unique(reason[still], return_counts=True), strict=True):
        named = REASON_CODES[code]
        assert named is not None
        found.quarantined[named] += int(count)
    contradicting = facts.take(pa.array(np.flatnonzero(still & (reason == _MISMATCH))))
    found.contradictions.update(
        zip(
            contradicting["identity"].to_pylist(),
            contradicting["payload_hash"].to_pylist(),
            strict=True,
        )
    )
