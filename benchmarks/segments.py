"""`python -m benchmarks.segments`: what it costs to keep and to drop segments, in both ledgers.

PostgreSQL, a durable server with the documented settings on this machine: keys are claimed over one whole retention, so
that 20 million are live in three segments; the rate at 20 million is that of the last blocks, and so is the one at
1 million. Then the first segment, a quarter of the keys, expires and is dropped while another process keeps claiming
small blocks. SQLite: a segment of some million keys expires while another process wants the write lock all the time;
how long it has to wait at most is how long the expiry held it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from tests.servers.postgres import PostgresServer

from admitone.ledger.model import Source
from admitone.ledger.port import Ledger
from admitone.ledger.postgres.store import PostgresStore
from admitone.ledger.sqlite.store import SqliteStore
from admitone.ledger.stored_ledger import StoredLedger
from benchmarks.longrun import Plan, decide
from benchmarks.postgres_ledger import SERVER

HERE = Path(__file__).parent
DAY_MS = 86_400_000
RETENTION_MS = 100 * DAY_MS
FILLER, PROBE = Source(1, 0), Source(2, 0)
FIRST_PROBE_KEY = 1 << 40


def main() -> None:
    """Measure both stores, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--keys", type=float, default=20, help="millions of live keys in PostgreSQL"
    )
    parser.add_argument("--sqlite-keys", type=float, default=3, help="millions in one segment")
    parser.add_argument("--block", type=int, default=50_000)
    parser.add_argument("--stores", nargs="+", default=["postgresql", "sqlite"])
    options = parser.parse_args()
    file = HERE / "segments.json"
    document = json.loads(file.read_text()) if file.exists() else {}
    document |= {
        "command": "python -m benchmarks.segments",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, server on the same cores",
    }
    if "postgresql" in options.stores:
        document["postgresql"] = on_postgres(int(options.keys * 1e6), options.block)
    if "sqlite" in options.stores:
        document["sqlite"] = on_sqlite(int(options.sqlite_keys * 1e6), options.block)
    print(json.dumps(document, indent=2))
    file.write_text(json.dumps(document, indent=2) + "\n")


def on_postgres(keys: int, block: int) -> dict[str, Any]:
    """Fill a ledger with live keys, then drop its oldest segment under claims."""
    server = PostgresServer(settings=SERVER)
    try:
        url = server.new_schema()
        ledger = StoredLedger(PostgresStore(url))
        # From the middle of one segment to the middle of the one after the next: a quarter, a half, a quarter.
        plan = Plan(keys, 100, RETENTION_MS, block, 0.0, begins_at=RETENTION_MS // 4)
        rates = filled(ledger, plan, [min(1_000_000, keys), keys])
        segments = _key_counts(url)
        moment = later(ledger, plan, 130)
        stop, ready = multiprocessing.Event(), multiprocessing.Event()
        with _beside(_claiming, url, moment, ready, stop) as waits:
            ready.wait(60)
            time.sleep(2)
            begun = time.time()
            (dropped,) = ledger.expire_segments(RETENTION_MS)
            ended = time.time()
            time.sleep(2)
            stop.set()
        during = [took for at, took in waits if begun - took <= at <= ended]
        quiet = [took for at, took in waits if at + took < begun or at > ended]
        ledger.close()
    finally:
        server.close()
    return {
        "server": SERVER,
        "keys_in_segments": segments,
        "keys_per_second": {f"{level:,}": rate for level, rate in rates.items()},
        "rate_kept": round(rates[keys] / rates[min(rates)], 2),
        "dropped": {"segment": dropped, "keys": segments[dropped]},
        "drop_seconds": round(ended - begun, 3),
        "longest_claim_meanwhile_seconds": round(max(during, default=0.0), 3),
        "longest_claim_otherwise_seconds": round(max(quiet), 3),
        "claims_of": 1_000,
    }


def filled(ledger: Ledger, plan: Plan, levels: list[int], last: int = 10) -> dict[int, int]:
    """Claim and settle everything; return the rate of the last blocks before each level."""
    ledger.register_source(FILLER, "benchmark", "raw", "raw-1")
    epoch = ledger.take_epoch(FILLER, None)
    took: list[float] = []
    rates = {}
    for number in range(plan.blocks):
        keys = plan.new(number)
        begun = time.perf_counter()
        decide(ledger, FILLER, epoch, plan.retention_ms, keys, plan.time_of(keys))
        took.append(time.perf_counter() - begun)
        reached = (number + 1) * plan.size
        if reached in levels:
            rates[reached] = round(plan.size / float(np.mean(took[-last:])))
            print(f"{reached:>12,} keys {rates[reached]:>9,} keys/s", flush=True)
    return rates


def later(ledger: Ledger, plan: Plan, days: int) -> int:
    """Let one more block come so many days after the first, and return when."""
    moment = plan.start + days * DAY_MS
    keys = np.arange(FIRST_PROBE_KEY - plan.size, FIRST_PROBE_KEY)
    epoch = ledger.take_epoch(FILLER, None)
    decide(ledger, FILLER, epoch, RETENTION_MS, keys, np.full(len(keys), moment))
    return moment


@contextmanager
def _beside(work: Any, *arguments: Any) -> Iterator[list[tuple[float, float]]]:
    """Run a process and collect what it says, once it is done."""
    found: list[tuple[float, float]] = []
    inbox = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=work, args=(*arguments, inbox))
    process.start()
    yield found
    found += inbox.get()
    process.join()


