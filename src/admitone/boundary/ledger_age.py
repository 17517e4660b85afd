"""The log must not know more than the ledger.

A ledger that was lost, or restored from an older copy, does not know what it admitted since and would publish it again.
What a source published last is at the end of the log, so that is where one looks before anything is admitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from admitone.boundary.reconciliation import late_source
from admitone.boundary.release import release_source
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError
from admitone.core.replay_filter import by_upstream
from admitone.core.wire import decode, positions_of
from admitone.ledger.model import NOTHING_DECIDED, Source
from admitone.ledger.port import Ledger
from admitone.transport.port import Topic, Transport

_RECORDS_AT_THE_END: Final = 1_000
OLDER_REMEDY: Final = (
    "stop every pipeline on it and run admitone reconcile --restored, which reads back what the log holds; or restore"
    " the newest ledger. Admitting with this one would publish events again"
)


def refuse_older_ledger(ledger: Ledger, transport: Transport, topics: Sequence[str]) -> None:
    """Raise when these topics hold more of a source than the ledger knows of.

    The log is read first: what is on it was claimed before, so a ledger that is not older knows of it by then.
    """
    published: dict[Source, int] = {}
    for state in transport.describe(topics).values():
        for source, offset in _published(transport, state.topic):
            published[source] = max(offset, published.get(source, offset))
    for source, (known, name) in _known(ledger, transport.cluster).items():
        if published.get(source, known) > known:
            raise IntegrityError(
                f"The log holds what was admitted from {name} up to offset {published[source]}, the ledger knows it"
                f" only up to {known}: the ledger is older than the log.",
                OLDER_REMEDY,
            )


def _known(ledger: Ledger, cluster: str) -> dict[Source, tuple[int, str]]:
    """Return how far the ledger knows of everything that a source may have published, with its name.

    Doors of released deliveries and late publishes may have been used since, also where the ledger knows of none.
    """
    claimed: dict[Source, int] = {}
    for block in ledger.blocks(states=[BlockState.IN_FLIGHT]):
        claimed[block.source] = max(block.last_offset, claimed.get(block.source, NOTHING_DECIDED))
    late_numbers = ledger.late_numbers()
    known: dict[Source, tuple[int, str]] = {}
    for info in ledger.sources():
        name = f"{info.topic!r} partition {info.source.partition}"
        reached = max(info.mark.offset, claimed.get(info.source, NOTHING_DECIDED))
        late = late_source(info, cluster)
        known[late] = late_numbers.get(late, 0) - 1, f"{name}, late,"
        known.setdefault(release_source(info, cluster), (NOTHING_DECIDED, f"{name}, released,"))
        known[info.source] = reached, name
    return known


def _published(transport: Transport, topic: Topic) -> Iterator[tuple[Source, int]]:
    """Yield how far each source published, as the last records of a topic say."""
    ends = transport.ends(topic, readable=True)
    for partition, (first, end) in enumerate(zip(transport.starts(topic), ends, strict=True)):
        near = max(first, end - _RECORDS_AT_THE_END)
        for batch in transport.read(topic, partition, near, end):
            _, found = decode(positions_of(batch.column("key"), batch.column("headers")))
            for source, rows in by_upstream(found.producers, found.partitions):
                yield Source(*source), int(found.offsets[rows].max())
