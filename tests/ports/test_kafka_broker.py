"""The broker of the tests does what tests count on, and its proxy strikes where it is told to."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.servers.kafka import PASSWORD, USER, KafkaBroker, lasting_port, read_committed
from tests.servers.kafka_java import jars
from tests.servers.kafka_proxy import ALWAYS, Api, Fault, KafkaProxy

_numbers = count(1)

OF_A_PUBLISH = (Api.PRODUCE, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN)


@pytest.fixture
def proxy(kafka_broker: KafkaBroker) -> Iterator[KafkaProxy]:
    proxy = KafkaProxy(kafka_broker)
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def secure_broker() -> Iterator[KafkaBroker]:
    broker = KafkaBroker(secure=True)
    yield broker
    broker.close()


def new_producer(bootstrap: str, **settings: str | int) -> Producer:
    options = {name.replace("_", "."): value for name, value in settings.items()}
    name = f"producer-{next(_numbers)}"
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "reconnect.backoff.max.ms": 100,
            "log_level": 0,
            **options,
        }
    )
    producer.init_transactions(20)
    return producer


def publish(producer: Producer, topic: str, *values: bytes, timeout: float = 20) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(timeout)


def values(bootstrap: str, topic: str, *, whole: bool = True) -> list[bytes | None]:
    return [record.value() for record in read_committed(bootstrap, topic, whole=whole)]


def wait_until(reached: Callable[[], bool], seconds: float = 15) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, f"not reached within {seconds} s"
        time.sleep(0.05)


def test_a_port_is_held_until_its_server_listens_on_it() -> None:
    port = lasting_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    socket.create_server(("127.0.0.1", port)).close()


def test_a_killed_broker_comes_back_with_its_data_and_its_open_transactions(
    own_broker: KafkaBroker,
) -> None:
    topic = own_broker.new_topic()
    publish(new_producer(own_broker.bootstrap), topic, b"committed")
    producer = new_producer(own_broker.bootstrap)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(10)

    own_broker.kill()
    with pytest.raises(KafkaException):
        own_broker.administrator().list_topics(timeout=0.5)
    own_broker.restart()

    assert values(own_broker.bootstrap, topic, whole=False) == [b"committed"]
    producer.commit_transaction(20)
    assert values(own_broker.bootstrap, topic) == [b"committed", b"open"]


def test_a_paused_broker_lets_clients_time_out_and_goes_on_when_resumed(
    own_broker: KafkaBroker,
) -> None:
    topic = own_broker.new_topic()
    producer = new_producer(own_broker.bootstrap)
    producer.begin_transaction()
    producer.produce(topic, b"waits")
    producer.flush(10)

    own_broker.pause()
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(1)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    own_broker.resume()

    producer.commit_transaction(20)
    assert values(own_broker.bootstrap, topic) == [b"waits"]


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("api", OF_A_PUBLISH, ids=lambda api: api.name)
def test_a_request_that_is_struck_once_is_asked_again_and_done_once(
    api: Api, fault: Fault, kafka_broker: KafkaBroker, proxy: KafkaProxy
) -> None:
    topic = kafka_broker.new_topic()
    proxy.arm(api, fault)

    publish(new_producer(kafka_broker.proxied), topic, b"one", b"two")

    assert proxy.struck == {(api, fault): 1}
    assert values(kafka_broker.bootstrap, topic) == [b"one", b"two"]


@pytest.mark.parametrize("fault", Fault)
def test_a_reader_whose_fetch_is_struck_misses_nothing(
    fault: Fault, kafka_broker: KafkaBroker, proxy: KafkaProxy
) -> None:
    topic = kafka_broker.new_topic()
    publish(new_producer(kafka_broker.bootstrap), topic, b"one", b"two")
    proxy.arm(Api.FETCH, fault)

    assert values(kafka_broker.proxied, topic) == [b"one", b"two"]
    assert proxy.struck == {(Api.FETCH, fault): 1}


def test_a_commit_whose_answers_are_lost_fails_for_the_client_and_is_done(
    kafka_broker: KafkaBroker, proxy: KafkaProxy
) -> None:
    topic = kafka_broker.new_topic()
    commit_without_answer(Fault.AFTER, topic, kafka_broker, proxy)
    assert values(kafka_broker.bootstrap, topic) == [b"one"]


def test_a_commit_that_never_arrives_fails_for_the_client_and_is_not_done(
    kafka_broker: KafkaBroker, proxy: KafkaProxy
) -> None:
    topic = kafka_broker.new_topic()
    commit_without_answer(Fault.BEFORE, topic, kafka_broker, proxy)
    with pytest.raises(TimeoutError):
        read_committed(kafka_broker.bootstrap, topic, timeout=1)


def commit_without_answer(fault: Fault, topic: str, broker: KafkaBroker, proxy: KafkaProxy) -> None:
    producer = new_producer(broker.proxied)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    producer.flush(10)
    proxy.arm(Api.END_TXN, fault, ALWAYS)
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(2)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert proxy.struck[Api.END_TXN, fault] >= 1


def test_what_happens_meanwhile_happens_before_the_client_learns_of_its_commit(
    kafka_broker: KafkaBroker, proxy: KafkaProxy
) -> None:
    topic = kafka_broker.new_topic()
    producer = new_producer(kafka_broker.proxied)
    seen: list[list[bytes | None]] = []
    proxy.meanwhile = lambda: seen.append(values(kafka_broker.bootstrap, topic))
    proxy.arm(Api.END_TXN, Fault.DELAYED)
    proxy.delay = 1.0

    begun = time.monotonic()
    publish(producer, topic, b"one")

    assert time.monotonic() - begun > proxy.delay
    assert seen == [[b"one"]]


def test_a_client_survives_that_all_its_connections_are_cut(
    kafka_broker: KafkaBroker, proxy: KafkaProxy
) -> None:
    topic = kafka_broker.new_topic()
    producer = new_producer(kafka_broker.proxied)
    producer.begin_transaction()
    producer.produce(topic, b"one")
    producer.flush(10)

    assert proxy.cut_all() > 0

    producer.commit_transaction(20)
    assert values(kafka_broker.bootstrap, topic) == [b"one"]


def test_an_abandoned_transaction_ends_when_its_time_is_up(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic()
    abandoned = new_producer(kafka_broker.bootstrap, transaction_timeout_ms=2_000)
    abandoned.begin_transaction()
    abandoned.produce(topic, b"never")
    abandoned.flush(10)
    publish(new_producer(kafka_broker.bootstrap), topic, b"hidden")

    assert values(kafka_broker.bootstrap, topic, whole=False) == []
    with pytest.raises(TimeoutError, match=f"partitions \\[0\\] of {topic} do not end"):
        read_committed(kafka_broker.bootstrap, topic, timeout=0.3)
    assert values(kafka_broker.bootstrap, topic) == [b"hidden"]


def test_what_is_older_than_its_retention_goes_within_seconds(kafka_broker: KafkaBroker) -> None:
    topic = kafka_broker.new_topic(retention_ms="100")
    publish(new_producer(kafka_broker.bootstrap), topic, b"one")
    place = TopicPartition(topic, 0)
    administrator = kafka_broker.administrator()

    def begins_at() -> int:
        return administrator.list_offsets({place: OffsetSpec.earliest()})[place].result(10).offset

    wait_until(lambda: begins_at() == 2)  # the record and the mark of its commit


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_password_opens_the_door_and_another_does_not(
    mechanism: str, protocol: str, secure_broker: KafkaBroker
) -> None:
    where = secure_broker.bootstrap_of(protocol)
    login = {
        "security_protocol": protocol,
        "sasl_mechanism": mechanism,
        "sasl_username": USER,
        "sasl_password": PASSWORD,
        "ssl_ca_location": str(secure_broker.certificates / "authority.pem"),
    }
    topic = secure_broker.new_topic()
    publish(new_producer(where, **login), topic, b"one")
    assert values(secure_broker.bootstrap, topic) == [b"one"]

    with pytest.raises(KafkaException, match=r"[Aa]uthentication"):
        reach(where, **{**login, "sasl_password": "closesesame"})


def test_a_listener_with_tls_asks_both_sides_for_a_certificate(secure_broker: KafkaBroker) -> None:
    where = secure_broker.bootstrap_of("SSL")
    certificates = secure_broker.certificates
    trust = {"security_protocol": "SSL", "ssl_ca_location": str(certificates / "authority.pem")}
    own = {
        "ssl_certificate_location": str(certificates / "client.pem"),
        "ssl_key_location": str(certificates / "client.key"),
    }
    topic = secure_broker.new_topic()
    publish(new_producer(where, **trust, **own), topic, b"one")
    assert values(secure_broker.bootstrap, topic) == [b"one"]

    with pytest.raises(KafkaException):
        reach(where, **trust)
    with pytest.raises(KafkaException, match="certificate verify failed"):
        reach(where, security_protocol="SSL", **own)


def reach(bootstrap: str, **settings: str) -> None:
    """Raise the client's own reason when a broker cannot be reached."""
    options = {name.replace("_", "."): value for name, value in settings.items()}
    reasons: list[KafkaError] = []
    producer = Producer(
        {"bootstrap.servers": bootstrap, "error_cb": reasons.append, "log_level": 0, **options}
    )
    while not reasons:
        with contextlib.suppress(KafkaException):
            producer.list_topics(timeout=0.2)
            return
        producer.poll(0)
    raise KafkaException(reasons[0])


def test_without_jars_and_maven_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "env", "dirname", "mkdir", "flock"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(os.environ, "PATH", str(programs))

    with pytest.raises(FileNotFoundError, match="apt-get install maven"):
        jars()
