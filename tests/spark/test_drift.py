"""Drift through Spark: a topic goes away under a running pipeline, and comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from admitone.evidence.audit.gate import gate_of
from tests.support.closing import stores_of
from tests.support.drift import MAP, ORDERS, VIEWS, delete, on_topic, pairs, two_topics
from tests.support.pipeline import Pipeline
from tests.support.running import run_pipeline

SETTINGS = '[transport]\nraw_partitions = 2\ncheck_interval = "1s"\n' + MAP


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def decided(pipeline: Pipeline, event_id: str) -> Callable[[], bool]:
    return lambda: pipeline.verdicts(event_id) != []


def said(messages: Path, sentence: str) -> Callable[[], bool]:
    return lambda: sentence in messages.read_text()


def test_a_topic_that_goes_away_between_two_batches_holds_up_nothing_else(tmp_path: Path) -> None:
    pipeline = two_topics(tmp_path, SETTINGS, transport={"raw_partitions": 2})
    messages = tmp_path / "messages.txt"
    with messages.open("w") as stderr:
        running = subprocess.Popen(
            [sys.executable, "-m", "admitone", "run", "boundary", "--home", str(tmp_path)],
            stderr=stderr,
        )
    pipeline.ingest(*pairs(1))
    until(decided(pipeline, "o1"))
    delete(pipeline)
    until(said(messages, f"drift: topic '{ORDERS}' is missing. Try: admitone topics create"))
    pipeline.ingest(*pairs(2))
    until(decided(pipeline, "o2"))
    until(decided(pipeline, "v2"))
    assert pipeline.verdicts("o2") == [("QUARANTINED", "CONTRACT_DRIFT")]
    assert pipeline.verdicts("v2") == [("ADMITTED", None)]
    pipeline.boundary.topics.create(7, "ann", "made again")
    numbers = iter(range(3, 1000))

    def admitted_again() -> bool:
        number = next(numbers)
        pipeline.ingest(*pairs(number))
        until(decided(pipeline, f"o{number}"))
        return pipeline.verdicts(f"o{number}") == [("ADMITTED", None)]

    until(admitted_again)
    until(said(messages, "drift: all topics are as agreed again"))
    running.send_signal(signal.SIGINT)
    running.wait(timeout=120)

    assert "Traceback" not in messages.read_text()


def test_a_pipeline_that_starts_without_one_of_its_topics_decides_and_counts_the_rest(
    tmp_path: Path,
) -> None:
    pipeline = two_topics(tmp_path, SETTINGS, transport={"raw_partitions": 2})
    pipeline.ingest(*pairs(1))
    pipeline.run()
    delete(pipeline)
    pipeline.ingest(*pairs(2))
    done = run_pipeline(tmp_path)

    assert done.returncode == 0, done.stderr
    assert pipeline.verdicts("o2") == [("QUARANTINED", "CONTRACT_DRIFT")]
    assert on_topic(pipeline, VIEWS) == ["v1", "v2"]
    gate = gate_of("default", *stores_of(pipeline))
    assert {blocker.kind for blocker in gate.blockers} == {"contract", "quarantined"}
