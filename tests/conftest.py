"""Services that several suites share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.kafka import KafkaBroker
from tests.services.postgres import PostgresServer, find_binaries

_MISSING = "PostgreSQL is not installed: run scripts/setup.sh as root"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL without fsync: nothing that is tested on it ends with a crash of the machine."""
    if find_binaries() is None:
        pytest.fail(_MISSING)
    server = PostgresServer(durable=False)
    yield server
    server.close()


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A durable PostgreSQL that one test may kill."""
    if find_binaries() is None:
        pytest.fail(_MISSING)
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty schema, for one test."""
    return postgres_server.new_schema()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """A Kafka that stays up; each test makes topics and transactional ids of its own."""
    broker = KafkaBroker(secure=True)
    yield broker
    broker.close()


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A Kafka that one test may kill or pause."""
    broker = KafkaBroker()
    yield broker
    broker.close()
