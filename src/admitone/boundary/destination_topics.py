"""The destination topics under their contracts: which may be written to, and who accepted them (RTE-4).

A topic is known by its id. The first one that is as agreed is accepted by itself; whatever takes its place later
waits for an operator's word. Until then, and while anything else about a topic differs, nothing is admitted to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from admitone.core.contract import Checked, Contract
from admitone.core.errors import ContractDrift, NotFound
from admitone.core.routing import Route
from admitone.evidence.topic_check import check_topics
from admitone.ledger.model import AcceptedTopic, Destination
from admitone.ledger.port import Ledger
from admitone.transport.port import Transport
from admitone.transport.topic_contract import create_topic, still_there

ITSELF = "admitone"


@dataclass(frozen=True, slots=True)
class Topics:
    """The destination topics of a pipeline, on its log and in its ledger."""

    contracts: tuple[Contract, ...]
    ledger: Ledger
    transport: Transport

    def check(self) -> list[Checked]:
        """Compare the topics with their contracts; nothing changes."""
        return check_topics(self.contracts, self.ledger, self.transport)

    def create_and_accept(self, now: int, *, create: bool) -> list[Checked]:
        """Create topics that never were there, if allowed; accept what is as agreed and seen for the first time."""
        checked = self.check()
        if create and any(each.is_new for each in checked):
            self._create((each for each in checked if each.is_new), now, ITSELF, "first start")
            checked = self.check()
        for each in checked:
            if each.accepted is None and each.live is not None and each.as_agreed:
                self._accept(each.topic, each.live.topic_id, now, ITSELF, "seen for the first time")
        return checked

    def create(self, now: int, author: str, reason: str) -> list[str]:
        """Create every topic that is missing and accept it; return their names."""
        missing = [each for each in self.check() if each.live is None]
        self._create(missing, now, author, reason)
        return [each.topic for each in missing]

    def accept(self, name: str, now: int, author: str, reason: str) -> bool:
        """Accept the present incarnation of a topic; False when it is accepted already."""
        found = {each.topic: each.live for each in self.check()}
        if name not in found:
            raise NotFound(f"Topic {name!r} is not in the map.", f"one of {', '.join(found)}")
        live = found[name]
        if live is None:
            raise NotFound(f"There is no topic {name!r} to accept.", "admitone topics create")
        return self._accept(name, live.topic_id, now, author, reason)

    def _create(self, missing: Iterable[Checked], now: int, author: str, reason: str) -> None:
        for each in missing:
            topic = create_topic(each.contract, self.transport)
            self._accept(topic.name, topic.topic_id, now, author, reason)

    def _accept(self, name: str, topic_id: str, now: int, author: str, reason: str) -> bool:
        return self.ledger.accept_topic(
            AcceptedTopic(self.transport.cluster, name, topic_id, now, author, reason)
        )


def drifted_since(
    writable: Mapping[str, str],
    destinations: Sequence[Destination],
    routes: Sequence[Route],
    facts: pa.Table,
) -> set[str]:
    """Return the topics deliveries are meant for that are no longer what they were when they were checked."""
    meant = facts["route"].drop_null().unique().to_pylist()
    return {
        routes[number].topic
        for number in meant
        if destinations[number].topic_id != writable.get(routes[number].topic)
        or len(destinations[number].ends) != routes[number].partitions
    }


def refuse_drifted(
    contracts: Iterable[Contract], writable: Mapping[str, str], places: Sequence[Destination]
) -> None:
    """Raise when one of the places is a topic of the map that is not as agreed."""
    agreed_on = {contract.topic for contract in contracts}
    for place in places:
        if place.topic in agreed_on and place.topic_id != writable.get(place.topic):
            raise ContractDrift(f"Topic {place.topic!r} is not as agreed.", "admitone topics check")


def refuse_recreated(transport: Transport, places: Sequence[Destination]) -> None:
    """Raise when a place that was written to is no longer the topic that was noted before."""
    for place in places:
        if still_there(transport, place.topic, place.topic_id) is None:
            raise ContractDrift(
                f"Topic {place.topic!r} was deleted or recreated while it was written to.",
                "admitone topics check",
            )
