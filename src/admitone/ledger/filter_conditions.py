"""What a filter means for the rows of blocks: where something wanted may be."""

from __future__ import annotations

from collections.abc import Iterator

from admitone.core.decisions import CODE_OF_REASON, CODE_OF_VERDICT
from admitone.ledger.model import Filter
from admitone.ledger.name_filter import number_of_event, number_of_identity
from admitone.ledger.store import Condition, Rows


def conditions_of(rows: Rows, wanted: Filter) -> Iterator[Condition]:
    """Yield conditions on a block's row that hold where something wanted may be."""
    if wanted.record is not None:
        yield "block_id = %s", [wanted.record[0]]
    if wanted.after is not None:
        yield "block_id >= %s", [wanted.after[0]]
    if wanted.run_id is not None:
        yield rows.holds_run(wanted.run_id)
    if wanted.source is not None:
        producer, partition, offset = wanted.source
        if producer is not None:
            yield "producer_id = %s", [producer]
        held = "partition = %s AND first_offset <= %s AND last_offset >= %s"
        yield held, [partition, offset, offset]
    if wanted.since is not None:
        yield "decided_at >= %s", [wanted.since]
    if wanted.until is not None:
        yield "decided_at <= %s", [wanted.until]
    if wanted.verdict is not None:
        yield "verdict_bits & %s <> 0", [1 << CODE_OF_VERDICT[wanted.verdict]]
    if wanted.reason is not None:
        yield "reason_bits & %s <> 0", [1 << CODE_OF_REASON[wanted.reason]]
    if wanted.bus is not None:
        topic, partition, offset = wanted.bus
        yield (
            "block_id IN (SELECT block_id FROM place WHERE topic = %s AND partition = %s"
            " AND first_offset <= %s AND last_offset >= %s)",
            [topic, partition, offset, offset],
        )
    # Last, because they read from a table beside the block's.
    if wanted.identity is not None:
        yield rows.may_hold_name(number_of_identity(wanted.identity))
    if wanted.event_id is not None:
        yield rows.may_hold_name(number_of_event(wanted.event_id))
