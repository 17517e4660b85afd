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

from admitone.traffic import Truth
from tests.faults.harness import Case, prepare, random_case, run_case
from tests.faults.spark_harness import random_spark_case, run_spark_case

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


def spark_campaign(cases: int, seed: int, folder: Path) -> tuple[int, list[str]]:
    """Strike both queries in a whole Spark pipeline."""
    rng = random.Random(seed)
    struck, findings = 0, []
    with Progress(console=_console) as progress:
        task = progress.add_task("spark", total=cases)
        for number in range(cases):
            case = random_spark_case(rng, number)
            hits, problems = run_spark_case(case, folder / f"spark-{number}")
            struck += hits
            findings += [f"{case}: {problem}" for problem in problems]
            progress.advance(task)
    return struck, findings


def main() -> None:
    """Run both campaigns and exit with 1 when anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--boundary", type=int, default=2000, help="cases on admit()")
    parser.add_argument("--spark", type=int, default=60, help="cases through Spark")
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
        more, others = spark_campaign(options.spark, options.seed, folder)
        minutes = (time.monotonic() - began) / 60
    findings += others
    _console.print(
        f"{options.boundary} boundary cases and {options.spark} Spark cases, {struck + more} faults struck,"
        f" {len(findings)} findings, {minutes:.1f} minutes"
    )
    for finding in findings[:50]:
        _console.print(finding, soft_wrap=True)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
