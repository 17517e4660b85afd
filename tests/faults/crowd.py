"""Two pipelines at once on one ledger, with different sources that carry the same events."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import Any

from admitone.boundary import open_boundary
from admitone.demo.traffic import GeneratorOptions, generate
from admitone.evidence import open_evidence_writer
from admitone.infra.clock import wall_clock
from admitone.ledger import open_ledger
from admitone.ledger.books import books
from admitone.settings import Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic
from tests.faults.harness import decide_everything, processes
from tests.support.store_check import check_evidence, check_log

NAMES = ("one", "two")
_PIECE = 5_000
_PATIENCE_S = 600.0


def settings_of(home: Path, name: str, url: str, max_block: int) -> Settings:
    return load_settings(
        home,
        pipeline={"name": name, "max_block": max_block},
        transport={"raw_topic": f"raw-{name}", "raw_partitions": 2},
        ledger={"url": url},
    )


def run_pipeline(home: Path, name: str, url: str, max_block: int) -> None:
    settings = settings_of(home, name, url, max_block)
    boundary = open_boundary(settings)
    topic = raw_topic(settings, boundary.transport)
    decide_everything(boundary, topic)
    open_evidence_writer(settings, boundary.ledger).write_pending(wall_clock())
    os._exit(0)


def crowd(
    home: Path, url: str, events: int, max_block: int = 5_000, seed: int = 9
) -> tuple[dict[str, Any], list[str]]:
    """Run both pipelines to their end; return the books of the run and everything that is wrong."""
    home.mkdir(parents=True, exist_ok=True)
    options = GeneratorOptions(
        events, seed=seed, duplicates=0, contradictions=0, malformed=0, late=0
    )
    lines = (delivery.line for delivery in generate(options))
    targets = {}
    for name in NAMES:
        settings = settings_of(home, name, url, max_block)
        transport = open_transport(settings)
        targets[name] = transport, raw_topic(settings, transport)
    while piece := list(islice(lines, _PIECE)):
        for name, order in zip(NAMES, (piece, piece[::-1]), strict=True):
            for _ in ingest_lines(*targets[name], order, None):
                pass
    workers = [
        processes.Process(target=run_pipeline, args=(home, name, url, max_block)) for name in NAMES
    ]
    for worker in workers:
        worker.start()
    problems = []
    for name, worker in zip(NAMES, workers, strict=True):
        worker.join(_PATIENCE_S)
        if worker.exitcode != 0:
            problems.append(f"pipeline {name} ended with {worker.exitcode}")
            worker.kill()
    settings = settings_of(home, NAMES[0], url, max_block)
    ledger = open_ledger(settings)
    (run,) = books(ledger)["runs"]
    problems += check_log(ledger, targets[NAMES[0]][0], settings)
    problems += check_evidence(ledger, settings)
    return run, problems
