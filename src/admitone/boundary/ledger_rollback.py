"""A ledger never goes back. One that did is noticed by the driver and the workers, which remember how far it was.

A database fails over to a standby that lagged, or a file is put back, under a running pipeline: then marks are lower
than they were, blocks are gone, and their numbers are given again. A worker that went on would leave out what the lost
blocks decided, admit again what they admitted, and name blocks that mean something else now. So before anything is
decided

- the driver compares every source of the ledger with the furthest it saw it, at both ends of each batch,
- a task compares its source with what the driver saw, because it may ask another server,
- a worker process compares it with its own last block, which the ledger must still hold as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from admitone.boundary.ledger_age import OLDER_REMEDY
from admitone.boundary.settled_pairs import SettledPairs
from admitone.core.errors import IntegrityError
from admitone.ledger.model import Block, Source
from admitone.ledger.port import Ledger


class SourcesSeen:
    """The next offset of every source of a ledger, as far as a driver saw it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next: dict[Source, int] = {}
        self.look()

    def look(self) -> dict[Source, int]:
        """Return the next offset of every source that was read; raise when one is behind where it was."""
        found = {info.source: info.next_offset for info in self._ledger.sources()}
        for source, offset in self._next.items():
            refuse_less(source, found.get(source), offset)
        self._next = {source: offset for source, offset in found.items() if offset is not None}
        return dict(self._next)

    def reached(self, ends: Mapping[Source, int]) -> None:
        """Remember that sources are decided up to these offsets, as was noted in the ledger."""
        self._next |= ends


@dataclass(slots=True)
class SourceMemory:
    """What a worker process remembers of a source: its last block, and pairs that are settled."""

    pairs: SettledPairs | None = None
    last_block: Block | None = None

    def compare(self, ledger: Ledger, source: Source, expected: int | None) -> None:
        """Raise when the ledger does not hold what it did; then nothing that was remembered is worth anything."""
        try:
            refuse_less(source, ledger.next_offset(source), expected)
            if self.last_block is not None:
                _refuse_another(self.last_block, ledger)
        except IntegrityError:
            self.pairs = self.last_block = None
            raise


def refuse_less(source: Source, found: int | None, expected: int | None) -> None:
    """Raise when a source is to be read from an earlier offset than before."""
    if expected is not None and (found is None or found < expected):
        raise _went_back(
            f"Source {tuple(source)} was decided up to offset {expected - 1}, the ledger knows it"
            f" {'not at all' if found is None else f'only up to {found - 1}'} now"
        )


def _refuse_another(block: Block, ledger: Ledger) -> None:
    found = ledger.blocks(ids=[block.block_id])
    if [(each.source, each.last_offset, each.epoch) for each in found] != [
        (block.source, block.last_offset, block.epoch)
    ]:
        raise _went_back(
            f"Block {block.block_id} of source {tuple(block.source)} was settled, the ledger holds"
            f" {'another one under this number' if found else 'none under this number'} now"
        )


def _went_back(problem: str) -> IntegrityError:
    return IntegrityError(
        f"{problem}: it went back under a running pipeline, as after a failover to a standby that lagged.",
        OLDER_REMEDY,
    )


_remembered: dict[Source, tuple[str, SourceMemory]] = {}


def memory_of(source: Source, size: int, session: str) -> SourceMemory:
    """Return what this process remembers of a source since a query began, with room for so many pairs."""
    began, memory = _remembered.get(source, ("", None))
    if memory is None or began != session:
        memory = new_memory(size)
        _remembered[source] = session, memory
    return memory


def new_memory(size: int) -> SourceMemory:
    """Return an empty memory."""
    return SourceMemory(SettledPairs(size) if size else None)
