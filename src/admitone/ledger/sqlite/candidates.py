"""The candidates of a claim in a temporary table of their connection, in key order."""

from __future__ import annotations

import sqlite3

import numpy as np

from admitone.ledger.claims import Deliveries

CREATE_CANDIDATES = (
    "CREATE TEMP TABLE IF NOT EXISTS candidate"
    " (key BLOB, ordinal INTEGER, payload_hash BLOB, event_time INTEGER)"
)


def lay_out(db: sqlite3.Connection, deliveries: Deliveries, ordinals: np.ndarray) -> None:
    """Lay out these deliveries, and nothing else."""
    db.execute(CREATE_CANDIDATES)
    db.execute("DELETE FROM temp.candidate")
    event_times = deliveries.event_time[ordinals].tolist()
    rows = [
        (deliveries.keys[ordinal], ordinal, deliveries.hashes[ordinal], event_time)
        for ordinal, event_time in zip(ordinals.tolist(), event_times, strict=True)
    ]
    db.executemany("INSERT INTO temp.candidate VALUES (?, ?, ?, ?)", sorted(rows))
