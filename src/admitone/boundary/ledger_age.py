"""The log must not know more than the ledger.

A ledger that was lost, or restored from an older copy, does not know what it admitted since and would publish it again.
What a source published last is at the end of the log, so that is where one looks before anything is admitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from admitone.boundary.producers import LATE, producers_of
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError
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


def refuse_older_ledger(ledger: LedgerReader, transport: Transport, topics: Sequence[str]) -> None:
    """Raise when these topics hold more of a source than the ledger knows of, or while it is being read back.

    The log is read first: what is on it was claimed before, so a ledger that is not older knows of it by then.
    """
    for pipeline in ledger.reading_back():
        raise IntegrityError(
            f"The ledger was restored from an older copy, and what the log holds of pipeline {pipeline!r} is not"
            " read back to its end.",
            OLDER_REMEDY,
        )
    published: dict[Source, int] = {}
    for state in transport.describe(topics).values():
        for source, offset in _published(transport, state.topic):
            published[source] = max(offset, published.get(source, offset))
    producers, reached = producers_of(ledger.sources(), transport.cluster), _reached(ledger)
    for source, offset in published.items():
        producer, known = producers.get(source.producer_id), reached.get(source, NOTHING_DECIDED)
        if producer is not None and offset > known:
            late = ", late," if producer.kind == LATE else ""
            raise IntegrityError(
                f"The log holds what was admitted from {producer.topic!r} partition {source.partition}{late} up to"
                f" offset {offset}, the ledger knows it only up to {known}: the ledger is older than the log.",
                OLDER_REMEDY,
            )


def must_know_its_log(ledger: LedgerReader, transport: Transport, settings: Settings) -> None:
    """Raise before an operator changes a ledger that is older than what its boundary and dedup pipeline published."""
    contracts = (*destination_contracts(settings), *dedup_contracts(settings))
    refuse_older_ledger(ledger, transport, [contract.topic for contract in contracts])


def _reached(ledger: LedgerReader) -> dict[Source, int]:
    """Return up to which number the ledger knows of what each source published, late publishes too."""
    in_flight = ledger.blocks(states=[BlockState.IN_FLIGHT])
    reached = {info.source: info.mark.offset for info in ledger.sources()}
    for block in in_flight:
        reached[block.source] = max(block.last_offset, reached[block.source])
    return reached | {source: number - 1 for source, number in ledger.late_numbers().items()}


def _published(transport: Transport, topic: Topic) -> Iterator[tuple[Source, int]]:
    """Yield how far each source published, as the last records of a topic say."""
    ends = transport.ends(topic, readable=True)
    for partition, (first, end) in enumerate(zip(transport.starts(topic), ends, strict=True)):
        near = max(first, end - _RECORDS_AT_THE_END)
        for batch in transport.read(topic, partition, near, end):
            _, found = decode(positions_of(batch.column("key"), batch.column("headers")))
            for source, rows in by_upstream(found.producers, found.partitions):
                yield Source(*source), int(found.offsets[rows].max())
