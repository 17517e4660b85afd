"""Who publishes for a pipeline: its sources under their own names, its doors, and what is published late.

A ledger that was restored from an older copy may know neither a door nor a slot of it. The log names the producer of
every record, and each of these names follows from the pipeline and its topics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from admitone.core.wire import producer_id
from admitone.ledger.model import (
    PRODUCED_AS,
    RELEASE_DOOR,
    RELEASED_FROM,
    STREAM,
    SYNCHRONOUS_DOOR,
    Source,
    SourceInfo,
)
from admitone.transport.port import Topic

LATE: Final = "late"
"""What the producers of late publishes are named after."""
DOOR: Final = PRODUCED_AS[SYNCHRONOUS_DOOR]
"""What stands where other sources name their topic."""


@dataclass(frozen=True, slots=True)
class Producer:
    """A stream, a door, or what publishes late for one of them; and what stands for its topic."""

    pipeline: str
    kind: str
    topic: str
    topic_id: str


def stream_producer(pipeline: str, cluster: str, topic: Topic) -> int:
    """Return the id under which the deliveries of a topic are published."""
    return producer_id(pipeline, PRODUCED_AS[STREAM], cluster, topic.topic_id)


def late_source(info: SourceInfo, cluster: str) -> Source:
    """Return the source whose numbers late publishes of a source partition carry."""
    return Source(producer_id(info.pipeline, LATE, cluster, info.topic_id), info.source.partition)


def release_source(info: SourceInfo, cluster: str) -> Source:
    """Return the door of released deliveries that belongs to a source partition."""
    number = producer_id(info.pipeline, RELEASE_DOOR, cluster, info.topic_id)
    return Source(number, info.source.partition)


def release_door_of(pipeline: str, topic: str, topic_id: str) -> Producer:
    """Return the door of deliveries that are released from a topic, or from another door."""
    return Producer(pipeline, RELEASE_DOOR, f"{RELEASED_FROM}{topic}", f"{RELEASED_FROM}{topic_id}")


def producers_of(
    infos: Iterable[SourceInfo], cluster: str, reads: Mapping[str, Topic] | None = None
) -> dict[int, Producer]:
    """Return, by its id, every producer that may publish for the pipelines of these sources, or read these topics."""
    found: dict[int, Producer] = {}
    streams: dict[str, list[Producer]] = defaultdict(list)
    for pipeline, topic in (reads or {}).items():
        known = Producer(pipeline, STREAM, topic.name, topic.topic_id)
        found[stream_producer(pipeline, cluster, topic)] = known
        streams[pipeline].append(known)
    for info in infos:
        made = streams[info.pipeline]
        if info.source.producer_id not in found:
            known = Producer(info.pipeline, info.door, info.topic, info.topic_id)
            found[info.source.producer_id] = known
            made += [known] if info.door == STREAM else []
    for pipeline, made in streams.items():
        door = Producer(pipeline, SYNCHRONOUS_DOOR, DOOR, DOOR)
        found[producer_id(pipeline, DOOR, cluster, DOOR)] = door
        for each in (*made, door):
            released = release_door_of(pipeline, each.topic, each.topic_id)
            found[producer_id(pipeline, RELEASE_DOOR, cluster, each.topic_id)] = released
            for late in (each, released):
                number = producer_id(pipeline, LATE, cluster, late.topic_id)
                found[number] = Producer(pipeline, LATE, late.topic, late.topic_id)
    return found
