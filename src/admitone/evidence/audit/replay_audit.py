"""Is every replay borne out by a delivery that came before it?

A replay was dropped undecoded, because its source had seen that upstream offset or a higher one already. So an earlier
delivery of the same source must say so. Originals are mostly near, so blocks are looked through backwards.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from admitone.core.decisions import CODE_OF_VERDICT, DECIDED_STATES, Verdict
from admitone.core.replay_filter import Upstream, by_upstream
from admitone.core.wire import decode
from admitone.ledger.model import Block, Source
from admitone.ledger.port import LedgerReader
from admitone.ledger.upstream_marks import sees_upstream

_REPLAYED = CODE_OF_VERDICT[Verdict.REPLAYED]
_Highest = dict[Upstream, int]


class ReplayAudit:
    """Follows a run's blocks, oldest first, and counts replays without an original."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._seen: dict[Source, _Highest] = {}
        self.replays = 0
        self.unexplained = 0

    def check(self, block: Block, facts: pa.Table, verdicts: pa.Table, of_run: np.ndarray) -> None:
        """Look at one block; its replays of the run are compared with what came before them."""
        replayed = verdicts["verdict"].to_numpy() == _REPLAYED
        wanted = replayed & of_run
        self.replays += int(np.count_nonzero(wanted))
        if not sees_upstream(facts):
            self.unexplained += int(np.count_nonzero(wanted))
            return
        seen = self._seen.setdefault(block.source, {})
        keyed = 0
        for upstream, rows, offsets in _by_upstream(facts):
            original = np.where(replayed[rows], -1, offsets)
            before = np.concatenate([[-1], np.maximum.accumulate(original)[:-1]])
            asked = wanted[rows]
            keyed += int(np.count_nonzero(asked))
            open_ = offsets[asked & (offsets > before)]
            if len(open_) and open_.max() > seen.get(upstream, -1):
                self._look_back(block, upstream, int(open_.max()))
            self.unexplained += int(np.count_nonzero(open_ > seen.get(upstream, -1)))
            seen[upstream] = max(seen.get(upstream, -1), int(original.max()))
        self.unexplained += int(np.count_nonzero(wanted)) - keyed

    def _look_back(self, block: Block, upstream: Upstream, offset: int) -> None:
        """Look through earlier blocks of the source, also of other runs, for an original at or above an offset."""
        seen = self._seen[block.source]
        earlier = self._ledger.blocks(states=DECIDED_STATES, source=block.source)
        for found in sorted(earlier, key=lambda one: one.first_offset, reverse=True):
            if found.first_offset >= block.first_offset:
                continue
            facts, verdicts, _ = self._ledger.columns(found.block_id)
            for other, highest in _originals(facts, verdicts):
                seen[other] = max(seen.get(other, -1), highest)
            if seen.get(upstream, -1) >= offset:
                return


def _originals(facts: pa.Table, verdicts: pa.Table) -> Iterator[tuple[Upstream, int]]:
    """Yield the highest offset of each upstream among the deliveries that were no replays."""
    if not sees_upstream(facts):
        return
    replayed = verdicts["verdict"].to_numpy() == _REPLAYED
    for upstream, rows, offsets in _by_upstream(facts):
        if not replayed[rows].all():
            yield upstream, int(offsets[~replayed[rows]].max())


def _by_upstream(facts: pa.Table) -> Iterator[tuple[Upstream, np.ndarray, np.ndarray]]:
    """Yield the rows and the offsets of each upstream in a block."""
    keyed, (producers, partitions, offsets) = decode(facts["upstream"])
    rows = np.flatnonzero(keyed)
    for upstream, members in by_upstream(producers, partitions):
        yield upstream, rows[members], offsets[members]
