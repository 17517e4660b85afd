"""`python -m benchmarks.postgres_ledger`: claim and settle on PostgreSQL, as the number of keys grows.

One process claims blocks of new events and settles them, one after the other, on a durable server of its own on this
machine. At each level the rate is that of the last blocks before it. A block carries what a real one does: facts, a
filter over its names, a journal of compressed originals, verdicts, places on the log.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
from tests.servers.postgres import PostgresServer

from admitone.core.decisions import BlockState
from admitone.ledger.model import (
    Claim,
    Claimed,
    Destination,
    Outcome,
    Source,
)
from admitone.ledger.postgres.store import PostgresStore
from admitone.ledger.stored_ledger import StoredLedger
from benchmarks.synthetic import block

HERE = Path(__file__).parent
SERVER = {
    "shared_buffers": "2GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "wal_buffers": "64MB",
    "wal_compression": "lz4",
    "maintenance_work_mem": "256MB",
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
}
RETENTION_MS = 100 * 86_400_000
NOW = 1_700_000_000_000
SOURCE = Source(1, 0)
SEED = 1


@dataclass(frozen=True)
class Figure:
    """The ledger with so many keys."""

    keys: int
    keys_per_second: int
    claim_ms: int
    settle_ms: int
    bytes_per_key: float


def main() -> None:
    """Fill a ledger level by level, print the figures and write them next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--levels", type=float, nargs="+", default=[1, 5, 20], help="millions of keys"
    )
    parser.add_argument("--block", type=int, default=50_000, help="deliveries in a block")
    parser.add_argument("--last", type=int, default=10, help="blocks that a rate is taken from")
    parser.add_argument("--journal", type=int, default=80, help="bytes of journal per delivery")
    options = parser.parse_args()
    server = PostgresServer(settings=SERVER)
    try:
        figures = fill(server, options)
    finally:
        server.close()
    document = {
        "command": "python -m benchmarks.postgres_ledger",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}, server on the same cores",
        "block": options.block,
        "journal_bytes_per_delivery": options.journal,
        "server": SERVER,
        "figures": [asdict(figure) for figure in figures],
    }
    (HERE / "postgres_ledger.json").write_text(json.dumps(document, indent=2) + "\n")


def fill(server: PostgresServer, options: argparse.Namespace) -> list[Figure]:
    """Claim and settle up to the highest level."""
    url = server.new_schema()
    ledger = StoredLedger(PostgresStore(url))
    ledger.register_source(SOURCE, "benchmark", "raw", "raw-1")
    epoch = ledger.take_epoch(SOURCE, None)
    random = np.random.default_rng(SEED)
    levels = sorted(int(level * 1_000_000) for level in options.levels)
    took: list[tuple[float, float]] = []
    figures: list[Figure] = []
    keys = 0
    print(f"{'keys':>12} {'keys/s':>9} {'claim':>8} {'settle':>8} {'bytes/key':>10}")
    while keys < levels[-1]:
        facts = block(keys, options.block, SEED)
        took.append(
            claim_and_settle(ledger, epoch, facts, random.bytes(options.block * options.journal))
        )
        keys += options.block
        if keys >= levels[len(figures)]:
            claims, settles = np.mean(took[-options.last :], axis=0)
            figure = Figure(
                keys,
                round(options.block / (claims + settles)),
                round(claims * 1000),
                round(settles * 1000),
                round(segment_bytes(url) / keys, 1),
            )
            print(
                f"{figure.keys:>12,} {figure.keys_per_second:>9,} {figure.claim_ms:>5} ms"
                f" {figure.settle_ms:>5} ms {figure.bytes_per_key:>10}",
                flush=True,
            )
            figures.append(figure)
    ledger.close()
    return figures


def claim_and_settle(
    ledger: StoredLedger, epoch: int, facts: pa.Table, journal: bytes
) -> tuple[float, float]:
    """Return how long the two transactions of a block took, in seconds."""
    mark = ledger.mark(SOURCE)
    places = (Destination("admitted", "admitted-1", "kafka", (0, 0, 0, 0)),)
    begun = time.perf_counter()
    claimed = ledger.claim(Claim(SOURCE, epoch, mark, facts, journal, places, RETENTION_MS, 1, NOW))
    granted = time.perf_counter()
    assert isinstance(claimed, Claimed)
    offsets = np.arange(mark.offset + 1, mark.offset + 1 + facts.num_rows)
    ledger.conclude(claimed.block, epoch, Outcome(BlockState.SETTLED, offsets, NOW, NOW))
    return granted - begun, time.perf_counter() - granted


def segment_bytes(url: str) -> int:
    """Return the size of all segments, indexes included."""
    with psycopg.connect(url) as db:
        row = db.execute(
            "SELECT sum(pg_total_relation_size(format('%%I.%%I', schemaname, tablename)::regclass))"
            " FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE %s",
            ("admission.%",),
        ).fetchone()
    assert row is not None
    return int(row[0])


if __name__ == "__main__":
    main()
