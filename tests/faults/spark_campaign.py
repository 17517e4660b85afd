"""Kills and suspensions by the dozen at the crash points of both queries of a Spark pipeline."""

from __future__ import annotations

import os
import random
from pathlib import Path

from rich.console import Console

from tests.faults.pieces import Found, run_pieces
from tests.faults.spark_harness import SparkCase, random_spark_case, run_spark_case


def spark_campaign(cases: int, seed: int, folder: Path, console: Console) -> Found:
    """Strike whole pipelines, as a user starts them."""
    # Each case starts several short sessions: optimising what they run once takes half the time of their JVMs.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    rng = random.Random(seed)
    pieces = (
        (_strike, random_spark_case(rng, number), folder / f"spark-{number}")
        for number in range(cases)
    )
    return run_pieces("spark", pieces, console)


def _strike(case: SparkCase, home: Path) -> Found:
    struck, problems = run_spark_case(case, home)
    kind = "kills" if case.action == "kill" else "suspensions"
    return {kind: struck}, [f"{case}: {problem}" for problem in problems]
