"""What it takes to close and to verify a run of many admissions: seconds, and the most memory (CLS-5).

python -m benchmarks.closing [--events 1000000]

The boundary admits so many new events in portions, without Spark, on the embedded default. Then the gate is asked, once
more after one part in a hundred more deliveries, the run is closed and verified: each in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from admitone.demo.traffic import GeneratorOptions, generate
from admitone.ops import close as ops
from admitone.ops.stores import Stores
from admitone.settings import load_settings
from benchmarks.in_process import decide

PORTION = 200_000
SETTINGS = {"transport": {"raw_partitions": 4}, "pipeline": {"quarantine_limit": 1.0}}


def fill(home: Path, lines: Iterator[bytes], events: int) -> None:
    """Deliver and decide so many more events."""
    while portion := list(islice(lines, min(PORTION, events))):
        events -= len(portion)
        decide(load_settings(home, **SETTINGS), portion).close()


def gate(home: Path) -> int:
    """Ask the gate; return how many admissions it recomputed."""
    closing = ops.close(Stores(load_settings(home, **SETTINGS)), "default", dry_run=True)
    assert closing.gate.green, closing.gate.blockers
    return int(closing.gate.checks[0].evidence.split()[0])


def close(home: Path) -> int:
    """Close the run."""
    closing = ops.close(Stores(load_settings(home, **SETTINGS)), "default", author="bench")
    assert closing.artifact is not None
    return closing.artifact["receipts"]


def verify(home: Path) -> int:
    """Verify the run."""
    found = ops.verify(Stores(load_settings(home, **SETTINGS)), "default")
    assert found.verified
    return len(found.comparisons)


def measured(what: Callable[[Path], int], home: Path) -> dict[str, float]:
    """Return the seconds and the megabytes that something takes in a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measured, args=(what, home, there))
    process.start()
    try:
        found: dict[str, float] = here.recv()
    finally:
        process.join()
    return found


def _measured(what: Callable[[Path], int], home: Path, answer: object) -> None:
    began = time.perf_counter()
    count = what(home)
    found = {
        "seconds": round(time.perf_counter() - began, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024,
        "count": count,
    }
    answer.send(found)  # type: ignore[attr-defined]


def main() -> None:
    """Print and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    wanted = parser.parse_args().events
    options = GeneratorOptions(
        events=wanted * 102 // 100, seed=3, duplicates=0, contradictions=0, malformed=0, late=0
    )
    lines = (delivery.line for delivery in generate(options))
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        began = time.perf_counter()
        fill(home, lines, wanted)
        found = {"events": wanted, "filled_in_s": round(time.perf_counter() - began, 1)}
        found["gate"] = measured(gate, home)
        fill(home, lines, wanted // 100)
        found["gate, 1 % more"] = measured(gate, home)
        found["close"] = measured(close, home)
        found["verify"] = measured(verify, home)
    print(json.dumps(found, indent=1))
    (Path(__file__).parent / f"closing_{wanted}.json").write_text(
        json.dumps(found, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
