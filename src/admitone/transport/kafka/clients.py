"""Clients of librdkafka: what they say goes to one log, and a client that cannot be made says why."""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import KafkaException

from admitone.transport.kafka.complaints import Complaints, error_of, explained
from admitone.transport.kafka_options import Options

logger = logging.getLogger("admitone.kafka")
# Without a handler of its own librdkafka's remarks would end up between a command's messages.
logger.addHandler(logging.NullHandler())


def connect(kind: type[Any], options: Options, complaints: Complaints) -> Any:
    """Return a librdkafka client; it connects in the background when it is used."""
    try:
        return kind({**options, "error_cb": complaints}, logger=logger)
    except KafkaException as failure:
        raise explained(error_of(failure), "reaching the brokers") from failure
