"""The books: deliveries = sum of decisions, per run and source partition, at any moment.

The two sides are counted independently. Deliveries are what each block said at its claim it would decide, and
the blocks of a source must chain up to its mark without a gap or an overlap; decisions are counted
one by one from the verdict columns. Re-reads, duplicates that a cache knew, and order violations are a source's,
whatever the run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from admitone.core.decisions import VERDICT_CODES, BlockState, Verdict
from admitone.ledger.model import NOTHING_DECIDED, Block, Source, SourceInfo
from admitone.ledger.port import LedgerReader

_NAMES = {
    Verdict.ADMITTED: "admitted",
    Verdict.DUPLICATE: "duplicates",
    Verdict.REPLAYED: "replayed",
    Verdict.QUARANTINED: "quarantined",
    Verdict.AMBIGUOUS: "ambiguous",
}


@dataclass(slots=True)
class Account:
    """What came in and what was decided, for one run and source partition."""

    deliveries: int = 0
    in_flight: int = 0
    decisions: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))

    @property
    def balanced(self) -> bool:
        """Tell whether every delivery has its decision."""
        return self.deliveries == sum(self.decisions.values())

    def document(
        self, re_read: int, cached: int, order_violations: int, chained: bool
    ) -> dict[str, Any]:
        """Return the account as the interface spells it."""
        return {
            "deliveries": self.deliveries,
            **{_NAMES[verdict]: count for verdict, count in self.decisions.items()},
            "in_flight": self.in_flight,
            "re_read": re_read,
            "cached": cached,
            "order_violations": order_violations,
            "balanced": self.balanced and chained,
        }


def books(
    ledger: LedgerReader, run_id: str | None = None, until: Mapping[Source, int] | None = None
) -> dict[str, Any]:
    """Return the books of every run, or of one; as they were at earlier marks where these are given."""
    accounts: dict[str, dict[Source, Account]] = defaultdict(lambda: defaultdict(Account))
    chains: dict[Source, list[Block]] = defaultdict(list)
    with ledger.snapshot():
        infos = {info.source: info for info in ledger.sources()}
        violations: Counter[Source] = Counter()
        for seen in ledger.upstreams():
            violations[seen.source] += seen.order_violations
        in_flight = ledger.blocks(states=[BlockState.IN_FLIGHT]) if until is None else []
        if until is not None:
            infos = {source: _at(infos[source], mark) for source, mark in until.items()}
        for block, facts, verdicts, _ in ledger.decided():
            if until is not None and block.last_offset > until.get(block.source, NOTHING_DECIDED):
                continue
            chains[block.source].append(block)
            _add_block(accounts, block, facts, verdicts)
    for block in in_flight:
        for run, deliveries in block.runs.items():
            accounts[run][block.source].in_flight += deliveries
    chained = {source: _chains(info, chains[source]) for source, info in infos.items()}
    return {
        "runs": [
            _run_document(run, accounts[run], infos, violations, chained)
            for run in sorted(accounts)
            if run_id is None or run == run_id
        ]
    }


def _at(info: SourceInfo, offset: int) -> SourceInfo:
    return replace(info, mark=replace(info.mark, offset=offset))


def _add_block(
    accounts: dict[str, dict[Source, Account]], block: Block, facts: pa.Table, verdicts: pa.Table
) -> None:
    for run, deliveries in block.runs.items():
        accounts[run][block.source].deliveries += deliveries
    runs = facts["run"].combine_chunks()
    names = runs.dictionary.to_pylist()
    codes = np.asarray(runs.indices).astype(np.int64) * 256 + verdicts["verdict"].to_numpy()
    for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
        account = accounts[names[code // 256]][block.source]
        account.decisions[VERDICT_CODES[code % 256]] += int(count)


def _chains(info: SourceInfo, blocks: list[Block]) -> bool:
    """Tell whether a source's decided blocks cover it up to its mark, each following the one before."""
    reached = NOTHING_DECIDED
    for block in sorted(blocks, key=lambda block: block.first_offset):
        if block.after != reached or block.deliveries > block.last_offset - block.first_offset + 1:
            return False
        reached = block.last_offset
    return reached == info.mark.offset


def _run_document(
    run: str,
    accounts: dict[Source, Account],
    infos: dict[Source, SourceInfo],
    violations: Mapping[Source, int],
    chained: dict[Source, bool],
) -> dict[str, Any]:
    total = Account()
    partitions = []
    for source in sorted(accounts):
        account, info = accounts[source], infos[source]
        total.deliveries += account.deliveries
        total.in_flight += account.in_flight
        for verdict, count in account.decisions.items():
            total.decisions[verdict] += count
        partitions.append(
            {
                "producer_id": source.producer_id,
                "topic": info.topic,
                "partition": source.partition,
                **account.document(info.re_read, info.cached, violations[source], chained[source]),
            }
        )
    return {
        "run_id": run,
        **total.document(
            sum(partition["re_read"] for partition in partitions),
            sum(partition["cached"] for partition in partitions),
            sum(partition["order_violations"] for partition in partitions),
            all(partition["balanced"] for partition in partitions),
        ),
        "partitions": partitions,
    }
