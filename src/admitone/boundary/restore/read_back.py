"""Reading back: a ledger that is older than the log catches up with it, before anything new is admitted (DED-7).

A ledger that was restored from an older copy does not know what it admitted since. The log does: every record says
which source position it comes from and who it is. So the deliveries behind the marks are read and claimed once more,
in the same five steps, but for the third: instead of being published, an admission is pinned where it already lies.

    on the log under its own position    settled, pinned where it is
    on the log, published late           settled by a resolution, as it was then
    not on the log                       of unknown fate, as after any publish without an answer: `reconcile` sees to it
    on the log, and refused now          nothing is put back: other rules, or another log, than it was admitted with

An identity that another source published is that source's: it is read back first. What came through a door has no log
of its own, and is put back from the records themselves; its duplicates and refusals are not known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import TypedDict

from admitone.boundary.doors import DOOR, SYNCHRONOUS_DOOR
from admitone.boundary.reconciliation import LATE as LATE_STREAM
from admitone.boundary.release import RELEASE_DOOR, release_source
from admitone.boundary.restore.log_contents import (
    Elsewhere,
    Producers,
    Published,
    find_published,
    known_ends,
)
from admitone.boundary.restore.restored_partition import (
    ABSENT,
    LATE,
    ON_LOG,
    Cut,
    Restoring,
    Waits,
    published_late,
)
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError
from admitone.core.wire import producer_id
from admitone.evidence import open_store
from admitone.evidence.evidence_file import from_parquet
from admitone.evidence.evidence_rows import RECEIPTS
from admitone.evidence.evidence_store import EvidenceStore
from admitone.ledger.decision_rows import SourcePartition, partition_document
from admitone.ledger.model import Outcome, Source, SourceInfo
from admitone.ledger.outcomes import ambiguous_admissions
from admitone.settings import Settings
from admitone.transport.port import Topic
from admitone.transport.topic_contract import dedup_source, raw_topic

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary


class ReadBackDocument(TypedDict):
    """What was put back of one source."""

    source: SourcePartition
    topic: str
    admitted: int
    published_late: int
    unknown: int


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What was put back of one source."""

    source: Source
    topic: str
    admitted: int
    published_late: int
    unknown: int
    """Deliveries that would be admitted and are not on the log."""

    def document(self) -> ReadBackDocument:
        """Return it as the interface spells it."""
        return {
            "source": partition_document(self.source),
            "topic": self.topic,
            "admitted": self.admitted,
            "published_late": self.published_late,
            "unknown": self.unknown,
        }


def read_all_back(settings: Settings, boundaries: tuple[Boundary, Boundary]) -> list[ReadBack]:
    """Put back what the log holds of the boundary and of the dedup pipeline, where that ever wrote anything."""
    admission, dedup = boundaries
    evidence = open_store(settings)
    found = read_back(admission, raw_topic(settings, admission.transport), evidence)
    if dedup.transport.describe([contract.topic for contract in dedup.options.contracts]):
        found += read_back(dedup, dedup_source(settings, dedup.transport), evidence)
    return found


def read_back(boundary: Boundary, topic: Topic, evidence: EvidenceStore) -> list[ReadBack]:
    """Put back what the log holds of a pipeline beyond its ledger; nothing else of it may run meanwhile."""
    return _Pipeline(boundary, topic, evidence).read_back()


