"""The blocks and resolutions that evidence is made from, read from the ledger one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pyarrow as pa

from admitone.evidence.evidence_rows import BlockRows, DeliveryRows, ResolutionRows
from admitone.ledger.columns import unpack
from admitone.ledger.decision_rows import Positions
from admitone.ledger.model import EvidenceFile, Resolution
from admitone.ledger.port import LedgerReader

_SMALL = 5_000
_REMEMBERED = 64


class EvidenceSource:
    """Reads what evidence is made from; never more than one large block at a time."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._resolutions: dict[int, Resolution] = {}
        self._blocks: dict[int, BlockRows] = {}
        self.positions = Positions(ledger)

    def of_file(self, file: EvidenceFile) -> Iterator[DeliveryRows]:
        """Yield what a file was made from, in the order of its rows; what the ledger lost is left out."""
        blocks, resolutions = self._ledger.evidence_of(file.path)
        for rows in chain(self.of_blocks(blocks), self.of_resolutions(resolutions)):
            if file.kind in rows.kinds and rows.count(file.kind, file.run_id):
                yield rows

    def of_blocks(self, block_ids: Sequence[int]) -> Iterator[BlockRows]:
        """Yield blocks as they were first decided."""
        for block_id in block_ids:
            # The files of a group are looked at one after the other, and all are made from the same blocks.
            rows = self._blocks.get(block_id) or self._read(block_id)
            if rows is not None:
                yield rows

    def of_resolutions(self, resolution_ids: Sequence[int]) -> Iterator[ResolutionRows]:
        """Yield what was decided later."""
        if not self._resolutions.keys() >= set(resolution_ids):
            self._resolutions = {each.resolution_id: each for each in self._ledger.resolutions()}
        for number in resolution_ids:
            resolution = self._resolutions.get(number)
            blocks = self._ledger.blocks(ids=[resolution.block_id]) if resolution else []
            if resolution is not None and blocks:
                columns = self._ledger.columns(resolution.block_id)
                yield ResolutionRows(resolution, blocks[0], columns)

    def deliveries(self, block_id: int) -> pa.Table | None:
        """Return what a block's deliveries were, byte for byte, while the journal keeps them."""
        journal = self._ledger.journal(block_id)
        return None if journal is None else unpack(journal)

    def _read(self, block_id: int) -> BlockRows | None:
        blocks = self._ledger.blocks(ids=[block_id])
        if not blocks:
            return None
        rows = BlockRows(blocks[0], self._ledger.columns(block_id))
        if blocks[0].deliveries <= _SMALL:
            if len(self._blocks) >= _REMEMBERED:
                self._blocks.clear()
            self._blocks[block_id] = rows
        return rows
