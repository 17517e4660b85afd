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
_GONE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


def error_of(exception: KafkaException) -> KafkaError:
    """Return the error an exception carries."""
    error: KafkaError = exception.args[0]
    return error


def explained(error: KafkaError, doing: str) -> AdmitoneError:
    """Return an error of ours that says what failed and what to try."""
    if error.code() in _DENIED:
        return ConfigurationError(
            f"Kafka refuses {doing}: {error.str()}.",
            "check [transport.kafka], the certificates and what this user may do",
        )
    if error.code() in _GONE:
        return NotFound(
            f"A topic is not there any more while {doing}: {error.str()}.",
            "admitone topics check",
        )
    return ServiceUnreachable(
        f"Kafka does not answer while {doing}: {error.str()}.",
        "check [transport.kafka] bootstrap and that the brokers run, then run again",
    )
