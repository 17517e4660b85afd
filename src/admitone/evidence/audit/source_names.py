"""Is every source what it is named, and was nothing passed over unread?

The producer id of a source follows from its pipeline, its door and the topic it reads; so does the store of its keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from admitone.core.errors import AdmitoneError
from admitone.core.wire import producer_id
from admitone.ledger.model import PRODUCED_AS, RELEASE_DOOR, RELEASED_FROM, SourceInfo
from admitone.ledger.port import LedgerReader
from admitone.transport.port import Transport
from admitone.transport.topic_contract import still_there


def misnamed_sources(ledger: LedgerReader, transport: Transport) -> list[str]:
    """Return what is wrong with the names of sources, and with how far they were read."""
    return [
        f"{info.topic}:{info.source.partition} {what}"
        for info in ledger.sources()
        for what in (*_names(info, transport.cluster), *_passed_over(info, transport))
    ]


def _names(info: SourceInfo, cluster: str) -> Iterator[str]:
    kind = PRODUCED_AS.get(info.door)
    released = RELEASED_FROM if info.door == RELEASE_DOOR else ""
    topic_id = info.topic_id.removeprefix(released)
    named = kind and producer_id(info.pipeline, kind, cluster, topic_id)
    if info.source.producer_id != named:
        yield f"is not the {info.door} of pipeline {info.pipeline!r} on topic id {info.topic_id}"


def _passed_over(info: SourceInfo, transport: Transport) -> Iterator[str]:
    """Yield where a source says that it read beyond its mark, and records lie there."""
    if info.read_to is None or info.read_to <= info.mark.offset + 1:
        return
    topic = still_there(transport, info.topic, info.topic_id)
    if topic is None:
        return
    start = max(info.mark.offset + 1, transport.starts(topic)[info.source.partition])
    try:
        end = min(info.read_to, transport.ends(topic, readable=True)[info.source.partition])
        found = transport.next_record(topic, info.source.partition, start, end)
    except AdmitoneError:
        return
    if start < end and found < end:
        yield f"passed over the delivery at {found}"
    if info.read_to > transport.ends(topic)[info.source.partition]:
        yield f"says that it read up to {info.read_to}, beyond the end of the log"
