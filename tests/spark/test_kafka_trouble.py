"""The raw topic changes, shrinks or goes away under the reader: a clear end with the right exit code, never silence."""

from __future__ import annotations

import signal
from pathlib import Path

from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from admitone.core.decisions import Verdict
from tests.servers.kafka import KafkaBroker
from tests.servers.processes import suspend
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event
from tests.support.running import (
    await_that,
    change_settings,
    decided,
    kafka_pipeline,
    outcome,
    run_pipeline,
    start_pipeline,
)


def events(name: str, count: int) -> list[bytes]:
    return [event(f"{name}{number}") for number in range(count)]


def admitted(pipeline: Pipeline) -> list[str]:
    """Return the ids of the admitted events, each as often as it was admitted."""
    return sorted(row["event_id"] for row in pipeline.decisions(verdict=Verdict.ADMITTED))


def names(*groups: tuple[str, int]) -> list[str]:
    return sorted(f"{name}{number}" for name, count in groups for number in range(count))


def expire(broker: KafkaBroker, topic: str) -> None:
    """Remove every record that is on a topic, as its retention would."""
    administrator = broker.administrator()
    places = [TopicPartition(topic, number, -1) for number in range(4)]
    for removed in administrator.delete_records(places).values():
        removed.result(30)


def test_a_topic_recreated_between_two_triggers_ends_the_run_and_the_next_reads_it_from_its_beginning(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker)
    pipeline.ingest(*events("old", 20))
    child = start_pipeline(tmp_path, "boundary")
    await_that(lambda: decided(tmp_path) == 20, child)
    suspend(child.pid)
    delete_topic(pipeline.transport, pipeline.topic.name)
    fresh = Pipeline(tmp_path, transport={})
    # More than the old one held: read on from the old offsets, the first of them would be lost.
    fresh.ingest(*events("new", 200), event("old0"))
    child.send_signal(signal.SIGCONT)
    ended = outcome(child)

    assert ended.returncode == 7
    assert "recreated while the pipeline ran" in ended.stderr
    assert run_pipeline(tmp_path, "boundary").returncode == 0
    assert admitted(fresh) == names(("old", 20), ("new", 200))
    assert fresh.verdicts("old0") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert fresh.problems() == []


def test_a_topic_deleted_under_a_run_that_waits_for_more_is_noticed(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker)
    pipeline.ingest(*events("e", 20))
    child = start_pipeline(tmp_path, "boundary")
    await_that(lambda: decided(tmp_path) == 20, child)
    delete_topic(pipeline.transport, pipeline.topic.name)
    ended = outcome(child)

    assert ended.returncode == 7
    assert "deleted while the pipeline ran" in ended.stderr


def test_partitions_added_while_it_runs_end_the_run_until_the_configuration_says_so_too(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker)
    pipeline.ingest(*events("e", 20))
    child = start_pipeline(tmp_path, "boundary")
    await_that(lambda: decided(tmp_path) == 20, child)
    administrator = kafka_broker.administrator()
    (added,) = administrator.create_partitions([NewPartitions(pipeline.topic.name, 6)]).values()
    added.result(30)
    ended = outcome(child)
    refused = run_pipeline(tmp_path)
    change_settings(tmp_path, "transport.raw_partitions = 4", "transport.raw_partitions = 6")
    wider = Pipeline(tmp_path, transport={})
    wider.ingest(*events("e", 60))

    assert ended.returncode == refused.returncode == 7
    assert "raw_partitions = 6" in ended.stderr
    assert "raw_partitions = 6" in refused.stderr
    assert run_pipeline(tmp_path, "boundary").returncode == 0
    assert decided(tmp_path) == 80
    assert admitted(wider) == names(("e", 60))
    assert wider.problems() == []


def test_what_was_decided_and_counted_may_expire(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker)
    pipeline.ingest(*events("e", 20))
    assert run_pipeline(tmp_path).returncode == 0
    expire(kafka_broker, pipeline.topic.name)
    expire(kafka_broker, pipeline.settings.topics[0].topic)
    pipeline.ingest(*events("f", 20))
    again = run_pipeline(tmp_path)

    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("40 decided, 0 undecided, 0 uncounted")
    assert admitted(pipeline) == names(("e", 20), ("f", 20))


def test_what_expired_before_it_was_read_is_not_passed_over(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker)
    # One event leaves three partitions empty: what is lost there was never begun either.
    pipeline.ingest(event("e0"))
    assert run_pipeline(tmp_path, "boundary").returncode == 0
    pipeline.ingest(*events("lost", 40))
    expire(kafka_broker, pipeline.topic.name)
    pipeline.ingest(*events("f", 40))
    ended = run_pipeline(tmp_path, "boundary")

    assert ended.returncode == 7
    assert "were removed before they were read" in ended.stderr
    assert decided(tmp_path) == 1


def test_what_expires_under_the_reader_ends_the_run(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker)
    pipeline.ingest(*events("e", 20))
    child = start_pipeline(tmp_path, "boundary")
    await_that(lambda: decided(tmp_path) == 20, child)
    suspend(child.pid)
    pipeline.ingest(*events("lost", 200))
    expire(kafka_broker, pipeline.topic.name)
    pipeline.ingest(*events("f", 40))
    child.send_signal(signal.SIGCONT)
    ended = outcome(child)

    assert ended.returncode == 7
    assert "gone from Kafka: Could not read records" in ended.stderr
    assert decided(tmp_path) == 20
    assert pipeline.problems() == []


def test_a_log_that_ends_before_what_was_read_of_it_is_refused(
    own_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, own_broker)
    pipeline.ingest(*events("e", 40))
    pipeline.run()
    own_broker.kill()
    for folder in own_broker.folder.glob(f"data/{pipeline.topic.name}-*"):
        for segment in folder.glob("0*"):
            segment.unlink()
    own_broker.start()
    ended = run_pipeline(tmp_path, "boundary")

    assert ended.returncode == 7
    assert "the log lost records" in ended.stderr


def test_a_broker_that_dies_and_comes_back_costs_nothing(
    own_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, own_broker, max_block=100, max_per_trigger=500)
    pipeline.ingest(*events("e", 5_000), *events("e", 1_000))
    child = start_pipeline(tmp_path, "--until-idle")
    await_that(lambda: decided(tmp_path) > 500, child)
    own_broker.restart()
    ended = outcome(child)
    # It went on, or gave up with a word about Kafka; either way nothing is lost and nothing comes twice.
    assert ended.returncode in (0, 4), ended.stderr
    assert ended.returncode == 0 or "Kafka" in ended.stderr
    while decided(tmp_path) < 6_000:
        assert run_pipeline(tmp_path).returncode == 0

    assert admitted(pipeline) == names(("e", 5_000))
    assert pipeline.problems() == []


def test_a_broker_that_stays_away_ends_the_run_with_a_word(
    own_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, own_broker, more='transport.kafka.delivery_timeout = "5s"')
    pipeline.ingest(*events("e", 20))
    child = start_pipeline(tmp_path)
    await_that(lambda: decided(tmp_path) == 20, child)
    own_broker.kill()
    ended = outcome(child)

    assert ended.returncode == 4
    assert "Kafka does not answer" in ended.stderr
