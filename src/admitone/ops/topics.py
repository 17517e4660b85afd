"""What an operator does about topics: compare them with the map, create them, accept what took their place."""

from __future__ import annotations

from typing_extensions import TypedDict

from admitone.boundary.destination_topics import Topics
from admitone.boundary.ledger_age import must_know_its_log
from admitone.core.contract import Contract, TopicDocument
from admitone.evidence.topic_check import check_topics
from admitone.infra.clock import wall_clock
from admitone.ledger.model import AcceptedTopic
from admitone.ops.stores import Stores
from admitone.settings import Settings
from admitone.transport.topic_contract import (
    check_contracts,
    create_topic,
    dedup_contracts,
    destination_contracts,
    late_contract,
    raw_contract,
)


class TopicsDocument(TypedDict):
    """Topics next to their contracts, and every acceptance there was, oldest first."""

    topics: list[TopicDocument]
    accepted: list[AcceptedTopic]


def check(stores: Stores, *, dedup: bool) -> TopicsDocument:
    """Compare the map's topics, or the dedup pipeline's, with their contracts."""
    contracts = (*_others(stores.settings, dedup), *_destinations(stores.settings, dedup))
    found = check_topics(contracts, stores.ledger, stores.transport)
    return {
        "topics": [checked.document() for checked in found],
        "accepted": stores.ledger.accepted_topics(stores.transport.cluster),
    }


def create(stores: Stores, author: str, *, dedup: bool) -> list[str]:
    """Create the topics that are missing and accept them; return their names."""
    topics = _topics(stores, dedup)
    made = topics.create(wall_clock(), author, "admitone topics create")
    for other in check_contracts(_others(stores.settings, dedup), stores.transport, {}):
        if other.live is None:
            made.append(create_topic(other.contract, stores.transport).name)
    return made


def accept(stores: Stores, topic: str, author: str, reason: str, *, dedup: bool) -> bool:
    """Accept a topic that was created again under its old name; False when it was accepted before."""
    return _topics(stores, dedup).accept(topic, wall_clock(), author, reason)


def _topics(stores: Stores, dedup: bool) -> Topics:
    must_know_its_log(stores.writing_ledger, stores.transport, stores.settings)
    contracts = _destinations(stores.settings, dedup)
    return Topics(contracts, stores.writing_ledger, stores.transport)


def _destinations(settings: Settings, dedup: bool) -> tuple[Contract, ...]:
    return dedup_contracts(settings) if dedup else destination_contracts(settings)


def _others(settings: Settings, dedup: bool) -> list[Contract]:
    """Return the topics that nothing is admitted to: what is read, and what engine state cannot judge."""
    reads_raw = not dedup or settings.dedup_source == settings.transport.raw_topic
    raw = [raw_contract(settings)] if reads_raw else []
    return [*raw, late_contract(settings)] if dedup else raw
