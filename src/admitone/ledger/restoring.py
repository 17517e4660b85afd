"""A ledger that was restored from an older copy: the note that it is being read back, and what holds afterwards."""

from __future__ import annotations

from collections.abc import Collection

from admitone.core.decisions import BlockState
from admitone.ledger.model import KnownEnds
from admitone.ledger.store import Document, Rows


def begin(rows: Rows, pipeline: str, ends: KnownEnds, at: int) -> None:
    """Note from which ends the log is read back for a pipeline; the ends of a note that is there stand."""
    noted = Document([(*topic, list(offsets)) for topic, offsets in ends.items()])
    rows.change(
        "INSERT INTO reading_back VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", pipeline, noted, at
    )


def number_blocks_beyond(rows: Rows, block_id: int) -> None:
    """Give new blocks numbers beyond this one."""
    if block_id:
        rows.number_blocks_beyond(block_id)


def end(rows: Rows, pipeline: str, closed_runs: Collection[str]) -> None:
    """Remove the note of a pipeline that was read back; what operators may have decided since awaits them."""
    rows.join_runs(closed_runs)
    rows.change_each(
        f"UPDATE run SET was_closed = 1 WHERE {rows.run_key} = %s AND state = 'OPEN'",  # noqa: S608
        [(rows.key_of_run(run),) for run in sorted(closed_runs)],
    )
    rows.change(
        "UPDATE block SET awaits_operator = 1 WHERE state = %s AND (producer_id, partition) IN"
        " (SELECT producer_id, partition FROM source WHERE pipeline = %s)",
        str(BlockState.AMBIGUOUS), pipeline,
    )  # fmt: skip
    rows.change("DELETE FROM reading_back WHERE pipeline = %s", pipeline)
