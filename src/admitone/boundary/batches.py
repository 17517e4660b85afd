"""The batches of a query, as its driver begins them: under one generation, on a ledger that stays in one database.

A task can compare with the ledger only what it remembers itself. After a failover to a standby that lagged, or with a
copy in the ledger's place, blocks of other tasks may be missing of which it knows nothing. So a driver notes which
database holds the ledger before it compares that with the log, and a task claims nothing in another one. The driver
then begins again: a new generation, which starts with the end of the log, decides the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from admitone.boundary.admission import Boundary
from admitone.boundary.ledger_rollback import SourcesSeen
from admitone.core.errors import Fenced, MarkMoved
from admitone.ledger.model import Source
from admitone.transport.port import Topic


class Begun(NamedTuple):
    """What tasks of a batch are told: what holds as long as they may claim anything."""

    generation: int
    database: str
    begins: Mapping[int, int]
    """The offset up to which the driver saw each partition decided, where it was read before."""


class Batches:
    """The batches of a query that began with a generation, after it was noted which database holds the ledger."""

    def __init__(self, boundary: Boundary, topic: Topic, generation: int, database: str) -> None:
        self._boundary = boundary
        self._topic = topic
        self._generation, self._database = generation, database
        self._sources = SourcesSeen(boundary.ledger)

    def decide(
        self, tasks: Callable[[Begun], object], ends: Callable[[], Mapping[int, int]]
    ) -> None:
        """Let tasks decide a batch that ends there, once more where the ledger moved meanwhile; note how far it is."""
        boundary, ledger = self._boundary, self._boundary.ledger
        while True:
            database, seen = ledger.database(), self._sources.look()
            if database == self._database:
                boundary.recover(self._generation)
            else:
                self._generation, self._database = boundary.start(self._topic), database
            sources = {n: boundary.source(self._topic, n) for n in range(self._topic.partitions)}
            begins = {number: seen[source] for number, source in sources.items() if source in seen}
            try:
                tasks(Begun(self._generation, database, begins))
                noted = note_read(boundary, self._topic, ends(), database)
            except (Fenced, MarkMoved):
                if ledger.database() == database:
                    raise
                continue
            self._sources.reached(noted)
            self._sources.look()
            return


def note_read(
    boundary: Boundary, topic: Topic, ends: Mapping[int, int], database: str | None = None
) -> dict[Source, int]:
    """Note how far partitions are read: their last offsets may hold no record, and are gone one day."""
    noted = {boundary.source(topic, number): end for number, end in ends.items()}
    boundary.ledger.read_up_to(noted, database)
    return noted
