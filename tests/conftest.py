"""Services that several suites share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, find_binaries
from tests.servers.redis import RedisServer

# The tests start many short sessions: optimising what they run once takes half the time of their JVMs.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
# Tables are as wide as what they say, whatever terminal the tests were started from.
os.environ.pop("COLUMNS", None)

pytest_plugins = ["tests.support.service_fixtures", "tests.support.store_fixtures"]

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


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis that stays up; each test uses a database of its own."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis that one test may kill."""
    server = RedisServer()
    yield server
    server.close()
