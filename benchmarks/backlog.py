"""`python -m benchmarks.backlog`: peak memory of the boundary on Kafka, with little and with much waiting.

The same pipeline with the same small batches decides a backlog of 100,000 deliveries and one of a million, each in
processes of its own. Memory is the proportional size: of the Python driver and its workers together, and of the JVM,
which its heap bounds. What must not grow with the backlog is their peak.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer

from admitone.settings import Settings, load_settings
from benchmarks.throughput import prepare

HERE = Path(__file__).parent
MAX_PER_TRIGGER = 20_000


@dataclass(slots=True)
class Peak:
    """What one backlog took at its worst moment."""

    backlog: int
    seconds: float = 0.0
    python_mb: int = 0
    jvm_mb: int = 0


def main() -> None:
    """Measure both backlogs, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, nargs="+", default=[100_000, 1_000_000])
    options = parser.parse_args()
    broker, server = KafkaBroker(), PostgresServer(durable=False)
    try:
        peaks = [measure(broker, server.new_schema(), events) for events in options.events]
    finally:
        server.close()
        broker.close()
    for peak in peaks:
        print(
            f"{peak.backlog:>10,} waiting {peak.seconds:>7.1f} s   driver and workers {peak.python_mb:>6,} MB"
            f"   JVM {peak.jvm_mb:>6,} MB"
        )
    document = {
        "command": "python -m benchmarks.backlog",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "max_per_trigger": MAX_PER_TRIGGER,
        "peaks": [asdict(peak) for peak in peaks],
    }
    (HERE / "backlog.json").write_text(json.dumps(document, indent=2) + "\n")


def measure(broker: KafkaBroker, ledger: str, events: int) -> Peak:
    """Decide one backlog through the command line and watch its memory."""
    with tempfile.TemporaryDirectory(prefix="admitone-bench-") as name:
        settings = configured(Path(name), broker, ledger, events)
        prepare(settings, events)
        began = time.monotonic()
        child = subprocess.Popen(
            [sys.executable, "-m", "admitone", "run", "boundary", "--until-idle", "--home", name]
        )
        peak = Peak(events)
        while child.poll() is None:
            watch(child.pid, peak)
            time.sleep(2)  # asking for memory costs the process that is asked
        if child.returncode != 0:
            raise SystemExit(f"the boundary failed with {child.returncode}")
        peak.seconds = round(time.monotonic() - began, 1)
        return peak


def configured(home: Path, broker: KafkaBroker, ledger: str, events: int) -> Settings:
    """Write the configuration that is measured."""
    (home / "admitone.toml").write_text(
        f"""
[pipeline]
max_block = 5000

[transport]
kind = "kafka"
raw_topic = "raw-{events}"
max_per_trigger = {MAX_PER_TRIGGER}

[transport.kafka]
bootstrap = "{broker.bootstrap}"

[ledger]
url = "{ledger}"

[spark]
driver_memory = "1g"

[[topics]]
family = "traffic"
topic = "admitted-{events}"
event_types = ["page_view", "product_view", "api_request", "search", "purchase"]
"""
    )
    return load_settings(home)


def watch(pid: int, peak: Peak) -> None:
    """Raise the peaks by what the driver, its JVM and its workers take now."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        taken = [(process.name(), process.memory_full_info().pss >> 20) for process in family]
    except psutil.Error:
        return
    jvm = sum(size for name, size in taken if name == "java")
    peak.jvm_mb = max(peak.jvm_mb, jvm)
    peak.python_mb = max(peak.python_mb, sum(size for _, size in taken) - jvm)


if __name__ == "__main__":
    main()
