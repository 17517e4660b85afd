"""Brokers that are down, paused or cut off, and predecessors that wake up: what is certain, and what is found out."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from admitone.cli import main
from admitone.core.errors import (
    AdmitoneError,
    ConfigurationError,
    Fenced,
    NeedsFence,
    NotWritten,
    RecordsRefused,
    ServiceUnreachable,
)
from admitone.infra.crash_points import arm
from admitone.settings import Settings, load_settings
from admitone.transport.kafka.kafka_log import KafkaLog
from admitone.transport.kafka.producer import KafkaProducer
from admitone.transport.port import Topic
from tests.faults.harness import Fault as CrashPoint
from tests.faults.harness import processes, stopped
from tests.servers.appender import Appender
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_proxy import ALWAYS, Api, Fault, KafkaProxy
from tests.servers.kafka_records import (
    SHORT,
    new_name,
    plainly,
    publish,
    short_log,
    table,
    values_of,
)

NOWHERE = "127.0.0.1:1"
QUICK = {"delivery_timeout": 1_500, "transaction_timeout": 3_000, "look_timeout": 5_000}


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """A Kafka that these tests pause."""
    broker = KafkaBroker()
    yield broker
    broker.close()


@pytest.fixture
def proxy(broker: KafkaBroker) -> Iterator[KafkaProxy]:
    proxy = KafkaProxy(broker)
    yield proxy
    proxy.close()


@pytest.fixture
def log(broker: KafkaBroker) -> Iterator[KafkaLog]:
    """The log as a successor, or somebody who compares, sees it: not through the proxy."""
    log = short_log(broker)
    yield log
    log.close()


@pytest.fixture
def through(broker: KafkaBroker, proxy: KafkaProxy) -> Iterator[KafkaLog]:
    """The log as it is seen through the proxy."""
    log = short_log(broker, bootstrap=broker.proxied, **QUICK)
    yield log
    log.close()


USES: dict[str, Callable[[KafkaLog], object]] = {
    "cluster": lambda log: log.cluster,
    "create_topic": lambda log: log.create_topic("t", 1),
    "describe": lambda log: log.describe(["t"]),
    "topic": lambda log: log.topic("t"),
    "init_producer": lambda log: log.init_producer("p"),
}


@pytest.mark.parametrize("use", USES)
def test_a_broker_that_is_down_is_said_to_be_in_a_bounded_time(use: str) -> None:
    log = KafkaLog(Settings(transport={"kafka": {"bootstrap": NOWHERE, **QUICK}}))
    began = time.monotonic()
    with pytest.raises(ServiceUnreachable, match=r"127\.0\.0\.1:1.*Connection refused.*bootstrap"):
        USES[use](log)

    assert time.monotonic() - began < 5


@pytest.mark.parametrize("command", [["ingest", "-"], ["topics", "check"]], ids=" ".join)
def test_commands_end_with_4_when_the_broker_is_down(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "admitone.toml").write_text(
        f'[transport]\nkind = "kafka"\n[transport.kafka]\nbootstrap = "{NOWHERE}"\n'
        'delivery_timeout = "1s"\n'
    )
    monkeypatch.setattr(sys, "argv", ["admitone", *command, "--home", str(tmp_path)])
    monkeypatch.setattr(sys, "stdin", (tmp_path / "admitone.toml").open())
    with pytest.raises(SystemExit) as ended:
        main()

    said = capsys.readouterr().err
    assert ended.value.code == 4, said
    assert "Connection refused" in said
    assert "check [transport.kafka] bootstrap" in said
    assert "Traceback" not in said


def test_timeouts_that_contradict_each_other_are_refused_at_start(tmp_path: Path) -> None:
    for wrong in (
        {"delivery_timeout": "70s"},
        {"transaction_timeout": "90s"},
    ):
        with pytest.raises(ConfigurationError, match="transaction_timeout"):
            load_settings(tmp_path, transport={"kafka": wrong})


def test_a_transaction_timeout_the_broker_does_not_allow_is_a_matter_of_configuration(
    broker: KafkaBroker,
) -> None:
    log = short_log(broker, transaction_timeout=3_600_000, look_timeout=3_700_000)
    with pytest.raises(ConfigurationError, match=r"max\.transaction\.timeout\.ms"):
        log.init_producer(new_name())


def test_a_broker_that_is_paused_before_the_records_arrive_has_none(
    broker: KafkaBroker, log: KafkaLog
) -> None:
    topic, name = log.create_topic(new_name(), 1), new_name()
    publish(log, topic.name, b"before")
    epoch = log.init_producer(name)
    broker.pause()
    try:
        began = time.monotonic()
        with pytest.raises(ServiceUnreachable):
            log.append(name, epoch, {topic.name: table([b"lost"])})
        assert time.monotonic() - began < 5 * SHORT["delivery_timeout"] / 1_000
        with pytest.raises(NotWritten, match="failed before"):
            log.append(name, epoch, {topic.name: table([b"lost"])})
        with pytest.raises(ServiceUnreachable):
            log.init_producer(name)
    finally:
        broker.resume()

    epoch = log.init_producer(name)
    log.append(name, epoch, {topic.name: table([b"after"])})
    assert values_of(log, topic) == [b"before", b"after"]


def test_a_broker_that_is_paused_at_the_commit_leaves_it_open_until_a_successor_looks(
    broker: KafkaBroker, log: KafkaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, name = log.create_topic(new_name(), 1), new_name()
    epoch = log.init_producer(name)
    commit = KafkaProducer._commit

    def paused(producer: KafkaProducer) -> None:
        broker.pause()
        commit(producer)

    monkeypatch.setattr(KafkaProducer, "_commit", paused)
    try:
        with pytest.raises(ServiceUnreachable, match="whether it committed") as failure:
            log.append(name, epoch, {topic.name: table([b"a", b"b"])})
    finally:
        broker.resume()
    assert not isinstance(failure.value, NotWritten)

    log.init_producer(name)
    found = values_of(log, topic)
    assert found in ([], [b"a", b"b"])
    # Behind the fence it is what it is.
    time.sleep(1.0)
    assert values_of(log, topic) == found


@pytest.mark.parametrize(
    ("fault", "found"), [(Fault.AFTER, [b"a", b"b"]), (Fault.BEFORE, [])], ids=["after", "before"]
)
def test_a_commit_whose_answer_is_lost_is_not_certain_and_a_successor_knows(
    fault: Fault, found: list[bytes], proxy: KafkaProxy, through: KafkaLog, log: KafkaLog
) -> None:
    topic, name = log.create_topic(new_name(), 1), new_name()
    epoch = through.init_producer(name)
    proxy.arm(Api.END_TXN, fault, ALWAYS)
    with pytest.raises(ServiceUnreachable, match="whether it committed") as failure:
        through.append(name, epoch, {topic.name: table([b"a", b"b"])})
    assert not isinstance(failure.value, NotWritten)
    assert proxy.struck[Api.END_TXN, fault]

    epoch = log.init_producer(name)
    assert values_of(log, topic) == found
    log.append(name, epoch, {topic.name: table([b"c"])})
    proxy.disarm()
    with pytest.raises((NotWritten, Fenced)):
        through.append(name, 1, {topic.name: table([b"zombie"])})
    assert values_of(log, topic) == [*found, b"c"]


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.ADD_PARTITIONS_TO_TXN])
def test_what_is_cut_off_before_the_commit_is_not_written_but_that_is_for_a_look_to_say(
    api: Api, proxy: KafkaProxy, through: KafkaLog, log: KafkaLog
) -> None:
    topic, name = log.create_topic(new_name(), 1), new_name()
    epoch = through.init_producer(name)
    proxy.arm(api, Fault.AFTER, ALWAYS)
    with pytest.raises(ServiceUnreachable) as failure:
        through.append(name, epoch, {topic.name: table([b"a", b"b"])})
    assert not isinstance(failure.value, NotWritten)
    assert proxy.struck[api, Fault.AFTER]

    log.init_producer(name)
    assert values_of(log, topic) == []


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize(
    "api", [Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.PRODUCE, Api.END_TXN]
)
def test_one_lost_connection_is_got_over_and_the_offsets_are_right(
    api: Api, fault: Fault, proxy: KafkaProxy, broker: KafkaBroker, log: KafkaLog
) -> None:
    topic, name = log.create_topic(new_name(), 2), new_name()
    through = short_log(broker, bootstrap=broker.proxied)
    proxy.delay = 0.1
    proxy.arm(api, fault, 2)
    epoch = through.init_producer(name)
    values, partitions = [b"%d" % number for number in range(50)], [n % 2 for n in range(50)]
    given = through.append(name, epoch, {topic.name: table(values, partitions)})
    through.close()

    assert proxy.struck[api, fault]
    wanted = zip(partitions, given.offsets[topic.name].to_pylist(), values, strict=True)
    assert plainly(broker, topic.name) == sorted(wanted)


@pytest.mark.parametrize("aborted", [False, True], ids=["commit", "abort"])
def test_a_request_to_end_a_transaction_that_arrives_late_ends_no_later_one(
    aborted: bool, proxy: KafkaProxy, broker: KafkaBroker
) -> None:
    through = short_log(broker, bootstrap=broker.proxied)
    topic, name = broker.new_topic(2, max_message_bytes="20000"), new_name()
    epoch = through.init_producer(name)
    written = [] if aborted else [b"a"]
    first = os.urandom(30_000) if aborted else b"a"
    proxy.arm(Api.END_TXN, Fault.HELD)
    try:
        through.append(name, epoch, {topic: table([first])})
    except (RecordsRefused, NeedsFence):
        assert aborted
    assert proxy.struck[Api.END_TXN, Fault.HELD] == 1
    # Of two partitions the second is still to be written when what was held back arrives.
    proxy.deliver_before(Api.PRODUCE, 2)
    second = {topic: table([b"b", b"c"], [0, 1])}
    try:
        through.append(name, epoch, second)
        written += [b"b", b"c"]
    except NotWritten:
        epoch = through.init_producer(name)
        proxy.deliver_before(Api.PRODUCE, 2)
        through.append(name, epoch, second)
        written += [b"b", b"c"]
    through.close()

    assert proxy.delivered[Api.END_TXN] == 1
    assert sorted(value for *_, value in plainly(broker, topic)) == written


def test_nothing_is_begun_after_an_end_that_was_slow_before_the_producer_is_fenced(
    proxy: KafkaProxy, through: KafkaLog, log: KafkaLog
) -> None:
    topic, name = log.create_topic(new_name(), 1), new_name()
    epoch = through.init_producer(name)
    proxy.arm(Api.END_TXN, Fault.DELAYED)
    through.append(name, epoch, {topic.name: table([b"a"])})
    with pytest.raises(NeedsFence, match="more than once"):
        through.append(name, epoch, {topic.name: table([b"b"])})
    epoch = through.init_producer(name)
    through.append(name, epoch, {topic.name: table([b"b"])})

    assert values_of(log, topic) == [b"a", b"b"]


def test_a_client_repeats_a_request_no_sooner_than_a_slow_end_is_noticed(
    proxy: KafkaProxy, through: KafkaLog, log: KafkaLog
) -> None:
    topic, name = log.create_topic(new_name(), 1), new_name()
    for fault in (Fault.BEFORE, Fault.AFTER, Fault.HELD) * 4:
        epoch = through.init_producer(name)
        proxy.arm(Api.END_TXN, fault)
        through.append(name, epoch, {topic.name: table([b"a"])})
        with pytest.raises(NeedsFence):
            through.append(name, epoch, {topic.name: table([b"b"])})
    assert values_of(log, topic) == [b"a"] * 12


def test_a_take_over_that_gets_no_answer_says_so(
    proxy: KafkaProxy, through: KafkaLog, log: KafkaLog
) -> None:
    topic, name = log.create_topic(new_name(), 1), new_name()
    proxy.arm(Api.INIT_PRODUCER_ID, Fault.AFTER, ALWAYS)
    with pytest.raises(ServiceUnreachable, match="taking over producer"):
        through.init_producer(name)
    proxy.disarm()

    # What was given up does not go on in the background and fences whoever comes next.
    epoch = log.init_producer(name)
    time.sleep(2.0)
    log.append(name, epoch, {topic.name: table([b"a"])})
    assert values_of(log, topic) == [b"a"]


def zombie(bootstrap: str, name: str, topic: str, fault: str) -> None:
    timeouts = {**SHORT, "delivery_timeout": 2_000, "transaction_timeout": 2_000}
    log = KafkaLog(Settings(transport={"kafka": {"bootstrap": bootstrap, **timeouts}}))
    epoch = log.init_producer(name)
    arm(fault)
    try:
        log.append(name, epoch, {topic: table([b"zombie", b"zombie"])})
    except AdmitoneError as error:
        os._exit(42 if isinstance(error, Fenced) else 43)
    os._exit(0)


@pytest.mark.parametrize("timed_out", [False, True], ids=["at_once", "after_its_time_out"])
def test_a_predecessor_that_wakes_up_before_its_commit_is_fenced(
    timed_out: bool, broker: KafkaBroker, log: KafkaLog, tmp_path: Path
) -> None:
    topic, name, marker = log.create_topic(new_name(), 1), new_name(), tmp_path / "struck"
    fault = CrashPoint("kafka.delivered", 1, "stop").spec(marker)
    process = processes.Process(target=zombie, args=(broker.bootstrap, name, topic.name, fault))
    process.start()
    assert stopped(process, marker)
    assert log.ends(topic, readable=True) < log.ends(topic)
    while timed_out and log.ends(topic, readable=True) < log.ends(topic):
        time.sleep(0.05)
    successor = Appender(log, name)
    successor.append({topic.name: table([b"successor"])})
    assert process.pid is not None
    os.kill(process.pid, signal.SIGCONT)
    process.join(30)

    assert process.exitcode == 42
    successor.append({topic.name: table([b"again"])})
    assert values_of(log, topic) == [b"successor", b"again"]


def test_a_broker_that_is_killed_under_load_loses_and_doubles_nothing(
    own_broker: KafkaBroker,
) -> None:
    log, name = short_log(own_broker), new_name()
    topic = log.create_topic(new_name(), 1)
    epoch, sent = log.init_producer(name), 0
    crash = threading.Timer(0.3, own_broker.restart)
    crash.start()
    while crash.is_alive() or sent < 60:
        try:
            log.append(name, epoch, {topic.name: table([b"%d" % sent])})
            sent += 1
        except (ServiceUnreachable, Fenced):
            # Fenced: a transaction that lasted longer than it may is ended by the broker under a new epoch.
            epoch, sent = took_over(log, name, topic)

    assert values_of(log, topic) == [b"%d" % number for number in range(sent)]


def took_over(log: KafkaLog, name: str, topic: Topic) -> tuple[int, int]:
    """Take a name over as soon as the broker is back; return the epoch, and how much is on the log."""
    deadline = time.monotonic() + 60
    while True:
        try:
            epoch = log.init_producer(name)
            return epoch, len(values_of(log, topic))
        except ServiceUnreachable:
            assert time.monotonic() < deadline
