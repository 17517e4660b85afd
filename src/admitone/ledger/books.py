"""The books: deliveries = sum of decisions, per run and source partition, at any moment.

The two sides are counted independently. Deliveries are what each block said at its claim it would decide, and
the blocks of a source must chain up to its mark without a gap or an overlap; decisions are counted
one by one from the verdict columns. Re-reads, duplicates that a cache knew, and order violations are a source's,
whatever the run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from typing_extensions import TypedDict

from admitone.core.decisions import VERDICT_CODES, BlockState, Verdict
from admitone.ledger.model import NOTHING_DECIDED, Block, Source, SourceInfo
from admitone.ledger.port import LedgerReader


class Account(TypedDict):
    """Deliveries = the five decisions; what is in flight or was read again stands beside the sum."""

    deliveries: int
    admitted: int
    duplicates: int
    replayed: int
    quarantined: int
    ambiguous: int
    in_flight: int
    re_read: int
    cached: int
    order_violations: int
    balanced: bool


class PartitionBooks(Account):
    """The account of one source partition."""

    producer_id: int
    topic: str
    partition: int


class RunBooks(Account):
    """The books of a run."""

    run_id: str
    partitions: list[PartitionBooks]


class Books(TypedDict):
    """The books of every run, or of one."""

    runs: list[RunBooks]


Counts = Counter[str]
"""What came in and what was decided, for one run and source partition: by verdict, or by the name of a counter."""


def books(
    ledger: LedgerReader, run_id: str | None = None, until: Mapping[Source, int] | None = None
) -> Books:
    """Return the books of every run, or of one; as they were at earlier marks where these are given."""
    counts: dict[str, dict[Source, Counts]] = defaultdict(lambda: defaultdict(Counter))
    chains: dict[Source, list[Block]] = defaultdict(list)
    with ledger.snapshot():
        infos = {info.source: info for info in ledger.sources()}
        violations: Counter[Source] = Counter()
        for seen in ledger.upstreams():
            violations[seen.source] += seen.order_violations
        in_flight = ledger.blocks(states=[BlockState.IN_FLIGHT]) if until is None else []
        if until is not None:
            infos = {
                source: replace(infos[source], mark=replace(infos[source].mark, offset=offset))
                for source, offset in until.items()
            }
        for block, facts, verdicts, _ in ledger.decided():
            if until is not None and block.last_offset > until.get(block.source, NOTHING_DECIDED):
                continue
            chains[block.source].append(block)
            _add_block(counts, block, facts, verdicts)
    for block in in_flight:
        for run, deliveries in block.runs.items():
            counts[run][block.source]["in_flight"] += deliveries
    chained = {source: _chains(info, chains[source]) for source, info in infos.items()}
    return {
        "runs": [
            _run_books(run, counts[run], infos, violations, chained)
            for run in sorted(counts)
            if run_id is None or run == run_id
        ]
    }


def _add_block(
    counts: dict[str, dict[Source, Counts]], block: Block, facts: pa.Table, verdicts: pa.Table
) -> None:
    for run, deliveries in block.runs.items():
        counts[run][block.source]["deliveries"] += deliveries
    runs = facts["run"].combine_chunks()
    names = runs.dictionary.to_pylist()
    codes = np.asarray(runs.indices).astype(np.int64) * 256 + verdicts["verdict"].to_numpy()
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        counts[names[code // 256]][block.source][VERDICT_CODES[code % 256]] += int(count)


def _chains(info: SourceInfo, blocks: list[Block]) -> bool:
    """Tell whether a source's decided blocks cover it up to its mark, each following the one before."""
    reached = NOTHING_DECIDED
    for block in sorted(blocks, key=lambda block: block.first_offset):
        if block.after != reached or block.deliveries > block.last_offset - block.first_offset + 1:
            return False
        reached = block.last_offset
    return reached == info.mark.offset


def _run_books(
    run: str,
    counts: dict[Source, Counts],
    infos: dict[Source, SourceInfo],
    violations: Mapping[Source, int],
    chained: dict[Source, bool],
) -> RunBooks:
    total: Counts = Counter()
    partitions: list[PartitionBooks] = []
    for source, found in sorted(counts.items()):
        info = infos[source]
        found.update(re_read=info.re_read, cached=info.cached, order_violations=violations[source])
        total += found
        partitions.append(
            {
                "producer_id": source.producer_id,
                "topic": info.topic,
                "partition": source.partition,
                **_account(found, chained[source]),
            }
        )
    chains = all(partition["balanced"] for partition in partitions)
    return {"run_id": run, **_account(total, chains), "partitions": partitions}


def _account(found: Counts, chained: bool) -> Account:
    return {
        "deliveries": found["deliveries"],
        "admitted": found[Verdict.ADMITTED],
        "duplicates": found[Verdict.DUPLICATE],
        "replayed": found[Verdict.REPLAYED],
        "quarantined": found[Verdict.QUARANTINED],
        "ambiguous": found[Verdict.AMBIGUOUS],
        "in_flight": found["in_flight"],
        "re_read": found["re_read"],
        "cached": found["cached"],
        "order_violations": found["order_violations"],
        "balanced": chained and found["deliveries"] == sum(found[each] for each in Verdict),
    }
