"""A partition of a source topic: what is special about deliveries that lie on a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from admitone.boundary.circuit_breaker import too_much_quarantined
from admitone.boundary.ledger_rollback import SourceMemory
from admitone.boundary.partition import Admitted, OwnedPartition
from admitone.boundary.read import ReadBlock
from admitone.core.errors import Fenced, IntegrityError, MarkMoved
from admitone.ledger.model import NOTHING_DECIDED, Claimed, KnownRepeats, Outcome, Source
from admitone.transport.port import Topic
from admitone.transport.topic_contract import same_incarnation

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary


class TopicPartition(OwnedPartition):
    """A partition of this incarnation of a topic.

    Replays among its deliveries are filtered, repeats may be known without asking the ledger, and a flood of bad ones
    stops it, because all of them can be read again.
    """

    def __init__(
        self,
        boundary: Boundary,
        source: Source,
        generation: int,
        epochs: tuple[int, int],
        topic: Topic,
        memory: SourceMemory,
        database: str | None,
    ) -> None:
        super().__init__(boundary, source, generation, epochs, boundary.options.replays, database)
        self._topic = topic
        self._memory = memory
        self._horizon = None if memory.pairs is None else self._ask_horizon()
        self._asked: KnownRepeats | None = None
        self._answered = 0

    def admit(self, records: pa.Table) -> Iterator[Admitted]:
        """Decide every delivery above the mark, and count those that were known."""
        try:
            yield from super().admit(records)
        except (Fenced, MarkMoved):
            # A mark that was overtaken is ahead of ours; only a ledger that went back has one behind it.
            decided = self.mark.offset > NOTHING_DECIDED
            expected = self.mark.offset + 1 if decided else None
            self._memory.compare(self._ledger, self.source, expected)
            raise
        if self._answered:
            self._ledger.count_cached(self.source, self._answered)
            self._answered = 0

    def _known(self, facts: pa.Table) -> KnownRepeats | None:
        self._asked = None
        if self._memory.pairs is not None and self._horizon is not None:
            self._asked = self._memory.pairs.look(facts, self._rules.retention_ms, self._horizon)
        return self._asked

    def _known_is_stale(self) -> None:
        self._horizon = self._ask_horizon()

    def _ask_horizon(self) -> int | None:
        """Return since when nobody can have taken an identity's row over; none where nothing is kept yet."""
        return self._ledger.horizon(self.source, self._options.rules.retention_ms)

    def _check_circuit(self, claimed: Claimed) -> None:
        options = self._options
        refusal = too_much_quarantined(
            claimed,
            lambda deliveries: self._ledger.recent(self.source, deliveries),
            self._topic.name,
            options.quarantine_limit,
            options.quarantine_window,
        )
        if refusal is not None:
            self._give_back(claimed.block)
            raise refusal

    def _check_source(self) -> None:
        found = self._transport.topic(self._topic.name)
        if not same_incarnation(found, self._topic.topic_id):
            raise IntegrityError(
                f"Topic {self._topic.name!r} was recreated while it was read.",
                "run again: the new topic is read from its beginning",
            )

    def _settled(self, block: ReadBlock, claimed: Claimed, outcome: Outcome) -> Admitted:
        self._memory.last_block = claimed.block
        if self._memory.pairs is not None:
            self._answered += len(self._asked.ordinals) if self._asked else 0
            self._memory.pairs.add(block.facts, claimed, outcome.refused)
            if self._horizon is None:
                self._horizon = self._ask_horizon()
        return super()._settled(block, claimed, outcome)
