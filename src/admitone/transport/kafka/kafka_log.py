"""Kafka as the log: transactional publishing with offsets, read-committed reading, topics by their id.

One transactional id for each producer name: taking a name over fences its last holder and aborts what it left open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from admitone.core.contract import Keeping
from admitone.core.errors import ConfigurationError, Fenced, NotFound, ServiceUnreachable
from admitone.infra.clock import Patience
from admitone.settings import Settings
from admitone.transport.kafka.administrator import Administrator
from admitone.transport.kafka.committed import read_range, record_batch
from admitone.transport.kafka.complaints import error_of, explained
from admitone.transport.kafka.producer import KafkaProducer
from admitone.transport.kafka.topic_owners import Notes, claim, group_of, look, settled
from admitone.transport.kafka_options import librdkafka_options
from admitone.transport.port import (
    KEPT_FOR_GOOD,
    Appended,
    Topic,
    TopicState,
)
from admitone.transport.topic_contract import gone, same_incarnation, with_partitions

_DOUBT_S = 1.0
"""How long one broker after the other must say that a topic is missing before it is believed."""
Found = TypeVar("Found")


class KafkaLog:
    """A `Transport` on Kafka; nothing is connected before it is used."""

    offset_kind = "kafka"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.transport.kafka
        self._options = librdkafka_options(settings)
        self._patience_s = self._settings.delivery_timeout / 1_000
        self._admin = Administrator(self._options, self._patience_s)
        self._producers: dict[str, tuple[int, KafkaProducer]] = {}

    @cached_property
    def cluster(self) -> str:
        """Return the cluster's own id."""
        answers = self._admin.answers(
            lambda admin: {"cluster": admin.describe_cluster()}, "asking for the cluster's id"
        )
        return str(answers["cluster"].cluster_id)

    def create_topic(self, name: str, partitions: int, keeping: Keeping = KEPT_FOR_GOOD) -> Topic:
        """Create the topic, or return it when it is there with as many partitions."""
        retention = -1 if keeping.retention_ms is None else keeping.retention_ms
        config = {
            "retention.ms": str(retention),
            "cleanup.policy": keeping.cleanup_policy,
            "message.timestamp.type": "LogAppendTime",
        }
        if keeping.min_insync_replicas > 1:
            config["min.insync.replicas"] = str(keeping.min_insync_replicas)
        wanted = NewTopic(name, partitions, keeping.replication, config=config)
        try:
            self._admin.asked(lambda admin: admin.create_topics([wanted]))
        except KafkaException as failure:
            error = error_of(failure)
            if error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._not_created(name, error) from failure
        return with_partitions(self._await_topic(name), partitions)

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        """Return those of the topics that exist, as they are now."""
        return self._surely(names, self._states)

    def topic(self, name: str) -> Topic:
        """Return the topic's present incarnation, or raise `NotFound`."""
        found = self._describe([name]).get(name)
        if found is None:
            raise NotFound(f"There is no topic {name!r}.", "admitone topics create")
        return _topic(found)

    def starts(self, topic: Topic) -> list[int]:
        """Return the first readable offset of each partition."""
        return self._offsets(topic, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    def ends(self, topic: Topic, *, readable: bool = False) -> list[int]:
        """Return the offset after the last one given out, or the last stable one, for each partition."""
        level = IsolationLevel.READ_COMMITTED if readable else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(topic, OffsetSpec.latest(), level)

    def next_record(self, topic: Topic, partition: int, start: int, end: int) -> int:
        """Return the offset of the first committed record with start <= offset < end, or the end."""
        for messages in self._read(topic, partition, start, end):
            return int(messages[0].offset())
        return end

    def init_producer(self, name: str) -> int:
        """Fence every earlier holder of the name and return a number for this hold of it.

        Kafka keeps its own epochs to itself: this one counts the takeovers by this process.
        """
        epoch, former = self._producers.pop(name, (0, None))
        together = None
        if former is not None:
            former.close()
            together = former.together
        producer = KafkaProducer(
            {**self._options, "compression.type": self._settings.compression},
            name,
            delivery_timeout_ms=self._settings.delivery_timeout,
            transaction_timeout_ms=self._settings.transaction_timeout,
            together=together,
        )
        self._producers[name] = (epoch + 1, producer)
        return epoch + 1

    def last_epoch(self, name: str) -> int:
        """Return how often this process took a name over; of others Kafka tells nobody."""
        epoch, _ = self._producers.get(name, (0, None))
        return epoch

    def append(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Appended:
        """Append to several topics in one transaction."""
        held, producer = self._producers.get(name, (0, None))
        if producer is None or held != epoch:
            raise Fenced(f"Producer {name!r} was taken over in this process.")
        return producer.append(records)

    def read(
        self, topic: Topic, partition: int, start: int, end: int, *, committed: bool = True
    ) -> Iterator[pa.RecordBatch]:
        """Yield committed records with start <= offset < end, in offset order; if asked to, all there are."""
        for messages in self._read(topic, partition, start, end, committed=committed):
            yield record_batch(topic.name, partition, messages)

    def owners(self, pipeline: str, topics: Sequence[str]) -> dict[str, str]:
        """Return the ledger that each of these topics was claimed for under a pipeline's name."""
        present = list(self._describe(topics))
        notes = settled(lambda: self._notes(pipeline, present), self._patience_s)
        return {topic: note.ledger for topic, note in notes.items()}

    def claim(
        self, pipeline: str, topics: Sequence[str], ledger: str, *, adopt: bool = False
    ) -> dict[str, str]:
        """Claim those of the topics that are there and not claimed; return the ledger that each belongs to now.

        A claim that stands is written again from time to time, because brokers forget it.
        """
        present = list(self._describe(topics))
        notes = claim(
            self._options, pipeline, lambda: self._notes(pipeline, present),
            present, ledger, self._patience_s, adopt=adopt,
        )  # fmt: skip
        return {topic: note.ledger for topic, note in notes.items()}

    def close(self) -> None:
        """Close the producers; the rest goes with this object."""
        for _, producer in self._producers.values():
            producer.close()
        self._producers.clear()

    def _read(
        self, topic: Topic, partition: int, start: int, end: int, *, committed: bool = True
    ) -> Iterator[list[Any]]:
        return read_range(
            {
                **self._options,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
            },
            topic.name,
            partition,
            start,
            end,
            self._settings.look_timeout / 1_000,
            lambda: self._check(topic),
        )

    def _check(self, topic: Topic) -> None:
        found = self._describe([topic.name]).get(topic.name)
        if found is None or not same_incarnation(_topic(found), topic.topic_id):
            raise gone(topic)

    def _offsets(self, topic: Topic, which: OffsetSpec, level: IsolationLevel) -> list[int]:
        wanted = {TopicPartition(topic.name, number): which for number in range(topic.partitions)}
        patience = Patience(self._patience_s)
        while True:
            self._check(topic)
            answers = self._admin.answers(
                lambda admin: admin.list_offsets(wanted, isolation_level=level),
                f"asking how far {topic.name!r} goes",
            )
            # A client answers for a leader that keeps silent, too: with an offset that is none.
            found = {
                place.partition: answer.offset
                for place, answer in answers.items()
                if answer.offset >= 0
            }
            if len(found) == topic.partitions:
                return [found[number] for number in range(topic.partitions)]
            self._admin.ask_others()
            if not patience.pause():
                raise ServiceUnreachable(
                    f"Kafka does not say how far {topic.name!r} goes.", "check the brokers"
                )

    def _describe(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        return self._surely(names, self._descriptions)

    def _surely(
        self, names: Sequence[str], look: Callable[[Sequence[str]], dict[str, Found]]
    ) -> dict[str, Found]:
        """Return what there is under the names, of several brokers by more than one word.

        A broker that was away, or is cut off from the others, does not know what was created meanwhile. The next
        question goes to another one.
        """
        patience = Patience(_DOUBT_S)
        while True:
            found = look(names)
            if len(found) == len(set(names)) or self._is_one_broker() or not patience.pause():
                return found

    def _is_one_broker(self) -> bool:
        answers = self._admin.answers(
            lambda admin: {"cluster": admin.describe_cluster()}, "asking for the brokers"
        )
        return len(answers["cluster"].nodes) == 1

    def _descriptions(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        if not names:
            return {}
        return self._admin.answers(
            lambda admin: admin.describe_topics(TopicCollection(list(names))),
            f"asking for topic {', '.join(map(repr, names))}",
        )

    def _states(self, names: Sequence[str]) -> dict[str, TopicState]:
        topics = self._descriptions(names)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        configurations = self._admin.answers(
            lambda admin: admin.describe_configs(resources) if resources else {},
            f"reading the configuration of {', '.join(topics)}",
        )
        found = {}
        for resource, options in configurations.items():
            description = topics[resource.name]
            retention = int(options["retention.ms"].value)
            found[resource.name] = TopicState(
                _topic(description),
                Keeping(
                    min((len(part.replicas) for part in description.partitions), default=0),
                    None if retention < 0 else retention,
                    # A broker returns the list in the order it was written in.
                    ",".join(sorted(options["cleanup.policy"].value.split(","))),
                    int(options["min.insync.replicas"].value),
                ),
                options["message.timestamp.type"].value == "LogAppendTime",
            )
        return found

    def _notes(self, pipeline: str, topics: Sequence[str]) -> Notes | None:
        if not topics:
            return {}
        return look(self._options, group_of(pipeline), topics)

    def _await_topic(self, name: str) -> Topic:
        """Return a topic once all of its partitions have a leader."""
        patience = Patience(self._patience_s)
        while True:
            found = self._describe([name]).get(name)
            if found is not None and all(part.leader is not None for part in found.partitions):
                return _topic(found)
            if not patience.pause():
                raise ServiceUnreachable(
                    f"Topic {name!r} has partitions without a leader.", "check the brokers"
                )

    def _not_created(self, name: str, error: KafkaError) -> Exception:
        if error.code() in (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_PARTITIONS):
            return ConfigurationError(
                f"Kafka cannot create topic {name!r}: {error.str()}.",
                "mend partitions or replication in its [[topics]] entry",
            )
        return explained(error, f"creating topic {name!r}")


def _topic(description: TopicDescription) -> Topic:
    return Topic(description.name, str(description.topic_id), len(description.partitions))
