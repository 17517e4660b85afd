"""The contract of a topic: what the map wants, what is there, and how the two differ (RTE-4).

Every difference is drift, with two exceptions: more replicas than wanted, in all or in sync, only make a topic safer,
and retention means nothing to a topic that is only compacted. A longer retention is drift like a shorter one: how long
records are kept is a promise to those they are about, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NotRequired

from typing_extensions import TypedDict

from admitone.core.durations import format_duration


class KeepingDocument(TypedDict):
    """How a log keeps a topic's records; a retention of None is for good."""

    replication: int
    retention_ms: int | None
    cleanup_policy: str
    min_insync_replicas: int


class WantedTopic(KeepingDocument):
    """What the map says of a topic."""

    partitions: int


class FoundTopic(TypedDict):
    """A topic as it is; how its records are kept only where the log knows such a thing."""

    topic_id: str
    partitions: int
    replication: NotRequired[int]
    retention_ms: NotRequired[int | None]
    cleanup_policy: NotRequired[str]
    min_insync_replicas: NotRequired[int]


class Kind(StrEnum):
    """In what a topic can differ from its contract."""

    MISSING = "missing"
    RECREATED = "recreated"
    PARTITIONS = "partitions"
    REPLICATION = "replication"
    IN_SYNC = "in-sync replicas"
    RETENTION = "retention"
    CLEANUP_POLICY = "cleanup policy"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a log keeps a topic's records; a retention of None is for good."""

    replication: int = 1
    retention_ms: int | None = None
    cleanup_policy: str = "delete"
    """`delete`, `compact`, or both: `compact,delete`."""
    min_insync_replicas: int = 1
    """How many replicas have a record before its producer hears that it is written."""

    @property
    def compacts(self) -> bool:
        """Tell whether the log may remove a record because a later one has the same key."""
        return "compact" in self.cleanup_policy.split(",")

    def document(self) -> KeepingDocument:
        """Return it as the interface spells it."""
        return {
            "replication": self.replication,
            "retention_ms": self.retention_ms,
            "cleanup_policy": self.cleanup_policy,
            "min_insync_replicas": self.min_insync_replicas,
        }


def least_in_sync(replication: int) -> int:
    """Return how many replicas must have a record, so that one broker may be lost and one be away."""
    return 2 if replication >= 3 else 1


@dataclass(frozen=True, slots=True)
class Contract:
    """What one topic is to be like: a destination of the map, or the raw topic."""

    topic: str
    partitions: int
    keeping: Keeping
    raw: bool = False


@dataclass(frozen=True, slots=True)
class Live:
    """A topic as it is now."""

    topic_id: str
    partitions: int
    keeping: Keeping | None = None
    """None where the log keeps everything in one place and knows no such thing."""
    append_time: bool = True


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which a topic is not as agreed, and what to do about it."""

    kind: Kind
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        """Return what follows the topic's name in a sentence."""
        if self.kind is Kind.MISSING:
            return "is missing"
        verb = "was recreated" if self.kind is Kind.RECREATED else f"differs in {self.kind}"
        return f"{verb}: expected {self.expected}, found {self.found}"


class TopicDocument(TypedDict):
    """A topic next to its contract."""

    topic: str
    raw: bool
    as_agreed: bool
    wanted: WantedTopic
    found: FoundTopic | None
    accepted: str | None
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """A contract next to the topic it is about."""

    contract: Contract
    live: Live | None
    accepted: str | None
    """The id of the incarnation that was accepted last; None when none ever was."""
    differences: tuple[Difference, ...]

    @property
    def topic(self) -> str:
        """Return the topic's name."""
        return self.contract.topic

    @property
    def as_agreed(self) -> bool:
        """Tell whether nothing differs."""
        return not self.differences

    @property
    def is_new(self) -> bool:
        """Tell whether the topic neither is there nor ever was."""
        return self.live is None and self.accepted is None

    @property
    def what_differs(self) -> str:
        """Return everything that differs, in one sentence."""
        return f"topic {self.topic!r} {'; '.join(map(str, self.differences))}"

    @property
    def what_to_do(self) -> str:
        """Return the remedies, in the same order."""
        return "; ".join(difference.remedy for difference in self.differences)

    def document(self) -> TopicDocument:
        """Return the topic and its contract as the interface spells them."""
        contract, live = self.contract, self.live
        found: FoundTopic | None = None
        if live is not None:
            found = {"topic_id": live.topic_id, "partitions": live.partitions}
            if live.keeping is not None:
                found = {**found, **live.keeping.document()}
        return {
            "topic": self.topic,
            "raw": contract.raw,
            "as_agreed": self.as_agreed,
            "wanted": {"partitions": contract.partitions, **contract.keeping.document()},
            "found": found,
            "accepted": self.accepted,
            "differences": self.differences,
        }