def _claiming(url: str, moment: int, ready: Event, stop: Event, outbox: Any) -> None:
    """Claim and settle small blocks until told to stop; say when each began and how long it took."""
    ledger = StoredLedger(PostgresStore(url))
    ledger.register_source(PROBE, "benchmark", "raw", "raw-2")
    epoch = ledger.take_epoch(PROBE, None)
    waits, number = [], 0
    while not stop.is_set():
        keys = np.arange(FIRST_PROBE_KEY + number * 1_000, FIRST_PROBE_KEY + (number + 1) * 1_000)
        begun = time.time()
        decide(ledger, PROBE, epoch, RETENTION_MS, keys, np.full(len(keys), moment))
        waits.append((begun, time.time() - begun))
        number += 1
        ready.set()
    outbox.put(waits)
    ledger.close()


def _key_counts(url: str) -> dict[str, int]:
    with psycopg.connect(url) as db:
        names = db.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            " AND tablename LIKE 'admission.%'"
        ).fetchall()
        return {
            name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # type: ignore[index] # noqa: S608
            for (name,) in sorted(names)
        }


def on_sqlite(keys: int, block: int) -> dict[str, Any]:
    """Let a large segment expire while another process wants the write lock all the time."""
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "ledger.db"
        ledger = StoredLedger(SqliteStore(path))
        plan = Plan(keys, 40, RETENTION_MS, block, 0.0)
        filled(ledger, plan, [keys])
        later(ledger, plan, 200)
        stop, ready = multiprocessing.Event(), multiprocessing.Event()
        with _beside(_wanting_the_lock, path, ready, stop) as waits:
            ready.wait(60)
            time.sleep(1)
            begun = time.time()
            dropped = ledger.expire_segments(RETENTION_MS)
            ended = time.time()
            time.sleep(1)
            stop.set()
        ledger.close()
    during = [took for at, took in waits if begun - took <= at <= ended]
    quiet = [took for at, took in waits if at + took < begun or at > ended]
    return {
        "dropped": dropped,
        "keys": keys,
        "seconds": round(ended - begun, 1),
        "others_meanwhile": len(during),
        "longest_wait_for_the_lock_ms": round(max(during) * 1000, 1),
        "wait_ms_99_percent": round(float(np.percentile(during, 99)) * 1000, 1),
        "longest_wait_otherwise_ms": round(max(quiet) * 1000, 1),
    }


def _wanting_the_lock(path: Path, ready: Event, stop: Event, outbox: Any) -> None:
    """Take the write lock again and again, without ever sleeping for it; say when and how long that took."""
    db = sqlite3.connect(path, isolation_level=None, timeout=0)
    waits = []
    while not stop.is_set():
        begun = time.time()
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                break
            except sqlite3.OperationalError:
                continue
        waits.append((begun, time.time() - begun))
        db.execute("ROLLBACK")
        time.sleep(0.001)
        ready.set()
    outbox.put(waits)
    db.close()


if __name__ == "__main__":
    main()
