"""The original bytes of a delivery, from the journal while it is kept, then from the evidence files."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from admitone.evidence.rows import ARCHIVE, QUARANTINE
from admitone.ledger.columns import unpack
from admitone.ledger.port import LedgerReader

_BLOCK_COLUMN = {
    QUARANTINE: ("block", "ordinal"),
    ARCHIVE: ("source_producer", "source_partition", "source_offset"),
}


def original(ledger: LedgerReader, folder: Path, block_id: int, ordinal: int) -> bytes | None:
    """Return what was delivered, byte for byte; None when no store has it any more."""
    journal = ledger.journal(block_id)
    if journal is not None:
        value: bytes | None = unpack(journal)["value"][ordinal].as_py()
        return value
    facts, _, _ = ledger.columns(block_id)
    run = facts["run"][ordinal].as_py()
    (block,) = [block for block in ledger.blocks() if block.block_id == block_id]
    position = (*block.source, facts["offset"][ordinal].as_py())
    wanted = {QUARANTINE: (block_id, ordinal), ARCHIVE: position}
    for file in ledger.evidence_files(run):
        if file.kind not in wanted:
            continue
        names = _BLOCK_COLUMN[file.kind]
        filters = [(name, "=", value) for name, value in zip(names, wanted[file.kind], strict=True)]
        rows = pq.read_table(folder / file.path, columns=["value"], filters=filters)
        if rows.num_rows:
            found: bytes = rows["value"][0].as_py()
            return found
    return None
