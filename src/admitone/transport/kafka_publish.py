"""Publishing to Kafka: one fenced producer, one transaction for each append.

Only the request to commit can make a transaction readable. So whatever fails before it has certainly written nothing;
whatever fails in it may have, and is for the boundary to find out behind a new fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from admitone.core.errors import (
    AdmitoneError,
    Fenced,
    NotWritten,
    RecordsRefused,
    ServiceUnreachable,
)
from admitone.transport.kafka_clients import logger
from admitone.transport.kafka_errors import FENCED, REFUSED, error_of, explained
from admitone.transport.port import Appended

Report = Callable[[KafkaError | None, Message], None]
_SERVED_EVERY = 10_000


class KafkaProducer:
    """One holder of a producer name; good for as long as nothing fails and nobody takes the name over."""

    def __init__(
        self,
        options: dict[str, str | int],
        name: str,
        *,
        delivery_timeout_ms: int,
        transaction_timeout_ms: int,
    ) -> None:
        self._name = name
        self._patience_s = delivery_timeout_ms / 1_000
        self._usable = True
        self._producer = Producer(
            {
                **options,
                "transactional.id": f"admitone:{name}",
                "transaction.timeout.ms": transaction_timeout_ms,
                "delivery.timeout.ms": delivery_timeout_ms,
                "linger.ms": 5,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 2_000_000,
                # The broker, not the client, says how large a record may be.
                "message.max.bytes": 64 << 20,
            },
            logger=logger,
        )
        try:
            self._producer.init_transactions(self._patience_s)
        except KafkaException as failure:
            self.close()
            raise explained(error_of(failure), f"taking over producer {name!r}") from failure

    def append(self, records: dict[str, pa.Table]) -> Appended:
        """Append to several topics in one transaction."""
        if not self._usable:
            raise NotWritten(f"Producer {self._name!r} failed before.", "take its name over again")
        try:
            return self._append(records)
        except RecordsRefused:
            raise
        except BaseException:
            self._usable = False
            raise

    def close(self) -> None:
        """Let go of the connections; what is not committed never will be."""
        self._usable = False
        self._producer.purge()
        self._producer.close()

    def _append(self, records: dict[str, pa.Table]) -> Appended:
        parts = {topic: _Part(table) for topic, table in records.items()}
        self._begin()
        self._send(parts)
        refused = {topic: part.refused() for topic, part in parts.items()}
        if any(refused.values()) or any(part.failed() for part in parts.values()):
            failure = next(filter(None, (part.failed() for part in parts.values())), None)
            self._abort(failure)
            suspects = {topic: rows for topic, rows in refused.items() if rows}
            raise self._refusal(records, suspects)
        self._commit()
        return Appended(
            {topic: part.offsets() for topic, part in parts.items()},
            max(part.appended_at() for part in parts.values()),
        )

    def _send(self, parts: dict[str, _Part]) -> None:
        """Hand everything over and wait until each record is delivered or has failed."""
        try:
            self._produce(parts)
            self._producer.flush()
        except KafkaException as failure:
            raise self._not_written(error_of(failure)) from failure

    def _produce(self, parts: dict[str, _Part]) -> None:
        producer = self._producer
        for topic, part in parts.items():
            for row, (partition, key, value, headers, report) in enumerate(part.lines()):
                while True:
                    try:
                        producer.produce(
                            topic, value, key, partition, on_delivery=report, headers=headers
                        )
                    except BufferError:
                        producer.poll(0.1)
                        continue
                    except KafkaException as failure:
                        part.not_sent(row, partition, error_of(failure))
                    break
                if row % _SERVED_EVERY == 0:
                    producer.poll(0)

    def _begin(self) -> None:
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            raise self._not_written(error_of(failure)) from failure

    def _abort(self, reason: KafkaError | None) -> None:
        """Give the open transaction up; `reason` is what made it hopeless, None when only records were refused."""
        try:
            self._producer.abort_transaction(self._patience_s)
        except KafkaException as failure:
            raise self._not_written(error_of(failure)) from failure
        if reason is not None:
            raise self._not_written(reason)

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction(self._patience_s)
        except KafkaException as failure:
            error = error_of(failure)
            if error.code() in FENCED:
                raise self._fenced(error) from failure
            raise ServiceUnreachable(
                f"Kafka did not say whether it committed what {self._name!r} published: {error.str()}.",
                "check that the brokers run, then run again, which looks for it",
            ) from failure

    def _refusal(self, records: dict[str, pa.Table], suspects: dict[str, list[int]]) -> Exception:
        """Return which of the records are refused when they travel alone: a refusal names a whole batch."""
        refused = {
            topic: sorted(self._refused_alone(records, topic, rows))
            for topic, rows in suspects.items()
        }
        refused = {topic: rows for topic, rows in refused.items() if rows}
        if not refused:
            return NotWritten(
                "The broker refuses records only when they travel together.",
                "raise max.message.bytes of the topic above 1 MB",
            )
        count = sum(map(len, refused.values()))
        return RecordsRefused(f"The broker refuses {count} records.", refused)

    def _refused_alone(
        self, records: dict[str, pa.Table], topic: str, rows: list[int]
    ) -> Iterator[int]:
        part = _Part(records[topic].take(pa.array(rows)))
        self._begin()
        self._send({topic: part})
        failed = part.failed()
        refused = part.refused()
        self._abort(failed)
        if not refused:
            return
        if len(rows) == 1:
            yield rows[0]
            return
        half = len(rows) // 2
        yield from self._refused_alone(records, topic, rows[:half])
        yield from self._refused_alone(records, topic, rows[half:])

    def _not_written(self, error: KafkaError) -> AdmitoneError:
        if error.code() in FENCED:
            return self._fenced(error)
        told = explained(error, f"publishing as {self._name!r}")
        return NotWritten(told.problem, told.remedy)

    def _fenced(self, error: KafkaError) -> Fenced:
        return Fenced(f"Producer {self._name!r} was fenced: {error.str()}.")


class _Part:
    """What goes to one topic, with the broker's answer for each record, in the order handed over."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._partitions = table["partition"].to_numpy()
        self._answers: dict[int, list[int | KafkaError]] = {
            number: [] for number in np.unique(self._partitions).tolist()
        }
        self._appended_at = 0
        self._unsent: list[tuple[int, int, KafkaError]] = []

    def lines(
        self,
    ) -> Iterator[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes]], Report]]:
        """Yield what to produce, each with the function that takes its delivery report."""
        headers = self._table["headers"].combine_chunks()
        entries = headers.flatten()
        pairs = list(zip(entries.field(0).to_pylist(), entries.field(1).to_pylist(), strict=True))
        lengths = np.asarray(headers.value_lengths().fill_null(0))
        edges = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        reports = {number: self._report(number) for number in self._answers}
        for partition, key, value, start, end in zip(
            self._partitions.tolist(),
            self._table["key"].to_pylist(),
            self._table["value"].to_pylist(),
            edges[:-1],
            edges[1:],
            strict=True,
        ):
            yield partition, key, value, pairs[start:end], reports[partition]

    def not_sent(self, row: int, partition: int, error: KafkaError) -> None:
        """Note a record that the client itself did not take."""
        self._unsent.append((row, partition, error))

    def refused(self) -> list[int]:
        """Return the rows that came back with a refusal of the record itself."""
        return [
            row
            for row, answer in self._by_row()
            if isinstance(answer, KafkaError) and answer.code() in REFUSED
        ]

    def failed(self) -> KafkaError | None:
        """Return an error that says something else than that a record was refused, the most telling first."""
        errors = [answer for _, answer in self._by_row() if isinstance(answer, KafkaError)]
        refusals = [error for error in errors if error.code() in REFUSED]
        others = [error for error in errors if error.code() not in REFUSED]
        if refusals:
            # What else was in the queue is purged together with a refused record.
            others = [error for error in others if error.code() not in _PURGED]
        others.sort(key=lambda error: error.code() not in FENCED)
        return others[0] if others else None

    def offsets(self) -> pa.Int64Array:
        """Return where each record went."""
        given = np.empty(len(self._partitions), dtype=np.int64)
        for number, answers in self._answers.items():
            given[self._partitions == number] = answers
        return pa.array(given)

    def appended_at(self) -> int:
        """Return the log's time of the last record."""
        return self._appended_at

    def _report(self, partition: int) -> Report:
        # Reports of one partition come in the order of its records.
        answer = self._answers[partition].append

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                answer(error)
                return
            answer(message.offset())
            self._appended_at = max(self._appended_at, message.timestamp()[1])

        return report

    def _by_row(self) -> Iterator[tuple[int, int | KafkaError]]:
        unsent = {row: error for row, _, error in self._unsent}
        waiting = {number: iter(answers) for number, answers in self._answers.items()}
        for row, partition in enumerate(self._partitions.tolist()):
            yield row, unsent[row] if row in unsent else next(waiting[partition])


_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE})
