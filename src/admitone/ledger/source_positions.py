"""From (block, ordinal), as the columns refer to a delivery, to its position at the source."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from admitone.core.wire import StreamMetadata
from admitone.ledger.model import Source
from admitone.ledger.port import LedgerReader


class Positions:
    """Looks source positions up, remembering the blocks it read."""

    def __init__(self, ledger: LedgerReader) -> None:
        self._ledger = ledger
        self._block = lru_cache(maxsize=256)(self._read)

    def of(self, block_id: int, ordinal: int) -> StreamMetadata:
        """Return where the delivery was read."""
        source, offsets = self._block(block_id)
        return StreamMetadata(*source, int(offsets[ordinal]))

    def _read(self, block_id: int) -> tuple[Source, np.ndarray]:
        (block,) = self._ledger.blocks(ids=[block_id])
        facts, _, _ = self._ledger.columns(block_id)
        return block.source, facts["offset"].to_numpy()
