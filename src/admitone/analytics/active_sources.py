"""Which source partitions are active, by the time that the ledger saw pass.

Append times are by the clocks of several brokers, one for each leader of a partition: they cannot tell. A record says
in which block it was admitted and when that block was claimed, by the one clock of the ledger. That clock is cut into
*spans* of a tenth of `idle_after`, and of each span the last block that was claimed in it is kept. A source is idle
when twelve spans ended in blocks behind its own last one: `idle_after`, and at most two tenths more.

    span         10   11   99   12   13       99: the clock jumped ahead, and was set back
    last block    4    9   10   25   31       behind a source whose last block is 9: three spans

A jump, however far, is one span, and never more than that of the time that passed. Spans are ordered by their blocks,
so a clock that goes back only makes a span newer. And it is a pure function of which records were counted, in
whatever order and batches: of two blocks the higher one counts, and what is not among the twelve newest never is again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Final

import numpy as np

from admitone.core.wire import Longs

NO_BLOCK: Final = 0
"""The last block of a source of which only records without a number were counted."""
SPANS_KEPT: Final = 12
_SPANS_IDLE: Final = 10

Spans = Mapping[int, int]
"""The last block that was claimed in each span."""


def spans_in(claimed_at: Longs, blocks: Longs, idle_after: int) -> dict[int, int]:
    """Return the spans in which blocks were claimed; `idle_after` is the same for all that are compared."""
    length = max(1, -(-idle_after // _SPANS_IDLE))
    # Blocks are few, records many.
    blocks, first = np.unique(blocks, return_index=True)
    spans = claimed_at[first] // length
    return newest_spans(zip(spans.tolist(), blocks.tolist(), strict=True))


def newest_spans(spans: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the spans that matter; of one that is there more than once the last block."""
    found: dict[int, int] = {}
    for span, block in spans:
        found[span] = max(block, found.get(span, NO_BLOCK))
    return dict(nlargest(SPANS_KEPT, found.items(), key=lambda entry: entry[1]))


def first_active(last_blocks: Iterable[int]) -> int:
    """Return the block from which on a source is active."""
    newest = nlargest(SPANS_KEPT, last_blocks)
    return newest[-1] if len(newest) == SPANS_KEPT else NO_BLOCK
