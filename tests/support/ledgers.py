"""What tests of a ledger share: facts, claims and settlements in a few words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from admitone.core.decisions import REASON_CODES, VERDICT_CODES, BlockState, Reason, Verdict
from admitone.core.identity import KEY_BYTES, identity_of
from admitone.core.segment_times import Segment
from admitone.infra.postgres import PATIENCE_S
from admitone.ledger.books import books
from admitone.ledger.columns import FACTS_SCHEMA
from admitone.ledger.model import (
    ADMISSION_STORE,
    Blocked,
    Claim,
    Claimed,
    Destination,
    Mark,
    Outcome,
    Source,
)
from admitone.ledger.port import Ledger, LedgerReader
from admitone.ledger.postgres.store import PostgresStore
from admitone.ledger.segments import table_of
from admitone.ledger.sqlite.store import SqliteStore
from admitone.ledger.store import Rows
from admitone.ledger.stored_ledger import StoredLedger

OpenLedger = Callable[[], Ledger]


def sqlite_ledger(path: Path) -> StoredLedger:
    """Return the ledger in a file."""
    return StoredLedger(SqliteStore(path))


def postgres_ledger(url: str, patience_s: float = PATIENCE_S) -> StoredLedger:
    """Return the ledger in a database."""
    return StoredLedger(PostgresStore(url, patience_s))


def held(ledger: Ledger, identity: bytes, store: str = ADMISSION_STORE) -> list[tuple[int, int]]:
    """Return (block, ordinal) of the rows that a ledger's segments hold for an identity, newest first."""
    assert isinstance(ledger, StoredLedger)

    def ask(rows: Rows) -> list[tuple[int, int]]:
        found = set()
        for (start,) in rows.all("SELECT start FROM segment WHERE store = %s", store):
            table = table_of(store, Segment(start, 0))
            query = f"SELECT block_id, ordinal FROM {table} WHERE key = %s"  # noqa: S608
            found |= set(rows.all(query, rows.key(identity[:KEY_BYTES])))
        return sorted(found, reverse=True)

    return ledger._store.read(ask)


DAY = 86_400_000
RETENTION = 100 * DAY
ONE, TWO = Source(1, 0), Source(1, 1)
NOW = 1_700_000_000_000


def facts(
    *events: tuple[str, str] | tuple[str, str, int],
    start: int = 0,
    run: str = "r",
    stream_time: int = 0,
) -> pa.Table:
    """Return the facts of deliveries given as (event id, payload) or with an event time."""
    rows = []
    for number, (event_id, payload, *time) in enumerate(events):
        event_time = time[0] if time else NOW
        stream_time = max(stream_time, event_time)
        rows.append(
            {
                "offset": start + number,
                "append_time": NOW,
                "run": run,
                "class": "c",
                "event_id": event_id,
                "identity": identity_of(run, "c", event_id),
                "payload_hash": hashlib.sha256(payload.encode()).digest(),
                "event_time": event_time,
                "stream_time": stream_time,
                "reason": 0,
                "route": 0,
                "partition": 0,
            }
        )
    return pa.Table.from_pylist(rows, schema=FACTS_SCHEMA)


def claim(
    ledger: Ledger,
    source: Source,
    epoch: int,
    table: pa.Table,
    after: Mark | None = None,
    retention: int = RETENTION,
) -> Claimed | Blocked:
    return ledger.claim(
        Claim(
            source=source,
            epoch=epoch,
            after=ledger.mark(source) if after is None else after,
            facts=table,
            journal=b"journal",
            destinations=(Destination("t", "t-1", "folder", (0,)),),
            retention_ms=retention,
            rules=1,
        )
    )


def granted(found: Claimed | Blocked) -> Claimed:
    assert isinstance(found, Claimed)
    return found


def settle(
    ledger: Ledger, epoch: int, claimed: Claimed, state: BlockState = BlockState.SETTLED
) -> None:
    admitted = claimed.verdicts["verdict"].to_numpy() == VERDICT_CODES.index(Verdict.ADMITTED)
    offsets = np.arange(100, 100 + admitted.sum())
    settled = state is BlockState.SETTLED
    ledger.conclude(
        claimed.block,
        epoch,
        Outcome(state, offsets if settled else None, NOW if settled else None, NOW),
    )


def verdicts(claimed: Claimed) -> list[tuple[Verdict, Reason | None]]:
    return [
        (VERDICT_CODES[row["verdict"]], REASON_CODES[row["reason"]])
        for row in claimed.verdicts.to_pylist()
    ]


NEW = (Verdict.ADMITTED, None)
AGAIN = (Verdict.DUPLICATE, None)
CONTRADICTION = (Verdict.QUARANTINED, Reason.PAYLOAD_MISMATCH)


def must_balance(ledger: LedgerReader) -> None:
    """There are runs, and the books of each balance."""
    runs = books(ledger)["runs"]
    assert runs
    assert [run for run in runs if not run["balanced"]] == []
