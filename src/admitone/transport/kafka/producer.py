"""Publishing to Kafka: one fenced producer, one transaction for each append.

Only a request to commit can make a transaction readable, but it need not be the one that was meant: a client that knows
no transaction version 2 repeats a request that gets no answer under the same epoch, and the broker may get the first
one much later, in the middle of another transaction, which it then ends. So nothing that is to be committed begins
after a transaction that more than one request may have ended (`NeedsFence`), and what fails once a transaction has
begun is for the boundary to find out behind a new fence, unless the broker looked at it and took nothing.

A refusal ends the transaction and names, at best, the records of one batch. Which records are refused is then found by
sending them again in smaller and smaller pieces, in transactions that are never committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from admitone.core.errors import (
    AdmitoneError,
    Fenced,
    NeedsFence,
    NotWritten,
    RecordsRefused,
    ServiceUnreachable,
)
from admitone.infra.clock import Patience
from admitone.infra.crash_points import crash_point
from admitone.infra.memory import garbage_collection_paused
from admitone.transport.kafka.clients import connect
from admitone.transport.kafka.complaints import (
    FENCED,
    NEVER_TAKEN,
    REFUSED,
    Complaints,
    error_of,
    explained,
)
from admitone.transport.kafka.outgoing import Part, Sizes, says_nothing, telling
from admitone.transport.kafka_options import Options
from admitone.transport.port import Appended

_SERVED_EVERY = 10_000
_BATCH_BYTES = 1_000_000
_PASSED_EASILY = 8
_ABORT_STEP_S = 0.5
_RETRY_MS = 300
_ASKED_ONCE_S = 0.2
"""A transaction that ended sooner was ended by one request: the client waits for its backoff, give or take a fifth,
before it repeats one."""


class KafkaProducer:
    """One holder of a producer name; good for as long as nothing fails and nobody takes the name over."""

    def __init__(
        self,
        options: Options,
        name: str,
        *,
        delivery_timeout_ms: int,
        transaction_timeout_ms: int,
        together: int | None = None,
    ) -> None:
        self._name = name
        self._patience_s = delivery_timeout_ms / 1_000
        self._usable = True
        self.together = together
        """How many bytes may travel in one batch, where brokers take less than the client would send."""
        self._ended_once = True
        """Whether the broker was certainly asked only once to end the last transaction."""
        self._skipped = False
        """Whether a refusal left a gap in the sequence numbers, which the client closes with the next failure."""
        self._complaints = Complaints()
        self._producer = connect(
            Producer,
            {
                **options,
                "transactional.id": f"admitone:{name}",
                "transaction.timeout.ms": transaction_timeout_ms,
                "delivery.timeout.ms": delivery_timeout_ms,
                "linger.ms": 5,
                "retry.backoff.ms": _RETRY_MS,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 2_000_000,
                "batch.size": _BATCH_BYTES,
                # The broker, not the client, says how large a record may be.
                "message.max.bytes": 64 << 20,
            },
            self._complaints,
        )
        try:
            self._producer.init_transactions(self._patience_s)
        except KafkaException as failure:
            error = self._reason(error_of(failure))
            self.close()
            raise explained(error, f"taking over producer {name!r}") from failure

    def append(self, records: dict[str, pa.Table]) -> Appended:
        """Append to several topics in one transaction."""
        if not self._usable:
            raise NotWritten(f"Producer {self._name!r} failed before.", "take its name over again")
        try:
            while True:
                with garbage_collection_paused():
                    appended = self._append(records)
                if appended is not None:
                    return appended
        except (RecordsRefused, NeedsFence):
            raise
        except BaseException:
            self._usable = False
            raise

    def close(self) -> None:
        """Let go of the connections; what is not committed never will be."""
        self._usable = False
        # Closing it would wait for brokers that may be gone, and leave the client trying in the background.
        del self._producer

    def _append(self, records: dict[str, pa.Table]) -> Appended | None:
        """Append, or return nothing when it is worth another try with less in a batch."""
        if not self._ended_once:
            raise NeedsFence(
                f"The broker may have been asked more than once to end a transaction of {self._name!r}.",
                "take its name over again",
            )
        parts = [Part(topic, table) for topic, table in records.items()]
        self._begin()
        self._send(parts, self.together)
        if any(part.failed for part in parts):
            if self._failure(parts):
                self._sort_out(records)
            return None
        crash_point("kafka.delivered")
        self._commit()
        offsets = {part.topic: part.offsets() for part in parts}
        if any(given.null_count for given in offsets.values()):
            raise ServiceUnreachable(
                f"Kafka took what {self._name!r} published and did not say where it is.",
                "run again, which looks for it",
            )
        return Appended(offsets, max(part.appended_at for part in parts))

    def _failure(self, parts: list[Part]) -> bool:
        """Give a failed transaction up; return whether it was for a refusal, or is only worth another try."""
        self._abort()
        error = min((error for part in parts for error in part.errors), key=telling)
        refused = error.code() in REFUSED
        if not refused and not (self._skipped and says_nothing(error)):
            raise self._not_written(error) if error.code() in NEVER_TAKEN else self._unknown(error)
        self._skipped = refused
        return refused

    def _send(self, parts: list[Part], together: int | None = None) -> None:
        """Hand everything over and wait until each record is delivered, or one has failed."""
        try:
            for part in parts:
                for start, end in part.pieces(together):
                    self._produce(part, start, end)
                    if together is not None:
                        self._wait(parts)
                    if part.failed:
                        return
            self._wait(parts)
        except KafkaException as failure:
            raise self._unknown(error_of(failure)) from failure

    def _produce(self, part: Part, start: int, end: int) -> None:
        producer, topic = self._producer, part.topic
        lines = part.lines(start, end)
        for row, (partition, key, value, headers, report) in enumerate(lines):
            while True:
                try:
                    producer.produce(
                        topic, value, key, partition, on_delivery=report, headers=headers
                    )
                except BufferError:
                    producer.poll(0.1)
                    continue
                except KafkaException as failure:
                    part.errors.append(error_of(failure))
                break
            if row % _SERVED_EVERY == 0:
                producer.poll(0)
                if part.failed:
                    return

    def _wait(self, parts: list[Part]) -> None:
        # Once a record has failed nothing more is sent: the rest would wait for its time-out.
        while self._producer.flush(0.1) and not any(part.failed for part in parts):
            pass

    def _begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            raise self._not_written(error_of(failure)) from failure

    def _abort(self) -> None:
        patience = Patience(self._patience_s)
        while True:
            try:
                with self._ending():
                    self._producer.abort_transaction(_ABORT_STEP_S)
                return
            except KafkaException as failure:
                error = error_of(failure)
                if not error.retriable() or patience.is_over:
                    raise self._unknown(error) from failure
            # What fails while the transaction is given up is queued again and would wait for its time-out.
            self._producer.purge(in_flight=False)

    def _commit(self) -> None:
        try:
            with self._ending():
                self._producer.commit_transaction(self._patience_s)
        except KafkaException as failure:
            error = error_of(failure)
            if error.code() in FENCED:
                raise self._fenced(error) from failure
            raise ServiceUnreachable(
                f"Kafka did not say whether it committed what {self._name!r} published: {error.str()}.",
                "check that the brokers run, then run again, which looks for it",
            ) from failure

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Note whether one request ended a transaction."""
        ended_once, self._ended_once = self._ended_once, False
        began = time.monotonic()
        yield
        self._ended_once = ended_once and time.monotonic() - began < _ASKED_ONCE_S

    def _sort_out(self, records: dict[str, pa.Table]) -> None:
        """Say which records are refused; where none is, note how few bytes may travel together."""
        refused, together = {}, self.together or _BATCH_BYTES
        for topic, table in records.items():
            rows, least = self._refused(topic, table)
            together = min(together, least)
            if rows:
                refused[topic] = rows
        if refused:
            count = sum(map(len, refused.values()))
            raise RecordsRefused(f"The broker refuses {count} records.", refused)
        self.together = together // 2
        if not self.together:
            raise NotWritten(
                "The broker refuses records at one time and takes them at another.",
                "compare max.message.bytes of the topics on all brokers",
            )

    def _refused(self, topic: str, table: pa.Table) -> tuple[list[int], int]:
        """Return the rows that are refused alone, and the least bytes that were refused only together."""
        refused: list[int] = []
        sizes = Sizes(table)
        least = together = most = self.together or _BATCH_BYTES
        start = passed = 0
        while start < table.num_rows:
            if not passed:
                self._begin()
            end = sizes.end(start, together)
            part = Part(topic, table.slice(start, end - start))
            self._send([part])
            if not part.failed:
                start, passed = end, passed + 1
                if passed % _PASSED_EASILY == 0:
                    together = min(2 * together, most)
                continue
            passed = 0
            if not self._failure([part]):
                continue
            if end == start + 1:
                refused.append(start)
                start = end
            else:
                together = sizes.between(start, end) // 2
                least = min(least, 2 * together)
        if passed:
            self._abort()
        return refused, least

    def _not_written(self, error: KafkaError) -> AdmitoneError:
        if error.code() in FENCED:
            return self._fenced(error)
        told = explained(self._reason(error), f"publishing as {self._name!r}")
        return NotWritten(told.problem, told.remedy)

    def _unknown(self, error: KafkaError) -> AdmitoneError:
        """Return what to say where the records may be on the log: the worker has to look."""
        if error.code() in FENCED:
            return self._fenced(error)
        told = explained(self._reason(error), f"publishing as {self._name!r}")
        return ServiceUnreachable(told.problem, told.remedy)

    def _reason(self, error: KafkaError) -> KafkaError:
        # A client that is done for says so again at every call.
        with suppress(KafkaException):
            self._producer.poll(0)
        return self._complaints.behind(error)

    def _fenced(self, error: KafkaError) -> Fenced:
        return Fenced(f"Producer {self._name!r} was fenced: {error.str()}.")