def compare(contract: Contract, live: Live | None, accepted: str | None = None) -> Checked:
    """Compare a topic with its contract and with the incarnation that was accepted."""
    return Checked(contract, live, accepted, tuple(_differences(contract, live, accepted)))


def _differences(
    contract: Contract, live: Live | None, accepted: str | None
) -> Iterator[Difference]:
    if live is None:
        lost = "" if accepted is None else ", empty: what was on it is gone"
        remedy = f"admitone topics create makes it{lost}"
        yield Difference(Kind.MISSING, "a topic", "none", remedy)
        return
    if accepted not in (None, live.topic_id):
        yield Difference(
            Kind.RECREATED,
            f"id {accepted}",
            f"id {live.topic_id}, so it was deleted and created again",
            f"admitone topics accept {contract.topic} --reason ..., once you know why",
        )
    if live.partitions != contract.partitions:
        yield Difference(
            Kind.PARTITIONS,
            str(contract.partitions),
            str(live.partitions),
            _partitions_remedy(contract, live.partitions),
        )
    if live.keeping is not None:
        yield from _kept_otherwise(contract, live.keeping)
    if contract.raw and not live.append_time:
        yield Difference(
            Kind.TIMESTAMPS,
            "the log's own time (LogAppendTime)",
            "the producers' (CreateTime)",
            "set message.timestamp.type of the topic to LogAppendTime",
        )


def _kept_otherwise(contract: Contract, found: Keeping) -> Iterator[Difference]:
    wanted = contract.keeping
    if found.replication < wanted.replication:
        change = _change_map(contract, "replication", str(found.replication))
        yield Difference(
            Kind.REPLICATION,
            f"at least {wanted.replication}",
            str(found.replication),
            f"give the topic more replicas, or {change}",
        )
    if found.min_insync_replicas < wanted.min_insync_replicas:
        yield Difference(
            Kind.IN_SYNC,
            f"at least {wanted.min_insync_replicas}",
            str(found.min_insync_replicas),
            f"set min.insync.replicas of the topic to {wanted.min_insync_replicas}",
        )
    if found.cleanup_policy != wanted.cleanup_policy:
        yield Difference(
            Kind.CLEANUP_POLICY,
            wanted.cleanup_policy,
            found.cleanup_policy,
            f"set cleanup.policy of the topic to {wanted.cleanup_policy}",
        )
    if found.retention_ms != wanted.retention_ms and wanted.cleanup_policy != "compact":
        remedy = f"set retention.ms of the topic to {wanted.retention_ms}"
        if found.retention_ms is not None:
            shown = f'"{format_duration(found.retention_ms)}"'
            remedy += f", or {_change_map(contract, 'retention', shown)}"
        expected, got = (_duration(kept.retention_ms) for kept in (wanted, found))
        yield Difference(Kind.RETENTION, expected, got, remedy)


def _partitions_remedy(contract: Contract, found: int) -> str:
    change = _change_map(contract, "partitions", str(found))
    if not contract.raw:
        change += " (keys go to other partitions from then on)"
    if found < contract.partitions:
        return f"add partitions to the topic, or {change}"
    return f"{change}, or delete the topic and run admitone topics create"


def _change_map(contract: Contract, name: str, value: str) -> str:
    if contract.raw:
        return f"set raw_{name} = {value} in [transport]"
    return f"set {name} = {value} in its [[topics]] entry"


def _duration(retention_ms: int | None) -> str:
    return "for good" if retention_ms is None else format_duration(retention_ms)
