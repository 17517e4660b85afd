"""Dedup pipelines through Spark: killed, robbed of checkpoints, compared with what their records should be."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from admitone.ledger.books import books
from admitone.settings import FILE_NAME
from tests.servers.kafka import KafkaBroker, read_committed
from tests.servers.kafka_records import new_name
from tests.support.deduplicated import DedupPipeline
from tests.support.orders import DEDUP, NEWEST_MS, Expected, Order, make_orders
from tests.support.running import await_that, decided, run_pipeline, start_pipeline

RECORDS = 3_000


def make_home(
    home: Path,
    transport: dict[str, Any],
    ledger: str | None = None,
    topics: dict[str, str] | None = None,
) -> DedupPipeline:
    """Write a configuration whose batches are small, so that something is left to do when it is struck."""
    home.mkdir(parents=True, exist_ok=True)
    spelled = "".join(
        f"transport.{name} = {orjson.dumps(v).decode()}\n" for name, v in transport.items()
    )
    spelled += "".join(
        f"dedup.{name} = {orjson.dumps(v).decode()}\n"
        for name, v in {**DEDUP, **(topics or {})}.items()
    )
    if ledger:
        spelled += f'ledger.url = "{ledger}"\n'
    (home / FILE_NAME).write_text(
        f"{spelled}transport.raw_partitions = 2\ntransport.max_per_trigger = 1000\npipeline.max_block = 100\n"
    )
    return DedupPipeline(home, transport={})


def fill(pipeline: DedupPipeline, partitions: Iterable[list[Order]]) -> None:
    for number, orders in enumerate(partitions):
        pipeline.append(*(order.value for order in orders), partition=number)


def kill_in_the_middle(home: Path) -> None:
    """Kill the driver, its JVM and its workers once something is decided, and delete the checkpoints."""
    child = start_pipeline(home, "dedup")
    await_that(lambda: decided(home) > 500, child)
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    for process in family:
        process.kill()
    child.wait(60)
    assert 0 < decided(home) < RECORDS
    shutil.rmtree(home / "data" / "checkpoints")


def on_kafka(home: Path, broker: KafkaBroker, ledger: str | None = None) -> DedupPipeline:
    """Make a home folder whose topics nobody else uses."""
    name = new_name()
    transport = {"kind": "kafka", "kafka.bootstrap": broker.bootstrap, "raw_topic": f"{name}-raw"}
    return make_home(
        home, transport, ledger, {"destination": f"{name}-out", "late": f"{name}-late"}
    )


@pytest.fixture(params=["folder and SQLite", "Kafka and PostgreSQL"])
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> DedupPipeline:
    if request.param == "folder and SQLite":
        return make_home(tmp_path / "home", {})
    broker = request.getfixturevalue("kafka_broker")
    return on_kafka(tmp_path / "home", broker, request.getfixturevalue("postgres_url"))


def test_killed_in_the_middle_without_its_checkpoints_each_key_is_written_once(
    pipeline: DedupPipeline,
) -> None:
    partitions = make_orders(RECORDS, 3)
    fill(pipeline, partitions)
    home = pipeline.settings.home
    kill_in_the_middle(home)
    done = run_pipeline(home, "dedup")

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{RECORDS:,} deduplicated, 0 waiting, 0 ambiguous")
    expected = Expected.of(partitions)
    assert expected.problems(pipeline.values(), pipeline.decisions()) == []
    assert pipeline.problems() == []
    (run,) = books(pipeline.ledger)["runs"]
    assert (run["run_id"], run["deliveries"], run["balanced"]) == ("dedup", RECORDS, True)
    assert run["cached"] > 0
    if pipeline.settings.transport.kind == "kafka":
        bootstrap = pipeline.settings.transport.kafka.bootstrap
        seen = [r.value() for r in read_committed(bootstrap, pipeline.settings.dedup.destination)]
        assert sorted(seen) == sorted(pipeline.values())


def test_on_engine_state_each_key_comes_out_once_and_what_is_late_goes_elsewhere(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """Two runs on one checkpoint: the second remembers what the first kept."""
    pipeline = on_kafka(tmp_path / "home", kafka_broker)
    before, after = make_orders(600, 5), make_orders(600, 6, NEWEST_MS + 900_000)
    home = pipeline.settings.home
    for orders in (before, after):
        fill(pipeline, orders)
        done = run_pipeline(home, "dedup", "--engine", "state")
        assert done.returncode == 0, done.stderr
        assert "weaker than the ledger" in done.stderr

    kept = Counter(orjson.loads(value)["order"] for value in pipeline.values())
    valid = {
        o.key for batch in (before, after) for part in batch for o in part if o.key is not None
    }
    assert set(kept.values()) == {1}
    late = late_ones(pipeline)
    assert late["IDENTITY_INVALID"] == sum(
        o.key is None for batch in (before, after) for part in batch for o in part
    )
    assert late.keys() <= {"IDENTITY_INVALID", "TOO_OLD"}
    assert kept.keys() <= valid
    figures = pipeline_figures(pipeline)
    assert figures["kept"] == len(kept)
    assert figures["late"] == late.total()
    assert figures["kept"] + figures["late"] + figures["dropped_duplicates"] == 1_200
    assert figures["rows"] > 0
    assert figures["bytes_in_memory"] > 0


def late_ones(pipeline: DedupPipeline) -> Counter[str]:
    """Return the reasons in the topic of what could not be judged."""
    topic = pipeline.transport.topic(pipeline.settings.dedup.late)
    return Counter(
        record["headers"][-1]["value"].decode()
        for partition, end in enumerate(pipeline.transport.ends(topic))
        for batch in pipeline.transport.read(topic, partition, 0, end)
        for record in batch.to_pylist()
    )


def pipeline_figures(pipeline: DedupPipeline) -> dict[str, int]:
    from admitone.ops.lag import LagMeter

    lag = LagMeter(pipeline.settings).measure().state
    assert lag is not None
    assert lag.idle
    return dict(lag.figures)
