"""`make bench`: events per second through the boundary and through the analytics, on the embedded default.

What is timed is what a user waits for: from the start of the query on a backlog until every delivery is decided and its
evidence written, or every admitted record is counted. *Steady* leaves out the time in which Spark starts its workers
and warms up: it begins when two fifths are done. Memory is the peak of the driver, its JVM and all workers together.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from admitone.demo.traffic import GeneratorOptions, generate
from admitone.ops.lag import LagMeter
from admitone.settings import Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """One query on one backlog."""

    query: str
    events: int
    seconds: float
    per_second: int
    per_core: int
    steady_per_second: int
    peak_memory_mb: int


def main() -> None:
    """Run both queries, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--query", choices=("boundary", "analytics"), help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.query:
        print(json.dumps(run_query(options.query, options.home)))
        return
    with tempfile.TemporaryDirectory(prefix="admitone-bench-") as name:
        settings = load_settings(name)
        prepare(settings, options.events)
        figures = [measure(query, settings) for query in ("boundary", "analytics")]
    for figure in figures:
        print(
            f"{figure.query:<10} {figure.events:>10,} events {figure.seconds:>7.1f} s"
            f" {figure.per_second:>9,}/s {figure.per_core:>8,}/s per core"
            f" {figure.steady_per_second:>9,}/s steady {figure.peak_memory_mb:>7,} MB"
        )
    document = {
        "command": "make bench",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "figures": [asdict(figure) for figure in figures],
    }
    (HERE / "throughput.json").write_text(json.dumps(document, indent=2) + "\n")


def prepare(settings: Settings, events: int) -> None:
    """Fill the raw log with what 1,000 events/s leave behind: five types, 20 % duplicates, about 475 bytes each."""
    transport = open_transport(settings)
    topic = raw_topic(settings, transport)
    options = GeneratorOptions(events, seed=1, rate=1_000, end_ms=int(time.time() * 1000) - 60_000)
    for total in ingest_lines(transport, topic, (delivery.line for delivery in generate(options))):
        print(f"\ringested {total.deliveries:,}", end="", file=sys.stderr)
    print(file=sys.stderr)


def measure(query: str, settings: Settings) -> Figure:
    """Run a query in a process of its own and watch its memory."""
    child = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "benchmarks.throughput",
            "--query",
            query,
            "--home",
            str(settings.home),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    peak = [0]
    watcher = threading.Thread(target=_watch, args=(child.pid, peak))
    watcher.start()
    out, _ = child.communicate()
    watcher.join()
    if child.returncode != 0:
        raise SystemExit(f"the {query} benchmark failed with {child.returncode}")
    found = json.loads(out.splitlines()[-1])
    per_second = found["events"] / found["seconds"]
    return Figure(
        query,
        found["events"],
        round(found["seconds"], 1),
        round(per_second),
        round(per_second / (os.cpu_count() or 1)),
        round(found["steady"]),
        peak[0] >> 20,
    )


def run_query(query: str, home: Path) -> dict[str, float]:
    """Run one query until it is idle; return how many events it did in which time."""
    from admitone.spark.analytics_query import analytics_query
    from admitone.spark.boundary_query import boundary_query
    from admitone.spark.session import open_session

    settings = load_settings(home)
    spark = open_session(settings)
    meter = LagMeter(settings)
    begun = time.monotonic()
    if query == "boundary":
        running = boundary_query(spark, settings, "0 seconds")
    else:
        running = analytics_query(spark, settings, "0 seconds")
    warm: tuple[float, int] | None = None
    while True:
        lag = meter.measure()
        partitions = (lag.boundary if query == "boundary" else lag.analytics).partitions
        done, events = sum(p.done for p in partitions), sum(p.end for p in partitions)
        if warm is None and done >= events * 2 / 5:
            warm = (time.monotonic(), done)
        if lag.idle(boundary=query == "boundary", analytics=query == "analytics"):
            break
        if not running.isActive:
            raise SystemExit(str(running.exception()))
        time.sleep(0.25)
    ended = time.monotonic()
    assert warm is not None
    steady = (events - warm[1]) / (ended - warm[0])
    running.stop()
    spark.stop()
    return {"events": events, "seconds": ended - begun, "steady": steady}


def _watch(pid: int, peak: list[int]) -> None:
    while psutil.pid_exists(pid):
        try:
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            # Forked workers share pages with their parent: proportional size counts each page once.
            peak[0] = max(peak[0], sum(process.memory_full_info().pss for process in family))
        except psutil.Error:
            pass
        time.sleep(5)  # asking for memory costs the process that is asked


if __name__ == "__main__":
    main()
