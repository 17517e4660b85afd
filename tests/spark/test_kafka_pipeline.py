"""The whole pipeline on a real broker, killed in the middle, compared with the oracle and with a plain consumer."""

from __future__ import annotations

from pathlib import Path

from admitone.demo import story as demo
from admitone.demo.traffic import GeneratorOptions, TruthRecorder, generate
from admitone.ledger.books import books
from tests.faults.kafka_harness import compare_with_receipts
from tests.servers.kafka import KafkaBroker
from tests.support.running import kafka_pipeline, run_pipeline
from tests.support.store_check import check

EVENTS = 8_000


def test_killed_in_the_middle_with_its_checkpoints_deleted_it_ends_as_the_oracle_says(
    kafka_broker: KafkaBroker, tmp_path: Path, postgres_url: str
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker, ledger=postgres_url)
    options = GeneratorOptions(EVENTS, seed=31, contradictions=0.01, malformed=0.02, late=0.01)
    recorder = TruthRecorder(options)
    pipeline.ingest(*(delivery.line for delivery in recorder.watch(generate(options))))
    truth = recorder.truth()

    killed = demo.run_and_kill(tmp_path, lambda _: None)
    assert 0 < killed.decided < EVENTS
    assert killed.in_flight > 0
    demo.delete_checkpoints(tmp_path)
    assert run_pipeline(tmp_path).returncode == 0

    compared = check(pipeline.settings, truth)
    assert compared.problems == []
    assert compared.decisions == EVENTS
    assert compare_with_receipts(tmp_path, kafka_broker.bootstrap) == []

    before = books(pipeline.ledger)
    again = run_pipeline(tmp_path)
    assert again.returncode == 0
    assert again.stdout.startswith(f"{EVENTS:,} decided, 0 undecided, 0 uncounted")
    assert books(pipeline.ledger) == before
