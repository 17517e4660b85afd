"""Do the decided blocks of every source follow one another, and does each row still say what it said?

Which blocks hold deliveries of a run is said by their rows, so all rows are looked at and not only those that an index
names for the run. What a row says for good is under its hash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from admitone.evidence.audit.scope import Scope
from admitone.ledger.block_rows import row_digest
from admitone.ledger.model import NOTHING_DECIDED, Block, Source, SourceInfo
from admitone.ledger.port import LedgerReader

_EXAMPLES = 5


@dataclass(slots=True)
class ChainAudit:
    """What was found in the rows of decided blocks."""

    rows: int = 0
    of_run: int = 0
    """Those that say they hold deliveries of the run, of what is looked at."""
    altered: list[int] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Where sources have a gap or an overlap."""
    miscounted: list[str] = field(default_factory=list)
    """Sources that count other deliveries than their blocks hold, or are at another stream time."""
    misnamed: list[str] = field(default_factory=list)
    """Sources whose producer is not that of the pipeline, the door and the topic they name."""


def audit_chain(scope: Scope, ledger: LedgerReader) -> ChainAudit:
    """Look at the rows of all decided blocks once."""
    found = ChainAudit()
    infos = {info.source: info for info in ledger.sources()}
    reached: dict[Source, int] = {}
    deliveries: Counter[Source] = Counter()
    hashed: set[Source] = set()
    last: dict[Source, int] = {}
    closed: set[Source] = set()
    for block in ledger.decided_rows():
        _check_row(found, block, hashed)
        deliveries[block.source] += block.deliveries
        found.rows += 1
        found.of_run += scope.run_id in block.runs and scope.holds(block)
        before = reached.get(block.source, NOTHING_DECIDED)
        span = block.last_offset - block.first_offset + 1
        if not (block.after == before < block.first_offset and 0 < block.deliveries <= span):
            _say(found, infos.get(block.source), block, f"begins at {block.first_offset} behind {before}")  # fmt: skip
        reached[block.source] = max(before, block.last_offset)
        last[block.source] = block.block_id
        if scope.marks is not None and scope.marks.get(block.source) == block.last_offset:
            closed.add(block.source)
    _check_ends(found, infos, reached)
    _check_stream_times(found, ledger, infos, last)
    for source, mark in (scope.marks or {}).items():
        if source not in closed and mark != NOTHING_DECIDED:
            found.broken.append(
                f"no block of {tuple(source)} ends where the run was closed: {mark}"
            )
    for source, info in infos.items():
        if info.decided != deliveries[source]:
            found.miscounted.append(
                f"{info.topic}:{source.partition} counts {info.decided}, not {deliveries[source]}"
            )
    return found


def _check_stream_times(
    found: ChainAudit,
    ledger: LedgerReader,
    infos: Mapping[Source, SourceInfo],
    last: Mapping[Source, int],
) -> None:
    """Compare each source's stream time with that of its last delivery."""
    for source, block_id in last.items():
        facts, _, _ = ledger.columns(block_id)
        info = infos.get(source)
        reached = facts["stream_time"][-1].as_py()
        if info is not None and info.mark.stream_time != reached:
            found.miscounted.append(
                f"{info.topic}:{source.partition} is at stream time {info.mark.stream_time}, not {reached}"
            )


def _check_row(found: ChainAudit, block: Block, hashed: set[Source]) -> None:
    """Compare a row with its hash; older versions gave none, but behind the first of a source every row has one."""
    if block.row_hash is not None:
        hashed.add(block.source)
    if block.source in hashed and row_digest(block) != block.row_hash:
        found.altered.append(block.block_id)


def _check_ends(
    found: ChainAudit, infos: Mapping[Source, SourceInfo], reached: Mapping[Source, int]
) -> None:
    for source, info in infos.items():
        end = reached.get(source, NOTHING_DECIDED)
        if end != info.mark.offset:
            where = f"{info.topic}:{source.partition}"
            found.broken.append(f"{where} is decided up to {end}, its mark is {info.mark.offset}")
    for source in reached.keys() - infos.keys():
        found.broken.append(f"{source.producer_id}:{source.partition} has blocks and no mark")


def _say(found: ChainAudit, info: SourceInfo | None, block: Block, what: str) -> None:
    if len(found.broken) < _EXAMPLES:
        where = f"{info.topic}:{block.source.partition}" if info else str(tuple(block.source))
        found.broken.append(f"block {block.block_id} of {where} {what}")
