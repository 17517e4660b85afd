"""Questions to the brokers about topics, repeated until one of them answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from admitone.infra.clock import Patience
from admitone.transport.kafka.clients import connect
from admitone.transport.kafka.complaints import NO_LEADER, Complaints, error_of, explained
from admitone.transport.kafka_options import Options

Ask = Callable[[AdminClient], Mapping[Any, Any]]
_PASSES = NO_LEADER | {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}


class Administrator:
    """A client that asks; nothing is connected before it does."""

    def __init__(self, options: Options, patience_s: float) -> None:
        self._options, self._patience_s = options, patience_s
        self._complaints = Complaints()

    def answers(self, ask: Ask, doing: str) -> dict[Any, Any]:
        """Return what the brokers say about each thing that exists."""
        try:
            return self.asked(ask)
        except KafkaException as failure:
            raise explained(error_of(failure), doing) from failure

    def asked(self, ask: Ask) -> dict[Any, Any]:
        """Ask until there is an answer: a question that was cut off, or met with silence, is asked again."""
        patience = Patience(self._patience_s)
        while True:
            try:
                return dict(self._existing(ask(self._client)))
            except KafkaException as failure:
                error = error_of(failure)
                if error.code() not in _PASSES or not patience.pause():
                    raise KafkaException(self._complaints.behind(error)) from failure
                if error.code() == KafkaError._TIMED_OUT:
                    self.ask_others()

    def ask_others(self) -> None:
        """Begin with a new client: one that was not answered goes on asking the same broker."""
        vars(self).pop("_client", None)

    @cached_property
    def _client(self) -> Any:
        return connect(AdminClient, self._options, self._complaints)

    def _existing(self, futures: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
        for thing, future in futures.items():
            try:
                yield thing, self._answer(future)
            except KafkaException as failure:
                if error_of(failure).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def _answer(self, future: Any) -> Any:
        """Wait for a broker's answer, unless it is sure that none will come."""
        self._complaints.clear()
        patience = Patience(self._patience_s)
        while True:
            try:
                return future.result(0.1)
            except TimeoutError:
                self._client.poll(0)
                if self._complaints.denied or patience.is_over:
                    silence = KafkaError(KafkaError._TIMED_OUT)
                    raise KafkaException(self._complaints.behind(silence)) from None
