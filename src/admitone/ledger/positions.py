"""From (block, ordinal), as the columns refer to a delivery, to its position at the source."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from admitone.core.replay import StreamMetadata
from admitone.ledger.port import LedgerReader, Source


class Positions:
    """Looks source positions up, remembering the blocks it read."""

    def __init__(self, ledger: LedgerReader, sources: dict[int, Source] | None = None) -> None:
        self._ledger = ledger
        self._sources = sources or {block.block_id: block.source for block in ledger.blocks()}
        self._offsets = lru_cache(maxsize=256)(self._read_offsets)

    def of(self, block_id: int, ordinal: int) -> StreamMetadata:
        """Return where the delivery was read."""
        return StreamMetadata(*self._sources[block_id], int(self._offsets(block_id)[ordinal]))

    def _read_offsets(self, block_id: int) -> np.ndarray:
        facts, _, _ = self._ledger.columns(block_id)
        offsets: np.ndarray = facts["offset"].to_numpy()
        return offsets