class _Pipeline:
    """The sources of one pipeline, taken over, next to what the log holds of them."""

    def __init__(self, boundary: Boundary, topic: Topic, evidence: EvidenceStore) -> None:
        self._boundary = boundary
        self._ledger = boundary.ledger
        options = boundary.options
        boundary.register(topic)
        infos = self._infos()
        in_flight = [block for block in boundary.in_flight() if block.source in infos]
        self._epochs = {source: self._take_over(source) for source in infos}
        for block in in_flight:
            # Whoever decided it since may have cut it elsewhere; it is claimed again like the rest.
            outcome = Outcome(BlockState.ABORTED, None, None, boundary.clock())
            self._ledger.conclude(block, self._epochs[block.source][0], outcome)
        ends = known_ends(self._ledger, in_flight)
        found = find_published(
            boundary.transport,
            [contract.topic for contract in options.contracts],
            ends,
            self._producers(infos),
            self._ledger.late_numbers(),
            {source: info.mark.offset for source, info in infos.items()},
            lambda: _receipts(evidence),
        )
        self._register_doors(found, infos)
        infos = self._infos()
        marks = {source: info.mark.offset for source, info in infos.items()}
        self._late_of_known = _some(found, lambda source: found[source].offsets <= marks[source])
        ahead = _some(found, lambda source: found[source].offsets > marks[source])
        elsewhere = Elsewhere(ahead)
        self._parts = {
            source: Restoring(
                boundary,
                infos[source],
                self._epochs[source],
                published,
                elsewhere,
                self._mark_of,
                ends,
            )
            for source, published in ahead.items()
        }

    def read_back(self) -> list[ReadBack]:
        """Read every source back, then settle what is known to have been published late."""
        for source, part in self._parts.items():
            self._advance(source, part.published.last, ())
        known = {source: self._settle_known(source) for source in self._late_of_known}
        infos = self._infos()
        return [
            ReadBack(
                source,
                infos[source].topic,
                part.counts[ON_LOG] if part else 0,
                (part.counts[LATE] if part else 0) + known.get(source, 0),
                part.counts[ABSENT] if part else 0,
            )
            for source in sorted(self._parts.keys() | known.keys())
            for part in [self._parts.get(source)]
        ]

    def _advance(self, source: Source, until: int, waiting: tuple[Source, ...]) -> None:
        """Read a source back up to an offset, and before that whatever its deliveries refer to."""
        part, limit = self._parts[source], until
        if source in waiting:
            raise IntegrityError(
                f"What was admitted from {part.name} and from others refers to each other in a circle.",
                "keep the log and the ledger as they are and compare them",
            )
        while part.mark.offset < until:
            try:
                for _ in part.admit(part.deliveries(limit)):
                    pass
                limit = until
            except Cut as cut:
                limit = cut.offset - 1
            except Waits as first:
                self._advance(first.source, first.offset, (*waiting, source))

    def _settle_known(self, source: Source) -> int:
        """Settle blocks of unknown fate that the log says were published late; return how many deliveries."""
        late, settled = self._late_of_known[source], 0
        for block in self._ledger.blocks(states=[BlockState.AMBIGUOUS], source=source):
            facts, verdicts, _ = self._ledger.columns(block.block_id)
            ordinals = ambiguous_admissions(verdicts)
            lines = late.find(facts["offset"].to_numpy()[ordinals])
            if (lines >= 0).all():
                published_late(self._boundary, block, self._epochs[source][0], late, lines)
                settled += len(lines)
        return settled

    def _mark_of(self, source: Source) -> int:
        part = self._parts.get(source)
        return part.mark.offset if part else self._ledger.mark(source).offset

    def _infos(self) -> dict[Source, SourceInfo]:
        pipeline = self._boundary.options.pipeline
        return {info.source: info for info in self._ledger.sources() if info.pipeline == pipeline}

    def _take_over(self, source: Source) -> tuple[int, int]:
        """Take a source's epoch and fence its producer; the ledger's epoch catches up with the log's."""
        epoch = self._ledger.take_epoch(source, None)
        producer_epoch = self._boundary.transport.init_producer(
            self._boundary.producer_name(source)
        )
        if producer_epoch > epoch:
            epoch = self._ledger.take_epoch(source, None, producer_epoch)
        self._ledger.check_epoch(source, epoch)
        return epoch, producer_epoch

    def _producers(self, infos: dict[Source, SourceInfo]) -> Producers:
        pipeline, cluster = self._boundary.options.pipeline, self._boundary.transport.cluster
        streams = [info for info in infos.values() if info.door == "stream"]
        doors = {producer_id(pipeline, DOOR, cluster, DOOR)}
        doors |= {release_source(info, cluster).producer_id for info in streams}
        topic_ids = {DOOR} | {info.topic_id for info in infos.values()}
        topic_ids |= {f"{RELEASE_DOOR}:{info.topic_id}" for info in streams}
        return Producers(
            frozenset(info.source.producer_id for info in streams),
            frozenset(doors),
            frozenset(
                producer_id(pipeline, LATE_STREAM, cluster, topic_id) for topic_id in topic_ids
            ),
        )

    def _register_doors(
        self, found: dict[Source, Published], infos: dict[Source, SourceInfo]
    ) -> None:
        """Make doors known that were first used after the ledger was copied."""
        pipeline, store = self._boundary.options.pipeline, self._boundary.options.store
        cluster = self._boundary.transport.cluster
        released = {
            release_source(info, cluster): info for info in infos.values() if info.door == "stream"
        }
        for source in found.keys() - infos.keys():
            if source in released:
                of = released[source]
                name, topic_id = f"{RELEASE_DOOR}:{of.topic}", f"{RELEASE_DOOR}:{of.topic_id}"
                self._ledger.register_source(source, pipeline, name, topic_id, RELEASE_DOOR, store)
            else:
                self._ledger.register_source(source, pipeline, DOOR, DOOR, SYNCHRONOUS_DOOR, store)
            self._epochs[source] = self._take_over(source)


def _receipts(evidence: EvidenceStore) -> Iterator[pa.Table]:
    """Yield every file of receipts, also those that the ledger does not know of."""
    for path in evidence.list("runs"):
        if f"/{RECEIPTS}/" in path:
            yield from_parquet(evidence.read(path), RECEIPTS)


def _some(
    found: dict[Source, Published], chosen: Callable[[Source], np.ndarray]
) -> dict[Source, Published]:
    """Return the chosen rows of each source that has any."""
    parts = {}
    for source, published in found.items():
        rows = chosen(source)
        if rows.any():
            parts[source] = Published(
                published.rows.filter(pa.array(rows)), published.offsets[rows]
            )
    return parts
