"""`python -m benchmarks.bytes_per_key`: what a key, a delivery and an admission cost on disk, in both ledgers.

Keys are what the segments of a ledger take, indexes included, at several numbers of keys. Columns are all the rest of
it but the journal, at several sizes of blocks and of event ids. Evidence and log are measured on generated traffic
that is decided without Spark; memory is that of the boundary in Spark, with small and with large batches. The sizing
model (core/sizing.py) carries what is fitted to these figures; a test keeps both equal.
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from tests.servers.postgres import PostgresServer

from admitone.demo.traffic import GeneratorOptions, generate
from admitone.ledger import open_ledger
from admitone.ledger.port import Ledger
from admitone.settings import FILE_NAME, Settings, load_settings
from admitone.transport.port import Transport
from benchmarks.in_process import decide
from benchmarks.postgres_ledger import SOURCE, claim_and_settle
from benchmarks.synthetic import START_MS, block
from benchmarks.throughput import measure, prepare

HERE = Path(__file__).parent
SEED = 3
KEY_SHAPES = [(1_000, [500_000]), (50_000, [200_000, 1_000_000, 2_000_000, 5_000_000])]
COLUMN_SHAPES = [
    (block_size, key_bytes, blocks)
    for block_size, blocks in ((100, 1_000), (1_000, 200), (10_000, 30), (50_000, 10))
    for key_bytes in (16, 64)
]
HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


class Store(NamedTuple):
    """An empty ledger, and how to ask for the size of each of its tables and indexes."""

    ledger: Ledger
    sizes: Callable[[], dict[str, int]]


def main() -> None:
    """Measure, print and write the figures next to this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=300_000, help="of generated traffic")
    options = parser.parse_args()
    document: dict[str, Any] = {
        "command": "python -m benchmarks.bytes_per_key",
        "versions": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
        "keys": [],
        "columns": [],
    }
    for name, new_store in STORES.items():
        for block_size, levels in KEY_SHAPES:
            with new_store() as store:
                for keys, size, index in keys_by_level(store, block_size, levels):
                    document["keys"].append(
                        _row(store=name, block=block_size, keys=keys, bytes=size, index_bytes=index)
                    )
        for block_size, key_bytes, blocks in COLUMN_SHAPES:
            with new_store() as store:
                size = columns_of(store, block_size, key_bytes, blocks)
            document["columns"].append(
                _row(
                    store=name, block=block_size, blocks=blocks, key_bytes=key_bytes, bytes=size
                )
            )  # fmt: skip
    document["traffic"] = traffic(options.events)
    document["memory"] = [memory(options.events, batch) for batch in (5_000, options.events)]
    document["model"] = fitted(document)
    print(json.dumps(document["model"], indent=2))
    (HERE / "bytes_per_key.json").write_text(json.dumps(document, indent=2) + "\n")


def fitted(document: dict[str, Any]) -> dict[str, Any]:
    """Return the constants of the model: those with the smallest relative errors, in squares."""
    model: dict[str, Any] = {}
    for name in STORES:
        keys = [row for row in document["keys"] if row["store"] == name]
        columns = [row for row in document["columns"] if row["store"] == name]
        per_block, per_delivery, per_id_byte = _least_squares(
            [
                (row["blocks"], deliveries, deliveries * row["key_bytes"])
                for row in columns
                for deliveries in [row["blocks"] * row["block"]]
            ],
            [row["bytes"] for row in columns],
        )
        model[name] = {
            "key": _least_squares([(row["keys"],) for row in keys], [row["bytes"] for row in keys])[
                0
            ],
            "key_index": max(row["index_bytes"] / row["keys"] for row in keys),
            "column_block": per_block,
            "column_delivery": per_delivery,
            "column_id_byte": per_id_byte,
        }
    found = document["traffic"]
    small, large = document["memory"]
    slope = (large["peak_mb"] - small["peak_mb"]) / (large["batch"] - small["batch"])
    model["traffic"] = {
        "receipt": found["receipts"]["bytes"] / found["receipts"]["rows"],
        "archive_share": found["archive"]["bytes"] / found["admitted"]["value_bytes"],
        "journal_share": found["journal_bytes"] / found["raw"]["value_bytes"],
        "admitted_record": found["admitted"]["other_bytes"] / found["admitted"]["records"],
    }
    model["memory"] = {
        "base_mb": small["peak_mb"] - slope * small["batch"],
        "mb_per_1000_deliveries": slope * 1_000,
    }
    return {
        part: {name: round(value, 4) for name, value in values.items()}
        for part, values in model.items()
    }


def _least_squares(rows: list[tuple[int, ...]], measured: list[int]) -> list[float]:
    sizes = np.array(measured, float)
    relative = np.array(rows, float) / sizes[:, None]
    return [float(found) for found in np.linalg.lstsq(relative, np.ones(len(sizes)), rcond=None)[0]]


def _row(**values: Any) -> dict[str, Any]:
    values = {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in values.items()
    }
    print(*(f"{name}={value}" for name, value in values.items()), flush=True)
    return values


@contextmanager
def sqlite_store() -> Iterator[Store]:
    """Make an empty ledger in SQLite."""
    with tempfile.TemporaryDirectory() as home:
        ledger = open_ledger(load_settings(home, ledger={"url": "sqlite:ledger.db"}))

        def sizes() -> dict[str, int]:
            db = sqlite3.connect(Path(home) / "ledger.db")
            found = db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall()
            db.close()
            return dict(found)

        yield Store(ledger, sizes)
        ledger.close()


