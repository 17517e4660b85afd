"""Reading back: a ledger that is older than the log catches up with it, before anything new is admitted (DED-7).

A ledger that was restored from an older copy does not know what it admitted since. The log does: every record says
which source position it comes from and who it is. So the deliveries behind the marks are read and claimed once more,
in the same five steps, but for the third: instead of being published, an admission is pinned where it already lies.

    on the log under its own position    settled, pinned where it is
    on the log, published late           settled by a resolution, as it was then
    given up by an operator since        given up again, as the evidence says
    not on the log                       of unknown fate until an operator says more: one may have given it up since
    on the log, and refused now          nothing is put back: other rules, or another log, than it was admitted with

An identity that another source published is that source's: it is read back first. What came through a door has no log
of its own, and is put back from the records themselves; its duplicates and refusals are not known any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container
from dataclasses import astuple, dataclass
from operator import gt
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import TypedDict

from admitone.boundary.log_owner import adopt_log
from admitone.boundary.producers import DOOR, Producer, producers_of
from admitone.boundary.restore.log_contents import (
    Elsewhere,
    Published,
    find_published,
    known_ends,
)
from admitone.boundary.restore.operator_decisions import OperatorDecisions, receipts
from admitone.boundary.restore.restored_partition import (
    ABSENT,
    LATE,
    ON_LOG,
    Cut,
    Restoring,
    Waits,
    give_up_again,
    published_late,
)
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError
from admitone.core.wire import producer_id
from admitone.evidence import open_evidence_store
from admitone.evidence.evidence_store import EvidenceStore
from admitone.infra.crash_points import crash_point
from admitone.ledger.decision_rows import SourcePartition, partition_document
from admitone.ledger.model import (
    ADMISSION_STORE,
    NOTHING_DECIDED,
    STREAM,
    Block,
    KnownEnds,
    Outcome,
    Source,
    SourceInfo,
)
from admitone.ledger.outcomes import ambiguous_admissions
from admitone.settings import Settings
from admitone.transport.port import Topic
from admitone.transport.topic_contract import dedup_source, raw_topic, still_there

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
    evidence = open_evidence_store(settings)
    chosen = [(admission, raw_topic(settings, admission.transport))]
    if dedup.transport.describe([contract.topic for contract in dedup.options.contracts]):
        chosen.append((dedup, dedup_source(settings, dedup.transport)))
    for each, topic in chosen:
        begin(each, topic)
    return [part for each, topic in chosen for part in read_back(each, topic, evidence)]


def begin(boundary: Boundary, topic: Topic) -> KnownEnds:
    """Note from which ends the log is read back; return those that count: an earlier attempt's stand.

    What that attempt changed since, the ends of the blocks it took back among it, cannot be asked again.
    """
    ledger, pipeline = boundary.ledger, boundary.options.pipeline
    boundary.register(topic)
    if pipeline not in ledger.reading_back():
        mine = sources_of(boundary)
        in_flight = [block for block in boundary.in_flight() if block.source in mine]
        ledger.begin_reading_back(pipeline, known_ends(ledger, in_flight), boundary.clock())
        crash_point("restore.begun")
    # Not before it is noted: until it is read back nothing else may begin with this ledger.
    topics = [contract.topic for contract in boundary.options.contracts]
    adopt_log(ledger, boundary.transport, pipeline, topics)
    crash_point("restore.adopted")
    return ledger.reading_back()[pipeline]


def read_back(boundary: Boundary, topic: Topic, evidence: EvidenceStore) -> list[ReadBack]:
    """Put back what the log holds of a pipeline beyond its ledger; nothing else of it may run meanwhile.

    It may end anywhere and be begun again: until the note is gone, everything else is refused.
    """
    return _Pipeline(boundary, begin(boundary, topic), evidence).read_back()


def sources_of(boundary: Boundary) -> dict[Source, SourceInfo]:
    """Return the sources of a pipeline that its ledger knows."""
    pipeline = boundary.options.pipeline
    return {info.source: info for info in boundary.ledger.sources() if info.pipeline == pipeline}


class _Pipeline:
    """The sources of one pipeline, taken over, next to what the log holds of them."""

    def __init__(self, boundary: Boundary, ends: KnownEnds, evidence: EvidenceStore) -> None:
        self._boundary = boundary
        self._ledger = boundary.ledger
        options = boundary.options
        # A query that still runs gets no epoch any more.
        self._ledger.take_generation(options.pipeline)
        infos = sources_of(boundary)
        self._epochs = {
            source: boundary.take_over(source, None, catches_up=True) for source in infos
        }
        for block in boundary.in_flight():
            if block.source in infos:
                # The worker that decided it since may have cut it elsewhere; it is claimed again like the rest.
                outcome = Outcome(BlockState.ABORTED, None, None, boundary.clock())
                self._ledger.conclude(block, self._epochs[block.source][0], outcome)
                crash_point("restore.aborted")
        producers = producers_of(infos.values(), boundary.transport.cluster)
        found = find_published(
            boundary.transport,
            [contract.topic for contract in options.contracts],
            ends,
            producers,
            lambda: receipts(evidence),
        )
        crash_point("restore.found")
        last_blocks = (published.last_block for published in found.values())
        self._ledger.number_blocks_beyond(max(last_blocks, default=0))
        self._operators = OperatorDecisions.read(evidence, self._ledger, found)
        self._register_doors(found, infos, producers)
        infos = sources_of(boundary)
        marks = {source: info.mark.offset for source, info in infos.items()}
        self._late_of_known = _some(
            found,
            lambda source: (
                (found[source].offsets <= marks[source])
                & found[source].rows["late"].is_valid().to_numpy()
            ),
        )
        ahead = _some(found, lambda source: found[source].offsets > marks[source])
        elsewhere = Elsewhere(ahead)
        until = {source: self._until(info, ahead.get(source)) for source, info in infos.items()}
        self._parts = {
            source: Restoring(
                boundary,
                infos[source],
                self._epochs[source],
                ahead.get(source, Published.of([])),
                last,
                elsewhere,
                self._mark_of,
                ends,
                self._operators,
            )
            for source, last in until.items()
            if last > marks[source]
        }

    def read_back(self) -> list[ReadBack]:
        """Read every source back, then settle what is known to have been published late."""
        for source, part in self._parts.items():
            self._advance(source, part.until, ())
        known = {source: self._settle_known(source) for source in self._late_of_known}
        infos = sources_of(self._boundary)
        self._give_up_known(infos)
        self._ledger.end_reading_back(
            self._boundary.options.pipeline, self._operators.closed.keys()
        )
        crash_point("restore.ended")
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
        """Settle blocks of unknown fate that the log says were published late; return how many deliveries.

        An append is all or nothing: what is missing of one that is there, and may not have expired, was refused by the
        broker.
        """
        late, settled, epoch = self._late_of_known[source], 0, self._epochs[source][0]
        for block in self._ledger.blocks(states=[BlockState.AMBIGUOUS], source=source):
            facts, verdicts, _ = self._ledger.columns(block.block_id)
            ordinals = ambiguous_admissions(verdicts, block.refused)
            lines = late.find(facts["offset"].to_numpy()[ordinals])
            there = lines >= 0
            if there.any() and (there.all() or self._nothing_expired(block)):
                if not there.all():
                    block = self._ledger.refuse(block, epoch, ordinals[~there].tolist())  # noqa: PLW2901
                published_late(self._boundary, block, epoch, late, lines[there])
                settled += int(np.count_nonzero(there))
        return settled

    def _nothing_expired(self, block: Block) -> bool:
        """Tell whether the log still holds everything that was appended since a block was claimed."""
        transport = self._boundary.transport
        for place in block.destinations:
            topic = still_there(transport, place.topic, place.topic_id)
            if topic is None or any(map(gt, transport.starts(topic), place.ends)):
                return False
        return True

    def _until(self, info: SourceInfo, published: Published | None) -> int:
        """Return up to where a source was decided: what is on the log, and what evidence says should have been."""
        on_log = published.last if published is not None else NOTHING_DECIDED
        doubtful = self._operators.doubtful.get(info.source, NOTHING_DECIDED)
        transport = self._boundary.transport
        present = still_there(transport, info.topic, info.topic_id)
        if info.door != STREAM or doubtful <= on_log or present is None:
            return on_log
        # What is gone from the source is read by nobody, and so published by nobody.
        is_there = transport.starts(present)[info.source.partition] <= doubtful
        return doubtful if is_there else on_log

    def _give_up_known(self, infos: dict[Source, SourceInfo]) -> None:
        """Give blocks of unknown fate up that an operator gave up after the ledger was copied."""
        for block in self._ledger.blocks(states=[BlockState.AMBIGUOUS]):
            if block.source in infos:
                facts, verdicts, _ = self._ledger.columns(block.block_id)
                identities = facts["identity"].take(pa.array(ambiguous_admissions(verdicts)))
                given_up = self._operators.by_identity(identities.to_pylist())
                if given_up and given_up[0] is not None and None not in given_up:
                    give_up_again(self._boundary, block, self._epochs[block.source][0], given_up[0])

    def _mark_of(self, source: Source) -> int:
        part = self._parts.get(source)
        return part.mark.offset if part else self._ledger.mark(source).offset

    def _register_doors(
        self,
        found: dict[Source, Published],
        infos: dict[Source, SourceInfo],
        producers: dict[int, Producer],
    ) -> None:
        """Make doors, and slots of them, known that were first used after the ledger was copied."""
        for source in (found.keys() | self._slots(found, infos)) - infos.keys():
            pipeline, door, topic, topic_id = astuple(producers[source.producer_id])
            store = self._boundary.options.store
            self._ledger.register_source(source, pipeline, topic, topic_id, door, store)
            crash_point("restore.registered")
            self._epochs[source] = self._boundary.take_over(source, None, catches_up=True)

    def _slots(self, *known: Container[Source]) -> set[Source]:
        """Return the slots of the door that somebody had; one that published nothing has an epoch on the log.

        Slots are taken from the first on, so none comes after the first that nobody ever had.
        """
        boundary = self._boundary
        if boundary.options.store != ADMISSION_STORE:
            return set()
        door = producer_id(boundary.options.pipeline, DOOR, boundary.transport.cluster, DOOR)
        return set(
            itertools.takewhile(
                lambda slot: (
                    any(slot in sources for sources in known)
                    or boundary.transport.last_epoch(boundary.producer_name(slot)) > 0
                ),
                (Source(door, number) for number in itertools.count()),
            )
        )


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
