"""Which ledger a topic belongs to: the metadata of an offset of a consumer group that is named after the pipeline.

Nobody consumes with that group. Brokers compare and set no such offset, but they fence producers: a claim is a
transaction of a producer that is named after the group, too. Beginning one fences every claim that began before, so
what is read between its beginning and its commit is what the commit replaces.

Brokers forget the offsets of a group some time after they were written (`offsets.retention.minutes`, a week). The
offset itself says when that was, in milliseconds since 1970, so that a claim knows whether it is worth writing again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from admitone.core.errors import Fenced, ServiceUnreachable
from admitone.infra.clock import Patience, wall_clock
from admitone.transport.kafka.clients import connect
from admitone.transport.kafka.complaints import FENCED, Complaints, error_of, explained
from admitone.transport.kafka_options import Options

_WRITTEN_AGAIN_MS: Final = 3_600_000
_TRANSACTION_MS: Final = 10_000
_ANSWER_S: Final = 1.0
"""How long one question waits: brokers keep silent about an offset that is being written."""
_NOT_TOLD: Final = {
    KafkaError.UNSTABLE_OFFSET_COMMIT, KafkaError._TIMED_OUT, KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip
"""An offset is being written, or the group changes hands; both pass."""


@dataclass(frozen=True, slots=True)
class Note:
    """Which ledger a topic belongs to, and when that was written."""

    ledger: str
    written_at: int


Notes = Mapping[str, Note]
"""Notes by the names of topics."""
Look = Callable[[], Notes | None]
"""Returns the notes; None while a claim is under way."""


def group_of(pipeline: str) -> str:
    """Return the consumer group that keeps the notes of a pipeline."""
    return f"admitone:{pipeline}"


def notes_in(committed: Iterable[TopicPartition]) -> Notes:
    """Return the notes among the committed offsets of a group."""
    notes = {}
    for each in committed:
        if each.error is not None:
            raise KafkaException(each.error)
        if each.metadata:
            notes[each.topic] = Note(each.metadata, each.offset)
    return notes


def look(options: Options, group: str, topics: Iterable[str]) -> Notes | None:
    """Return whose topics are, as a group keeps it; None while that cannot be told, as when a claim is under way.

    A consumer asks: where the group is refused, the answer to an administrator of librdkafka 2 ends the process.
    """
    complaints = Complaints()
    stable = {"group.id": group, "isolation.level": "read_committed"}
    consumer = connect(Consumer, {**options, **stable}, complaints)
    try:
        return notes_in(consumer.committed([TopicPartition(name, 0) for name in topics], _ANSWER_S))
    except KafkaException as failure:
        error = error_of(failure)
        if error.code() in _NOT_TOLD:
            # Why nobody coordinates the group is told to those who poll.
            while (told := consumer.poll(0)) is not None:
                complaints(told.error())
            if complaints.denial is None:
                return None
            error = complaints.denial
        raise explained(error, f"asking consumer group {group!r} whose the topics are") from failure
    finally:
        consumer.close()


def settled(look: Look, patience_s: float) -> Notes:
    """Return the notes once no claim is under way: brokers answer a commit a moment before it is seen."""
    patience = Patience(patience_s)
    while (notes := look()) is None:
        if not patience.pause():
            raise ServiceUnreachable(
                "Kafka does not say whose the topics are: it does not answer, or a claim of them does not end.",
                "check the brokers, then run again",
            )
    return notes


def claim(
    options: Options,
    pipeline: str,
    look: Look,
    topics: Collection[str],
    ledger: str,
    patience_s: float,
    *,
    adopt: bool,
) -> Notes:
    """Write what is to be written of a ledger's claim of topics; return what counts now."""
    notes, patience = look(), Patience(patience_s)
    while notes is None or _to_write(notes, topics, ledger, adopt=adopt):
        try:
            with _transaction(options, group_of(pipeline), patience_s) as commit:
                # No earlier claim can change what is read now, and a later one fences this one's commit.
                notes = settled(look, patience_s)
                wanted = _to_write(notes, topics, ledger, adopt=adopt)
                if wanted:
                    commit(wanted)
                return {**notes, **notes_in(wanted)}
        except Fenced:
            if not patience.pause():
                raise
            notes = look()
    return notes


def _to_write(
    notes: Notes, topics: Collection[str], ledger: str, *, adopt: bool
) -> list[TopicPartition]:
    now = wall_clock()
    return [
        TopicPartition(topic, 0, now, ledger)
        for topic in topics
        if (note := notes.get(topic)) is None
        or (adopt and note.ledger != ledger)
        # Either way: a clock that was ahead must not keep a note from being written again.
        or (note.ledger == ledger and abs(now - note.written_at) > _WRITTEN_AGAIN_MS)
    ]


@contextmanager
def _transaction(
    options: Options, group: str, patience_s: float
) -> Iterator[Callable[[list[TopicPartition]], None]]:
    """Begin a claim, which fences those that began before; what is yielded commits offsets."""
    complaints = Complaints()
    consumer = connect(Consumer, {**options, "group.id": group}, complaints)
    try:
        producer = connect(
            Producer,
            {**options, "transactional.id": group, "transaction.timeout.ms": _TRANSACTION_MS},
            complaints,
        )
        producer.init_transactions(patience_s)

        def commit(offsets: list[TopicPartition]) -> None:
            producer.begin_transaction()
            member = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction(offsets, member, patience_s)
            producer.commit_transaction(patience_s)

        yield commit
    except KafkaException as failure:
        error = error_of(failure)
        if error.code() in FENCED:
            raise Fenced(f"Another claim as {group!r} began: {error.str()}.") from failure
        doing = f"noting as consumer group and transactional id {group!r} whose the topics are"
        raise explained(complaints.behind(error), doing) from failure
    finally:
        consumer.close()
