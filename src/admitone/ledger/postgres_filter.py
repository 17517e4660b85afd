"""Which blocks can hold the decisions that are wanted, as conditions on their rows."""

from __future__ import annotations

from admitone.core.decisions import CODE_OF_REASON, CODE_OF_VERDICT
from admitone.ledger.model import Filter
from admitone.ledger.names import PROBES, number_of_event, number_of_identity
from admitone.ledger.postgres_values import stored_name


def restriction(wanted: Filter) -> tuple[list[str], list[object]]:
    """Return conditions on a block's row, and their values, that hold where something wanted may be."""
    found: list[tuple[str, list[object]]] = []
    if wanted.record is not None:
        found.append(("block_id = %s", [wanted.record[0]]))
    if wanted.after is not None:
        found.append(("block_id >= %s", [wanted.after[0]]))
    if wanted.run_id is not None:
        found.append(("runs ? %s", [stored_name(wanted.run_id)]))
    if wanted.source is not None:
        producer, partition, offset = wanted.source
        if producer is not None:
            found.append(("producer_id = %s", [producer]))
        held = "partition = %s AND first_offset <= %s AND last_offset >= %s"
        found.append((held, [partition, offset, offset]))
    if wanted.since is not None:
        found.append(("decided_at >= %s", [wanted.since]))
    if wanted.until is not None:
        found.append(("decided_at <= %s", [wanted.until]))
    if wanted.verdict is not None:
        found.append(("verdict_bits & %s <> 0", [1 << CODE_OF_VERDICT[wanted.verdict]]))
    if wanted.reason is not None:
        found.append(("reason_bits & %s <> 0", [1 << CODE_OF_REASON[wanted.reason]]))
    if wanted.bus is not None:
        topic, partition, offset = wanted.bus
        found.append(
            (
                "block_id IN (SELECT block_id FROM place WHERE topic = %s AND partition = %s"
                " AND first_offset <= %s AND last_offset >= %s)",
                [topic, partition, offset, offset],
            )
        )
    # Last, because they read from a table beside the block's.
    if wanted.identity is not None:
        found.append((_named(number_of_identity(wanted.identity)), []))
    if wanted.event_id is not None:
        found.append((_named(number_of_event(wanted.event_id)), []))
    return [condition for condition, _ in found], [value for _, values in found for value in values]


def _named(number: int) -> str:
    """Return the condition that a block's filter may hold a name; `names` has the formula.

    The filter is stored out of line and uncompressed, so each probe reads one chunk of it.
    """
    low, high = number & 0xFFFFFFFF, number >> 32
    probes = []
    for step in range(PROBES):
        bit = f"({low + step * high}::bigint & (octet_length(filter) * 8::bigint - 1))"
        byte = f"get_byte(substring(filter FROM ({bit} >> 3)::integer + 1 FOR 1), 0)"
        probes.append(f"(({byte} >> ({bit} & 7)::integer) & 1) = 1")
    return (
        "EXISTS (SELECT 1 FROM names WHERE names.block_id = block.block_id"  # noqa: S608
        f" AND {' AND '.join(probes)})"
    )
