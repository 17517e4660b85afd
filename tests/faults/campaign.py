"""`make faults`: thousands of random faults on `admit()`, dozens through Spark; prints totals and findings."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from admitone.demo.traffic import Truth
from tests.faults.crowd import crowd
from tests.faults.database_harness import cuts, kills, storm
from tests.faults.failover import fail_over
from tests.faults.harness import Case, prepare, random_case, run_case
from tests.faults.kafka_campaign import kafka_campaign
from tests.faults.spark_harness import SparkCase, random_spark_case, run_spark_case
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.support import pipeline
from tests.support.goes_back import goes_back

_TEMPLATES = 12
_console = Console()


def boundary_campaign(cases: int, seed: int, folder: Path, workers: int) -> tuple[int, list[str]]:
    """Strike the boundary in plain processes; return how many faults struck and what went wrong."""
    rng = random.Random(seed)
    templates = []
    for number in range(_TEMPLATES):
        home = folder / f"template-{number}"
        templates.append((home, prepare(home, seed=seed + number)))
    struck, findings, points = 0, [], Counter[str]()
    planned = [(number, random_case(rng), rng.choice(templates)) for number in range(cases)]

    # Processes, not threads: multiprocessing lets threads reap each other's children.
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawned) as pool, Progress(console=_console) as progress:
        task = progress.add_task("boundary", total=cases)
        for case, hits, problems in pool.map(_one, repeat(folder), planned):
            struck += hits
            points.update(f"{fault.point} {fault.action}" for fault in case.faults)
            findings += [f"{case}: {problem}" for problem in problems]
            progress.advance(task)
    for point, count in sorted(points.items()):
        _console.print(f"  {point:<28} {count:>6}")
    return struck, findings


def _one(folder: Path, plan: tuple[int, Case, tuple[Path, Truth]]) -> tuple[Case, int, list[str]]:
    number, case, (template, truth) = plan
    return case, *run_case(case, template, folder / f"case-{number}", truth)


def spark_campaign(cases: int, seed: int, folder: Path, workers: int) -> tuple[int, list[str]]:
    """Strike both queries in a whole Spark pipeline."""
    rng = random.Random(seed)
    struck, findings = 0, []
    planned = [(number, random_spark_case(rng, number)) for number in range(cases)]
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawned) as pool, Progress(console=_console) as progress:
        task = progress.add_task("spark", total=cases)
        for case, hits, problems in pool.map(_one_through_spark, repeat(folder), planned):
            struck += hits
            findings += [f"{case}: {problem}" for problem in problems]
            progress.advance(task)
    return struck, findings


def _one_through_spark(
    folder: Path, plan: tuple[int, SparkCase]
) -> tuple[SparkCase, int, list[str]]:
    number, case = plan
    return case, *run_spark_case(case, folder / f"spark-{number}")


def database_campaign(
    kill_count: int, cut_count: int, seed: int, folder: Path
) -> tuple[int, list[str]]:
    """Kill a real PostgreSQL, and cut its connections, under a boundary at work."""
    rng = random.Random(seed)
    struck, findings = 0, []
    server = PostgresServer()
    proxy = Proxy(server.port)
    try:
        with Progress(console=_console) as progress:
            for name, strike, wanted, pause_s in (
                ("database kills", kills(server), kill_count, 1.0),
                ("connection cuts", cuts(proxy), cut_count, 0.2),
            ):
                done, task = 0, progress.add_task(name, total=wanted)
                while done < wanted:
                    url = server.new_schema()
                    hits, problems = storm(
                        folder / f"storm-{rng.randrange(1 << 30)}",
                        rng.randrange(1 << 30),
                        url if name == "database kills" else proxy.url(url),
                        strike,
                        wanted - done,
                        pause_s,
                    )
                    done += hits
                    findings += [f"{name}: {problem}" for problem in problems]
                    progress.update(task, completed=done)
                struck += done
                _console.print(f"  {name:<28} {done:>6}")
    finally:
        proxy.close()
        server.close()
    return struck, findings


def going_back_campaign(repetitions: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """Let ledgers go back under a pipeline at work: both stores, and standbys that take a primary's place."""
    findings: list[str] = []
    server = PostgresServer(durable=False)
    try:
        for number in range(repetitions):
            here = folder / f"back-{number}"
            here.mkdir()
            for name, ledger in (("sqlite", None), ("postgres", server.new_schema)):
                pipeline.new_ledger = ledger
                (here / name).mkdir()
                found = goes_back(here / name, seed + number)
                findings += [f"{name} went back, {seed + number}: {problem}" for problem in found]
            for kind in ("synchronous", "lagging"):
                pipeline.new_ledger = None
                found = fail_over(here / kind, seed + number, synchronous=kind == "synchronous")
                findings += [f"{kind} standby, {seed + number}: {problem}" for problem in found]
    finally:
        pipeline.new_ledger = None
        server.close()
    _console.print(f"  ledgers that went back       {4 * repetitions:>6}")
    return 4 * repetitions, findings


