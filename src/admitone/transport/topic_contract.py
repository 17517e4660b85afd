"""Contracts made from the settings, next to the topics they are about, on whatever log there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from admitone.core.contract import Checked, Contract, Keeping, Live, compare, least_in_sync
from admitone.core.errors import ConfigurationError, ContractDrift, NotFound
from admitone.settings import Settings
from admitone.transport.port import Topic, TopicState, Transport


def destination_contracts(settings: Settings) -> tuple[Contract, ...]:
    """Return what the topic map asks for, in its order."""
    return tuple(
        Contract(
            entry.topic,
            entry.partitions,
            _kept(entry.replication, entry.retention, entry.cleanup_policy),
        )
        for entry in settings.topics
    )


def dedup_contracts(settings: Settings) -> tuple[Contract, ...]:
    """Return what the topic is to be like that a dedup pipeline writes."""
    wanted = settings.dedup
    keeping = _kept(wanted.replication, wanted.topic_retention)
    return (Contract(wanted.destination, wanted.partitions, keeping),)


def late_contract(settings: Settings) -> Contract:
    """Return what the topic is to be like that holds what engine state cannot judge."""
    (written,) = dedup_contracts(settings)
    return replace(written, topic=settings.dedup.late)


def raw_contract(settings: Settings) -> Contract:
    """Return what the raw topic is to be like."""
    wanted = settings.transport
    keeping = _kept(wanted.raw_replication, wanted.raw_retention)
    return Contract(wanted.raw_topic, wanted.raw_partitions, keeping, raw=True)


def check_contracts(
    contracts: Iterable[Contract], transport: Transport, accepted: Mapping[str, str]
) -> list[Checked]:
    """Compare topics with their contracts and with the ids that were accepted, by name."""
    contracts = tuple(contracts)
    found = transport.describe([contract.topic for contract in contracts])
    return [
        compare(contract, _live(found.get(contract.topic)), accepted.get(contract.topic))
        for contract in contracts
    ]


def create_topic(contract: Contract, transport: Transport) -> Topic:
    """Create a topic as its contract says."""
    return transport.create_topic(contract.topic, contract.partitions, contract.keeping)


def with_partitions(topic: Topic, partitions: int) -> Topic:
    """Return a topic that was to be created; refuse one that was there already with another number of partitions."""
    if topic.partitions != partitions:
        raise ConfigurationError(
            f"Topic {topic.name!r} has {topic.partitions} partitions, the configuration says {partitions}.",
            "set its partitions back, or choose another topic name",
        )
    return topic


def gone(topic: Topic) -> NotFound:
    """Return what to say of an incarnation that is no longer there."""
    return NotFound(
        f"Topic {topic.name!r} with id {topic.topic_id} is gone; it was deleted, perhaps recreated.",
        "run again: a recreated topic is read from its beginning",
    )


def same_incarnation(found: Topic, topic_id: str) -> bool:
    """Tell whether what is there under a topic's name is still the topic with this id, and was not recreated."""
    return found.topic_id == topic_id


def still_there(transport: Transport, name: str, topic_id: str) -> Topic | None:
    """Return the topic of a name if it is the incarnation with this id; None if that was deleted or recreated."""
    try:
        found = transport.topic(name)
    except NotFound:
        return None
    return found if same_incarnation(found, topic_id) else None


def without_append_time(name: str) -> ContractDrift:
    """Return what to say of a topic whose records carry their producer's time."""
    return ContractDrift(
        f"Topic {name!r} does not carry the log's own time, by which records are judged.",
        "set message.timestamp.type of the topic to LogAppendTime and run again",
    )


def must_be_as_agreed(
    contract: Contract, settings: Settings, transport: Transport, done: str
) -> Topic:
    """Return the topic of a contract, created when it is new and may be; refuse one that is not as agreed."""
    (checked,) = check_contracts([contract], transport, {})
    if checked.is_new and settings.transport.create_topics:
        return create_topic(contract, transport)
    if checked.live is None or checked.differences:
        raise ContractDrift(f"Nothing can be {done}: {checked.what_differs}.", checked.what_to_do)
    return Topic(contract.topic, checked.live.topic_id, checked.live.partitions)


def raw_topic(settings: Settings, transport: Transport) -> Topic:
    """Return the raw topic, created when it is missing and may be; refuse one that is not as agreed."""
    return must_be_as_agreed(raw_contract(settings), settings, transport, "read")


def dedup_source(settings: Settings, transport: Transport) -> Topic:
    """Return the topic a dedup pipeline reads: the raw topic, or one of other programs that is there already."""
    name = settings.dedup_source
    if name == settings.transport.raw_topic:
        return raw_topic(settings, transport)
    found = transport.describe([name]).get(name)
    if found is None:
        raise NotFound(
            f"Nothing can be read: there is no topic {name!r}.",
            "name a topic that is there in [dedup] source, or create it",
        )
    if not found.append_time:
        raise without_append_time(name)
    return found.topic


def _kept(replication: int, retention_ms: int | None, policy: str = "delete") -> Keeping:
    return Keeping(replication, retention_ms, policy, least_in_sync(replication))


def _live(state: TopicState | None) -> Live | None:
    if state is None:
        return None
    return Live(state.topic.topic_id, state.topic.partitions, state.keeping, state.append_time)
