"""The log must not know more than the ledger.

A ledger that was lost, or restored from an older copy, does not know what it admitted since and would publish it again.
What a source published last is at the end of the log, so that is where one looks before anything is admitted. An open
transaction hides what was committed behind it; there one looks as well, and waits only where something is that the
ledger does not know: whether it was committed or aborted can be told once that transaction has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from admitone.boundary.log_owner import refuse_another_ledger
from admitone.boundary.producers import LATE, Producer, producers_of
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError, Unreadable
from admitone.core.replay_filter import by_upstream
from admitone.core.wire import decode, positions_of
from admitone.ledger.model import NOTHING_DECIDED, Source
from admitone.ledger.port import LedgerReader
from admitone.settings import Settings
from admitone.transport.port import Topic, Transport
from admitone.transport.topic_contract import dedup_contracts, destination_contracts

_RECORDS_AT_THE_END: Final = 1_000
OLDER_REMEDY: Final = (
    "stop every pipeline on it and run admitone reconcile --restored, which reads back what the log holds; or restore"
    " the newest ledger. Admitting with this one would publish events again"
)


class _Stretch(NamedTuple):
    """Offsets of one partition."""

    topic: Topic
    partition: int
    begin: int
    end: int


class _Unknown(NamedTuple):
    """What a source published beyond what the ledger knows."""

    name: str
    offset: int
    known: int


def refuse_older_ledger(
    ledger: LedgerReader, transport: Transport, topics: Sequence[str], reads: Mapping[str, str]
) -> None:
    """Raise when these topics hold more of a source than the ledger knows of, or while it is being read back.

    `reads` names the topic of each pipeline: a ledger may be so old that it does not know even that. The log is read
    before the ledger: what is on it was claimed before, so a ledger that is not older knows of it by then.
    """
    for pipeline in ledger.reading_back():
        raise IntegrityError(
            f"The ledger was restored from an older copy, and what the log holds of pipeline {pipeline!r} is not"
            " read back to its end.",
            OLDER_REMEDY,
        )
    seen = {
        stretch: _published(transport, stretch, committed=False)
        for stretch in _last_records(transport, topics)
    }
    streams = {
        pipeline: state.topic
        for pipeline, name in reads.items()
        for state in transport.describe([name]).values()
    }
    producers = producers_of(ledger.sources(), transport.cluster, streams)
    reached = _reached(ledger)

    def unknown(published: Mapping[Source, int]) -> list[_Unknown]:
        return [
            _Unknown(_name(producers[source.producer_id], source), offset, known)
            for source, offset in published.items()
            for known in [reached.get(source, NOTHING_DECIDED)]
            if source.producer_id in producers and offset > known
        ]

    for stretch, published in seen.items():
        doubtful = unknown(published)
        for each in unknown(_committed(transport, stretch, doubtful[0])) if doubtful else ():
            raise IntegrityError(
                f"The log holds what was admitted from {each.name} up to offset {each.offset}, the ledger knows it only"
                f" up to {each.known}: the ledger is older than the log.",
                OLDER_REMEDY,
            )


def must_know_its_log(ledger: LedgerReader, transport: Transport, settings: Settings) -> None:
    """Raise before an operator changes a ledger that is older than what its boundary and dedup pipeline published."""
    contracts = {
        settings.pipeline.name: destination_contracts(settings),
        settings.dedup_pipeline: dedup_contracts(settings),
    }
    reads = {
        settings.pipeline.name: settings.transport.raw_topic,
        settings.dedup_pipeline: settings.dedup_source,
    }
    topics = {
        pipeline: [contract.topic for contract in each] for pipeline, each in contracts.items()
    }
    for pipeline, names in topics.items():
        refuse_another_ledger(ledger, transport, pipeline, names)
    every = [name for names in topics.values() for name in names]
    refuse_older_ledger(ledger, transport, every, reads)


def _reached(ledger: LedgerReader) -> dict[Source, int]:
    """Return up to which number the ledger knows of what each source published, late publishes too."""
    in_flight = ledger.blocks(states=[BlockState.IN_FLIGHT])
    reached = {info.source: info.mark.offset for info in ledger.sources()}
    for block in in_flight:
        reached[block.source] = max(block.last_offset, reached[block.source])
    return reached | {source: number - 1 for source, number in ledger.late_numbers().items()}


def _last_records(transport: Transport, topics: Sequence[str]) -> Iterator[_Stretch]:
    """Yield where the last records are: of what can be read, and of what an open transaction hides."""
    for state in transport.describe(topics).values():
        topic = state.topic
        starts, readable = transport.starts(topic), transport.ends(topic, readable=True)
        for begins, ends in ((starts, readable), (readable, transport.ends(topic))):
            for partition, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                if begin < end:
                    near = max(begin, end - _RECORDS_AT_THE_END)
                    yield _Stretch(topic, partition, near, end)


def _committed(transport: Transport, stretch: _Stretch, doubtful: _Unknown) -> dict[Source, int]:
    """Return how far each source published once that is certain: what was seen may have been aborted."""
    try:
        return _published(transport, stretch, committed=True)
    except Unreadable as hidden:
        raise Unreadable(
            f"An open transaction hides the end of {stretch.topic.name!r} partition {stretch.partition}. Behind it lies"
            f" what was published from {doubtful.name} up to offset {doubtful.offset}, the ledger knows it only up to"
            f" {doubtful.known}: unless that was aborted, the ledger is older than the log.",
            "wait until the transaction is committed, aborted or timed out, then try again; where the ledger was lost"
            " or restored from a copy: admitone reconcile --restored",
        ) from hidden


def _published(transport: Transport, stretch: _Stretch, *, committed: bool) -> dict[Source, int]:
    """Return how far each source published, as the records of a stretch say."""
    published: dict[Source, int] = {}
    for batch in transport.read(*stretch, committed=committed):
        _, found = decode(positions_of(batch.column("key"), batch.column("headers")))
        for place, rows in by_upstream(found.producers, found.partitions):
            source, offset = Source(*place), int(found.offsets[rows].max())
            published[source] = max(offset, published.get(source, offset))
    return published


def _name(producer: Producer, source: Source) -> str:
    late = ", late," if producer.kind == LATE else ""
    return f"{producer.topic!r} partition {source.partition}{late}"