@contextmanager
def postgres_store() -> Iterator[Store]:
    """Make an empty ledger in a PostgreSQL of its own; how safely it writes does not change what it writes."""
    server = PostgresServer(durable=False, settings={"shared_buffers": "512MB"})
    url = server.new_schema()
    ledger = open_ledger(load_settings(server.folder, ledger={"url": url}))

    def sizes() -> dict[str, int]:
        with psycopg.connect(url) as db:
            rows = db.execute(
                "SELECT relname, CASE relkind WHEN 'r' THEN pg_table_size(oid) ELSE pg_relation_size(oid) END"
                " FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')"
            )
            return dict(rows.fetchall())

    try:
        yield Store(ledger, sizes)
        ledger.close()
    finally:
        server.close()


def keys_by_level(
    store: Store, block_size: int, levels: list[int]
) -> Iterator[tuple[int, int, int]]:
    """Claim new keys up to each level and yield what all segments take then, and what of it a look-up goes through."""
    epoch = begin(store.ledger)
    keys = 0
    for level in levels:
        while keys < level:
            claim_and_settle(store.ledger, epoch, block(keys, block_size, SEED), b"-")
            keys += block_size
        sizes = {name: size for name, size in store.sizes().items() if is_key(name)}
        # SQLite keeps the rows in the index itself.
        index = {name: size for name, size in sizes.items() if name.endswith("_pkey")} or sizes
        yield keys, sum(sizes.values()), sum(index.values())


def columns_of(store: Store, block_size: int, key_bytes: int, blocks: int) -> int:
    """Claim and settle blocks; return what they take apart from keys and journal."""
    epoch = begin(store.ledger)
    before = rest(store.sizes())
    random = np.random.default_rng(SEED)
    for number in range(blocks):
        facts = block(number * block_size, block_size, SEED)
        ids = HEX[random.integers(0, 16, (block_size, key_bytes))].tobytes().decode()
        column = pa.array([ids[at : at + key_bytes] for at in range(0, len(ids), key_bytes)])
        place = facts.schema.get_field_index("event_id")
        facts = facts.set_column(place, facts.schema.field(place), column)
        claim_and_settle(store.ledger, epoch, facts, b"-")
    return rest(store.sizes()) - before


def begin(ledger: Ledger) -> int:
    """Register the one source and own it."""
    ledger.register_source(SOURCE, "benchmark", "raw", "raw-1")
    return ledger.take_epoch(SOURCE, None)


def is_key(table: str) -> bool:
    """Tell a segment's table and its index from the others."""
    return "admission." in table


def rest(sizes: dict[str, int]) -> int:
    """Return what everything takes that is neither keys nor journal."""
    return sum(
        size for name, size in sizes.items() if not is_key(name) and not name.startswith("journal")
    )


def traffic(events: int) -> dict[str, Any]:
    """Decide generated events, in blocks of 1,000, and return what evidence, originals and records take."""
    with tempfile.TemporaryDirectory() as home:
        settings = load_settings(
            Path(home), pipeline={"max_block": 1_000}, transport={"raw_partitions": 4}
        )
        options = GeneratorOptions(events, seed=1, rate=1_000, malformed=0, end_ms=START_MS)
        boundary = decide(settings, (delivery.line for delivery in generate(options)))
        return {
            "receipts": evidence_of(settings, boundary.ledger, "receipts"),
            "archive": evidence_of(settings, boundary.ledger, "archive"),
            "raw": records_of(boundary.transport, settings.transport.raw_topic),
            "admitted": records_of(boundary.transport, "admitted.traffic"),
            "journal_bytes": sum(
                len(boundary.ledger.journal(info.block_id) or b"")
                for info in boundary.ledger.blocks()
            ),
        }


def evidence_of(settings: Settings, ledger: Ledger, kind: str) -> dict[str, int]:
    """Return how many rows a kind of evidence has, and what its files take."""
    folder = settings.resolve(settings.evidence.path)
    return {
        "rows": sum(file.rows for file in ledger.evidence_files() if file.kind == kind),
        "bytes": sum(file.stat().st_size for file in folder.rglob(f"{kind}/*.parquet")),
    }


def records_of(transport: Transport, name: str) -> dict[str, int]:
    """Return what a topic's records hold: values, and keys and headers beside them."""
    topic = transport.topic(name)
    records = pa.concat_tables(
        pa.Table.from_batches(list(transport.read(topic, partition, 0, end)))
        for partition, end in enumerate(transport.ends(topic))
    )
    headers = records["headers"].combine_chunks().flatten()

    def total(column: Any) -> int:
        return pc.sum(pc.binary_length(column)).as_py() or 0

    return {
        "records": records.num_rows,
        "value_bytes": total(records["value"]),
        "other_bytes": sum(map(total, (records["key"], headers.field(0), headers.field(1)))),
    }


def memory(events: int, batch: int) -> dict[str, int]:
    """Run the boundary in Spark with batches of this size and return its peak."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / FILE_NAME).write_text(f"[transport]\nmax_per_trigger = {batch}\n")
        settings = load_settings(home)
        prepare(settings, events)
        return {"batch": batch, "peak_mb": measure("boundary", settings).peak_memory_mb}


STORES = {"sqlite": sqlite_store, "postgresql": postgres_store}

if __name__ == "__main__":
    main()
