"""The same pipeline, unchanged, on a real cluster; a worker is killed when its block is published and not settled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from admitone.infra.crash_points import VARIABLE
from tests.faults.kafka_harness import compare_with_receipts
from tests.servers.kafka import PASSWORD, USER, KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.servers.spark_cluster import SparkCluster
from tests.support.pipeline import Pipeline
from tests.support.running import (
    await_that,
    kafka_pipeline,
    outcome,
    start_pipeline,
)
from tests.support.store_check import check

EVENTS = 8_000
_ON_CLUSTER = """
transport.kafka.security_protocol = "SASL_PLAINTEXT"
transport.kafka.sasl_username = "{user}"

[spark]
master = "{master}"
driver_memory = "1g"

[spark.options]
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.executor.memory" = "1g"
"spark.eventLog.enabled" = "true"
"spark.eventLog.compress" = "false"
"spark.eventLog.dir" = "{events}"
"spark.executorEnv.{fault}" = "boundary.published@2:stop:{marker}"
"""


@dataclass(frozen=True)
class Ran:
    """What is left of a run on a cluster that lost a worker."""

    pipeline: Pipeline
    broker: KafkaBroker
    truth: Truth
    said: str
    command_lines: str
    written: dict[str, bytes]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[Ran]:
    """Run generated traffic on two workers, and kill the one that has just published a block."""
    broker, cluster = KafkaBroker(secure=True), SparkCluster(workers=2)
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("ADMITONE_LEDGER__URL", postgres_server.new_schema())
            environment.setenv("ADMITONE_TRANSPORT__KAFKA__SASL_PASSWORD", PASSWORD)
            done = run_and_kill_a_worker(tmp_path_factory.mktemp("home"), broker, cluster)
        yield done
    finally:
        cluster.close()
        broker.close()


def run_and_kill_a_worker(home: Path, broker: KafkaBroker, cluster: SparkCluster) -> Ran:
    marker, events = home / "struck", home / "events"
    events.mkdir()
    pipeline = kafka_pipeline(
        home,
        broker,
        bootstrap=broker.bootstrap_of("SASL_PLAINTEXT"),
        more=_ON_CLUSTER.format(
            user=USER, master=cluster.url, events=events.as_uri(), fault=VARIABLE, marker=marker
        ),
    )
    options = GeneratorOptions(EVENTS, seed=5, contradictions=0.01, malformed=0.02)
    recorder = TruthRecorder(options)
    pipeline.ingest(*(delivery.line for delivery in recorder.watch(generate(options))))
    child = start_pipeline(home, "--until-idle")
    await_that(lambda: marker.exists() and marker.read_text(), child)
    running = psutil.process_iter(["cmdline"])
    command_lines = "\n".join(" ".join(process.info["cmdline"] or ()) for process in running)
    cluster.kill_worker(cluster.worker_of(int(marker.read_text())))
    ended = outcome(child)
    assert ended.returncode == 0, ended.stderr
    written = {
        str(path): path.read_bytes()
        for folder in (events, home / "data", cluster.folder)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".jar"
    }
    written["the master's page"] = json.dumps(cluster.state()).encode()
    return Ran(
        pipeline, broker, recorder.truth(), ended.stderr + ended.stdout, command_lines, written
    )


def test_losing_a_worker_with_a_published_block_loses_nothing_and_repeats_nothing(ran: Ran) -> None:
    compared = check(ran.pipeline.settings, ran.truth)

    assert compared.problems == []
    assert compared.decisions == EVENTS
    assert compare_with_receipts(ran.pipeline.settings.home, ran.broker.bootstrap) == []


def test_no_secret_is_in_what_spark_writes_or_in_a_command_line(ran: Ran) -> None:
    def places_of(text: str) -> list[str]:
        return [place for place, data in ran.written.items() if text.encode() in data]

    # What is configured for Spark itself can be seen there, so the search looks in the right places.
    assert any("events" in place for place in places_of(VARIABLE))
    assert VARIABLE in ran.command_lines
    assert any(place.endswith("stderr") for place in ran.written)
    assert places_of(PASSWORD) == []
    assert PASSWORD not in ran.command_lines
    assert PASSWORD not in ran.said


@pytest.mark.parametrize(
    ("stores", "words"),
    [
        ("", "do not see the log in data/log and the ledger in SQLite"),
        (
            'transport.kind = "kafka"\nledger.url = "postgresql://admitone@127.0.0.1/ledger"\n',
            "where PGPASSWORD of this one is not set",
        ),
    ],
    ids=["stores", "password"],
)
def test_a_cluster_is_refused_what_only_this_machine_has(
    stores: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    (tmp_path / "admitone.toml").write_text(f'spark.master = "spark://127.0.0.1:1"\n{stores}')
    ended = outcome(start_pipeline(tmp_path, "--until-idle"))

    assert ended.returncode == 3
    assert words in ended.stderr
