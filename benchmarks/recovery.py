"""`python -m benchmarks.recovery`: how long until the boundary decides again, with five million live keys.

Each case ends with the same question: a few thousand new deliveries wait on the log, `admitone run boundary` is started
on what was left, and the clock runs until the last of them is decided, Spark's start included.

    empty worker      another machine: nothing but the configuration; log, ledger and evidence are elsewhere
    lost state        the same machine without its checkpoints and whatever else the queries kept locally
    restored ledger   a copy of the ledger that is behind the log: `reconcile --restored` first, timed as well
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
from tests.servers.copies import copy_of
from tests.servers.postgres import PostgresServer

from admitone.ledger import open_ledger
from admitone.ledger.port import Ledger
from admitone.settings import FILE_NAME, Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic
from benchmarks.longrun import Plan
from benchmarks.postgres_ledger import SERVER
from benchmarks.segments import RETENTION_MS, filled

HERE = Path(__file__).parent
WAITING = 4_000
MOMENT = "2025-11-01T10:00:00.000Z"
"""Behind the keys that fill the ledger, and near enough for all of them to be live."""
_CONFIGURATION = """[ledger]
url = "{ledger}"
[transport]
path = "{shared}/log"
[evidence]
path = "{shared}/evidence"
"""


def main() -> None:
    """Measure all cases on both ledgers, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=float, default=5, help="millions of live keys")
    parser.add_argument("--behind", type=int, default=200_000, help="deliveries since the copy")
    parser.add_argument("--stores", nargs="+", default=["sqlite", "postgresql"])
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": "python -m benchmarks.recovery",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "live_keys": int(options.keys * 1e6),
        "behind_the_log": options.behind,
    }
    for store in options.stores:
        with tempfile.TemporaryDirectory(prefix="admitone-recovery-") as folder:
            server = PostgresServer(settings=SERVER) if store == "postgresql" else None
            try:
                url = server.new_schema() if server else f"sqlite:{folder}/shared/ledger.db"
                document[store] = measured(Path(folder), url, options)
            finally:
                if server:
                    server.close()
    print(json.dumps(document, indent=2))
    (HERE / "recovery.json").write_text(json.dumps(document, indent=2) + "\n")


def measured(folder: Path, url: str, options: argparse.Namespace) -> dict[str, float]:
    """Fill a ledger and lose one thing after the other."""
    home = a_home(folder / "home", folder / "shared", url)
    settings = load_settings(home)
    ledger = open_ledger(settings)
    filled(ledger, Plan(int(options.keys * 1e6), 40, RETENTION_MS, 50_000, 0.0), [])
    deliver(settings, "first", 1_000)
    run(home)
    found: dict[str, float] = {}

    elsewhere = a_home(folder / "elsewhere", folder / "shared", url)
    found["empty_worker_seconds"] = decided_again(elsewhere, ledger, settings, "empty")

    shutil.rmtree(elsewhere / "data")
    found["lost_state_seconds"] = decided_again(elsewhere, ledger, settings, "lost")

    restore = copy_of(ledger, settings, folder / "copy")
    deliver(settings, "since", options.behind)
    run(home)
    ledger.close()
    restore()
    begun = time.perf_counter()
    run(home, "reconcile", "--restored")
    read_back = time.perf_counter() - begun
    found["read_back_seconds"] = round(read_back, 1)
    after = decided_again(home, ledger, settings, "restored")
    found["restored_ledger_seconds"] = round(read_back + after, 1)
    ledger.close()
    return found


def a_home(home: Path, shared: Path, url: str) -> Path:
    """Return a home folder that has nothing but its configuration."""
    home.mkdir()
    shared.mkdir(exist_ok=True)
    (home / FILE_NAME).write_text(_CONFIGURATION.format(ledger=url, shared=shared))
    return home


def deliver(settings: Settings, name: str, deliveries: int) -> None:
    """Append so many new events to the raw log."""
    transport = open_transport(settings)
    lines = (page_view(f"{name}-{number}") for number in range(deliveries))
    for _ in ingest_lines(transport, raw_topic(settings, transport), lines):
        pass


def page_view(event_id: str) -> bytes:
    """Return one event as a line of JSON."""
    metadata = {
        "eventId": event_id,
        "eventType": "page_view",
        "source": "bench",
        "timestamp": MOMENT,
        "partitionKey": "k",
        "schemaVersion": 1,
    }
    return orjson.dumps({"metadata": metadata, "payload": {"url": "/a"}})


def decided_again(home: Path, ledger: Ledger, settings: Settings, name: str) -> float:
    """Return how long it takes from a start until everything that waits is decided."""
    wanted = decided(ledger) + WAITING
    deliver(settings, name, WAITING)
    begun = time.perf_counter()
    process = subprocess.Popen(_command(home, "run", "boundary"), stderr=subprocess.DEVNULL)
    try:
        while decided(ledger) < wanted:
            if process.poll() is not None:
                raise RuntimeError(f"the pipeline ended with {process.returncode}")
            time.sleep(0.05)
        return round(time.perf_counter() - begun, 1)
    finally:
        process.terminate()
        process.wait()


def decided(ledger: Ledger) -> int:
    """Return how many deliveries of the pipeline are decided."""
    return sum(info.decided for info in ledger.sources() if info.pipeline == "admitone")


def run(home: Path, *command: str) -> None:
    """Run a command to its end."""
    chosen = command or ("run", "boundary", "--until-idle")
    subprocess.run(_command(home, *chosen), check=True, stdout=subprocess.DEVNULL)


def _command(home: Path, *command: str) -> list[str]:
    return [sys.executable, "-m", "admitone", *command, "--home", str(home)]


if __name__ == "__main__":
    main()
