"""The whole pipeline through Spark, compared with the oracle."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from admitone.ledger.books import books
from admitone.settings import FILE_NAME
from tests.servers.copies import copy_of
from tests.servers.processes import suspend
from tests.support.logs import delete_topic, truncate
from tests.support.pipeline import Pipeline, event
from tests.support.running import await_that, outcome, run_pipeline, start_pipeline
from tests.support.store_check import check

EVENTS = 200_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, Truth]:
    """200,000 events, decided and counted through Spark."""
    pipeline = Pipeline(tmp_path_factory.mktemp("large"), transport={"raw_partitions": 4})
    options = GeneratorOptions(EVENTS, seed=2026, run="large")
    recorder = TruthRecorder(options)
    pipeline.ingest(*(delivery.line for delivery in recorder.watch(generate(options))), run="large")
    done = run_pipeline(pipeline.settings.home)
    assert done.returncode == 0, done.stderr
    return pipeline, recorder.truth()


def test_decisions_log_evidence_and_every_answer_agree_with_the_oracle(
    large: tuple[Pipeline, Truth],
) -> None:
    pipeline, truth = large
    compared = check(pipeline.settings, truth)

    assert compared.problems == []
    assert compared.decisions == EVENTS
    assert compared.answers > 500


def test_a_second_run_finds_nothing_to_do(large: tuple[Pipeline, Truth]) -> None:
    pipeline, _ = large
    before = books(pipeline.ledger)
    done = run_pipeline(pipeline.settings.home)

    assert done.returncode == 0
    assert books(pipeline.ledger) == before


def test_records_removed_before_they_were_read_are_not_passed_over(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.ingest(event("e1"))
    pipeline.run()
    pipeline.ingest(*(event(f"lost{number}") for number in range(20)))
    for partition, end in enumerate(pipeline.transport.ends(pipeline.topic)):
        truncate(pipeline.transport, pipeline.topic, partition, end)
    pipeline.ingest(event("e2"))
    done = run_pipeline(tmp_path, "boundary")

    assert done.returncode == 7
    assert "were removed before they were read" in done.stderr
    assert pipeline.verdicts("e2") == []


def test_what_has_expired_goes_when_the_pipeline_opens_its_store_and_after_a_batch(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE_NAME).write_text(
        '[transport]\nraw_partitions = 1\n\n[dedup]\nretention = "2d"\n'
    )
    pipeline = Pipeline(tmp_path, transport={})
    for name, day in (("a", "02"), ("b", "12")):
        pipeline.ingest(event(name, time=f"2026-01-{day}T10:00:00Z"))
        pipeline.run()
    oldest, older = segments(tmp_path)

    assert run_pipeline(tmp_path, "boundary").returncode == 0
    assert segments(tmp_path) == [older]

    pipeline.ingest(event("c", time="2026-01-22T10:00:00Z"))
    assert run_pipeline(tmp_path, "boundary").returncode == 0
    (left,) = segments(tmp_path)
    assert oldest < older < left
    assert pipeline.verdicts("c") == [("ADMITTED", None)]


def segments(home: Path) -> list[int]:
    """Return when the segments that are left begin."""
    with closing(sqlite3.connect(home / "data" / "ledger.db")) as db:
        return [start for (start,) in db.execute("SELECT start FROM segment ORDER BY start")]


def test_a_recreated_raw_topic_is_read_from_its_beginning_through_spark(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.ingest(event("e1"), event("e2"))
    assert run_pipeline(tmp_path, "boundary").returncode == 0
    delete_topic(pipeline.transport, "raw")
    fresh = Pipeline(tmp_path, transport={"raw_partitions": 4})
    fresh.ingest(event("e1"), event("e3"))
    assert run_pipeline(tmp_path).returncode == 0

    assert fresh.verdicts("e1") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert fresh.verdicts("e3") == [("ADMITTED", None)]
    assert fresh.problems() == []


def test_a_pipeline_that_was_superseded_says_so_and_loses_nothing(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.ingest(event("e1"))
    first = start_pipeline(tmp_path)
    await_that(pipeline.decisions, first)
    assert run_pipeline(tmp_path).returncode == 0
    pipeline.ingest(event("e2"))
    superseded = outcome(first)

    assert superseded.returncode == 8
    assert "took over" in superseded.stderr or "is running now" in superseded.stderr
    assert run_pipeline(tmp_path).returncode == 0
    assert pipeline.verdicts("e2") == [("ADMITTED", None)]
    assert pipeline.problems() == []


@pytest.mark.usefixtures("either_ledger")
def test_a_query_whose_ledger_goes_back_decides_nothing_more(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.ingest(event("e1"))
    running = start_pipeline(tmp_path, "boundary")
    await_that(lambda: _with_evidence(pipeline) == 1, running)
    put_back = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    pipeline.ingest(event("e2"))
    await_that(lambda: _with_evidence(pipeline) == 2, running)
    # The copy is put back in several steps: a query that asks between them finds no ledger at all.
    suspend(running.pid)
    put_back()
    psutil.Process(running.pid).resume()
    pipeline.ingest(event("e1"), event("e2"), event("e3"))
    ended = outcome(running)

    assert ended.returncode == 7
    assert "went back under a running pipeline" in ended.stderr
    assert "reconcile --restored" in ended.stderr
    assert [row["event_id"] for row in pipeline.decisions()] == ["e1"]


def _with_evidence(pipeline: Pipeline) -> int:
    """Return how many deliveries are decided in batches that are over, which is when their evidence is written."""
    pending = pipeline.ledger.pending_evidence()
    return sum(info.decided for info in pipeline.ledger.sources()) if not pending else 0


def test_a_session_that_does_not_start_says_where_to_look(tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text('[spark.options]\n"spark.driver.memory" = "much"\n')
    ended = outcome(start_pipeline(tmp_path, "--until-idle"))

    assert ended.returncode == 4
    assert "Spark does not start on local[2,4]" in ended.stderr
    assert str(tmp_path / "data" / "spark.log") in ended.stderr
