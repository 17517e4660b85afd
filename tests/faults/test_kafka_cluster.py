"""Three brokers, one of which goes away: topics that are safe there, and an admission that goes on without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from admitone.core.contract import Keeping, Kind
from admitone.transport.topic_contract import check_contracts, create_topic, destination_contracts
from tests.faults.harness import settings_for
from tests.faults.kafka_cluster import OneAway, cluster_storm
from tests.faults.kafka_harness import make_home
from tests.servers.appender import Appender
from tests.servers.kafka_cluster import NODES, KafkaCluster
from tests.servers.kafka_records import new_name, table, values_of
from tests.support.pipeline import kafka_log

PATIENT = {"delivery_timeout": 60_000, "transaction_timeout": 80_000, "look_timeout": 90_000}


REPLICATED = Keeping(len(NODES), min_insync_replicas=2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster()
    yield cluster
    cluster.close()


def test_two_of_three_replicas_have_a_record_before_it_counts_as_written(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    make_home(tmp_path, cluster.bootstrap, replication=len(NODES))
    log, contracts = kafka_log(cluster), destination_contracts(settings_for(tmp_path))
    lax, *created = contracts
    cluster.new_topic(lax.topic, lax.partitions, {"message.timestamp.type": "LogAppendTime"})
    for contract in created:
        create_topic(contract, log)
    checked, *others = check_contracts(contracts, log, {})

    assert [difference.kind for difference in checked.differences] == [Kind.IN_SYNC]
    assert all(other.as_agreed for other in others)
    log.close()


def test_a_broker_that_falls_silent_is_not_waited_for(cluster: KafkaCluster) -> None:
    log = kafka_log(cluster, **PATIENT)
    topic, appender = log.create_topic(new_name(), 1, REPLICATED), Appender(log, new_name())
    appender.append({topic.name: table([b"before"])})
    values_of(log, topic, end=2)  # the mark of the transaction is on the log, too
    cluster.pause(cluster.leader(topic.name))
    try:
        assert log.ends(topic) == [2]
        appender.append({topic.name: table([b"meanwhile"])})
        assert values_of(log, topic) == [b"before", b"meanwhile"]
    finally:
        cluster.bring_back()
    assert values_of(log, topic) == [b"before", b"meanwhile"]
    log.close()


def test_one_broker_that_does_not_know_a_topic_yet_proves_nothing(cluster: KafkaCluster) -> None:
    unaware, others = NODES[-1], ",".join(map(cluster.bootstrap_of, NODES[:-1]))
    log = kafka_log(cluster, **PATIENT, bootstrap=others)
    cluster.cut_off(unaware, from_clients=False)
    try:
        topic = log.create_topic(new_name(), 1, REPLICATED)
        for _ in range(5):
            asking = kafka_log(cluster, **PATIENT, bootstrap=cluster.bootstrap_of(unaware))
            assert asking.topic(topic.name) == topic
            assert asking.describe([topic.name])[topic.name].keeping == REPLICATED
            assert asking.ends(topic) == [0]
    finally:
        cluster.bring_back()
    log.close()


def test_admission_goes_on_while_one_of_three_brokers_is_away(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    strike = OneAway(cluster, tmp_path / "home")
    struck, problems = cluster_storm(tmp_path / "home", 4, strike, 3)

    assert struck
    assert problems == []