def crowd_campaign(events: int, folder: Path) -> list[str]:
    """Run two pipelines at once that carry the same events, on both stores."""
    findings = []
    server = PostgresServer()
    try:
        for name, url in (("sqlite", "sqlite:data/ledger.db"), ("postgres", server.new_schema())):
            began = time.monotonic()
            run, problems = crowd(folder / f"crowd-{name}", url, events)
            findings += [f"two pipelines on {name}: {problem}" for problem in problems]
            if (run["admitted"], run["duplicates"], run["balanced"]) != (events, events, True):
                findings.append(f"two pipelines on {name}: {run}")
            _console.print(
                f"  two pipelines on {name:<10} {2 * events:>9,} deliveries"
                f" {run['admitted']:>9,} admitted {time.monotonic() - began:>6.0f} s"
            )
    finally:
        server.close()
    return findings


def main() -> None:
    """Run the campaigns and exit with 1 when anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boundary", type=int, default=2000, help="cases on admit()")
    parser.add_argument("--spark", type=int, default=60, help="cases through Spark")
    parser.add_argument("--kills", type=int, default=50, help="kills of the database")
    parser.add_argument("--cuts", type=int, default=100, help="cuts of its connections")
    parser.add_argument(
        "--crowd", type=int, default=500_000, help="events of two pipelines at once"
    )
    parser.add_argument("--back", type=int, default=50, help="ledgers that go back, of each kind")
    parser.add_argument("--kafka", type=int, default=300, help="faults on a real Kafka")
    parser.add_argument(
        "--held", type=int, default=300, help="requests of each kind that Kafka gets late"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    _console.print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="admitone-faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began = time.monotonic()
        struck, findings = boundary_campaign(
            options.boundary, options.seed, folder, options.workers
        )
        for more, others in (
            database_campaign(options.kills, options.cuts, options.seed, folder),
            (0, crowd_campaign(options.crowd, folder) if options.crowd else []),
            kafka_campaign(
                options.kafka, options.held, options.seed, folder, options.workers, _console
            ),
            going_back_campaign(options.back, options.seed, folder),
            kafka_campaign(options.kafka, options.seed, folder, options.workers, _console),
            spark_campaign(options.spark, options.seed, folder, options.workers),
        ):
            struck, findings = struck + more, findings + others
        minutes = (time.monotonic() - began) / 60
    _console.print(
        f"{options.boundary} boundary cases, {options.kills} kills and {options.cuts} cuts of the database,"
        f" {options.kafka} faults on Kafka and {options.held} late requests of each kind,"
        f" {options.spark} Spark cases: {struck} faults struck,"
        f" {options.back} ledgers of each kind that went back,"
        f" {options.kafka} faults on Kafka, {options.spark} Spark cases: {struck} faults struck,"
        f" {len(findings)} findings, {minutes:.1f} minutes"
    )
    for finding in findings[:50]:
        _console.print(finding, soft_wrap=True)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
