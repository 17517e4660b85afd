"""Which sources are active, by the time that the ledger itself saw pass.

No moment is compared with another one: a clock may have jumped between them, the database's own as well. What is added
up are the steps from each claim to the next one, in the order in which blocks were claimed, by the one clock of the
database. A step counts for a tenth of the idle time at most, so that a source is idle only when others were at work in
ten steps or more since it last took an event: one jump of the clock is one step. A clock that goes back is no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from admitone.ledger.model import Source
from admitone.ledger.store import Rows

_FEWEST_STEPS = 10


class SourceActivity(NamedTuple):
    """How far a source is, and when its last block that took an event was claimed."""

    source: Source
    stream_time: int
    active_at: int


def activity_of_sources(rows: Rows, store: str) -> list[SourceActivity]:
    """Return the sources of a store that ever took an event, the slowest first.

    What is released is judged by the stream time of the source it first came from.
    """
    found = rows.all(
        "SELECT producer_id, partition, stream_time, active_at FROM source WHERE store = %s"
        " AND door <> 'release' AND stream_time IS NOT NULL AND active_at IS NOT NULL"
        " ORDER BY stream_time",
        store,
    )
    return [
        SourceActivity(Source(producer_id, partition), stream_time, active_at)
        for producer_id, partition, stream_time, active_at in found
    ]


def slowest_active(
    rows: Rows, sources: Sequence[SourceActivity], idle_after_ms: int
) -> SourceActivity:
    """Return the slowest source, given from the slowest to the fastest, that is active.

    One is idle when more than `idle_after_ms` passed from the last block of it that took an event to the last one of
    any of them.
    """
    last_blocks = [_last_block(rows, source) for source in sources]
    newest = max(last_blocks)
    return next(
        source
        for source, block in zip(sources, last_blocks, strict=True)
        if not _has_passed(rows, idle_after_ms, block, newest)
    )


def _last_block(rows: Rows, activity: SourceActivity) -> int:
    """Return the last block of a source that took an event, or a later one of it: that is never less active."""
    row = rows.first(
        "SELECT block_id FROM block WHERE producer_id = %s AND partition = %s AND claimed_at <= %s"
        " ORDER BY first_offset DESC, block_id DESC LIMIT 1",
        *activity.source, activity.active_at,
    )  # fmt: skip
    return row[0] if row else 0


def _has_passed(rows: Rows, duration_ms: int, first: int, last: int) -> bool:
    """Tell whether more time than this was seen to pass between two blocks."""
    longest_step, passed = -(-duration_ms // _FEWEST_STEPS), 0
    previous: int | None = None
    for (claimed_at,) in rows.stream(
        "SELECT claimed_at FROM block WHERE block_id BETWEEN %s AND %s ORDER BY block_id",
        first, last,
    ):  # fmt: skip
        step = 0 if previous is None else claimed_at - previous
        # Numbers and moments of claims made at once may differ in their order: that is no clock that went back.
        if previous is None or step > 0 or step < -longest_step:
            previous = claimed_at
            passed += min(max(step, 0), longest_step)
        if passed > duration_ms:
            return True
    return False
