"""What a Kafka client's error means for us."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException

from admitone.core.errors import AdmitoneError, ConfigurationError, NotFound, ServiceUnreachable

FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
)
REFUSED: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
"""The broker looked at the record and will never take it."""
NO_LEADER: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)
"""A partition changes hands, or has just come back; it passes."""
_DENIED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_UNUSABLE: Final = frozenset({KafkaError._INVALID_ARG, KafkaError.INVALID_TRANSACTION_TIMEOUT})
_SILENCE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._MSG_TIMED_OUT})
_DENIALS_THAT_COUNT: Final = 3
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
NEVER_TAKEN: Final = _GONE | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}  # fmt: skip
"""The broker looked at the topic, or at the client that publishes, and took nothing."""


class Complaints:
    """What a client hears from its brokers in the background: the reason behind a time-out."""

    def __init__(self) -> None:
        self._denials = 0
        self.denial: KafkaError | None = None
        """The last refusal of what this user wanted."""
        self._other: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Take a complaint; clients call this while they are polled."""
        if error.code() in _DENIED:
            self._denials += 1
            self.denial = error
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._other = error

    @property
    def denied(self) -> bool:
        """Whether it is no use to go on trying."""
        return self._denials >= _DENIALS_THAT_COUNT

    def clear(self) -> None:
        """Forget what was heard before."""
        self._denials, self.denial, self._other = 0, None, None

    def behind(self, error: KafkaError) -> KafkaError:
        """Return why there was no answer where that is known, else the error itself."""
        return (self.denial or self._other or error) if error.code() in _SILENCE else error


def error_of(exception: KafkaException) -> KafkaError:
    """Return the error an exception carries."""
    error: KafkaError = exception.args[0]
    return error


def explained(error: KafkaError, doing: str) -> AdmitoneError:
    """Return an error of ours that says what failed and what to try."""
    if error.code() in _DENIED:
        return ConfigurationError(
            f"Kafka refuses {doing}: {error.str().strip()}.",
            "check [transport.kafka], the certificates and what this user may do",
        )
    if error.code() in _UNUSABLE:
        return ConfigurationError(
            f"Kafka's client cannot be used for {doing}: {error.str().strip()}.",
            "mend [transport.kafka]",
        )
    if error.code() in _GONE:
        return NotFound(
            f"A topic is not there any more while {doing}: {error.str().strip()}.",
            "admitone topics check",
        )
    return ServiceUnreachable(
        f"Kafka does not answer while {doing}: {error.str().strip()}.",
        "check [transport.kafka] bootstrap and that the brokers run, then run again",
    )
