"""Questions to the SQLite ledger; nothing here can write."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import orjson
import pyarrow as pa

from admitone.core.decisions import DECIDED_STATES, BlockState
from admitone.core.errors import NotFound
from admitone.core.identity import KEY_BYTES
from admitone.ledger.columns import unpack
from admitone.ledger.port import (
    Anomaly,
    Block,
    Destination,
    EvidenceFile,
    Mark,
    Source,
    SourceInfo,
)
from admitone.ledger.sqlite_schema import MIGRATIONS
from admitone.ledger.sqlite_segments import Segments
from admitone.sqlite import Database

ADMISSION_STORE = "admission"

_BLOCK = (
    "SELECT block_id, producer_id, partition, after_offset, first_offset, last_offset, deliveries, epoch, state, rules,"
    " claimed_at, decided_at, published_at, destinations, refused, runs, evidence_hash FROM block"
)
_DECIDED = f"state IN ({', '.join(repr(str(state)) for state in DECIDED_STATES)})"


class SqliteReader:
    """A `LedgerReader` on a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._database = Database(path, MIGRATIONS)

    def snapshot(self) -> AbstractContextManager[object]:
        """Let every question asked within see one and the same state."""
        return self._database.snapshot()

    def sources(self) -> list[SourceInfo]:
        """Return every source this ledger has seen."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT producer_id, partition, pipeline, topic, topic_id, mark, stream_time, re_read"
                " FROM source ORDER BY topic, producer_id, partition"
            ).fetchall()
        return [
            SourceInfo(
                Source(producer, partition), pipeline, topic, topic_id, Mark(mark, time), again
            )
            for producer, partition, pipeline, topic, topic_id, mark, time, again in rows
        ]

    def runs(self) -> dict[str, str]:
        """Return the state of each run, OPEN or CLOSED."""
        with self._database.snapshot() as db:
            return dict(db.execute("SELECT run_id, state FROM run ORDER BY run_id"))

    def blocks(
        self, *, states: Sequence[BlockState] | None = None, source: Source | None = None
    ) -> list[Block]:
        """Return block rows in the order they were claimed."""
        where, values = ["true"], []
        if states is not None:
            # Spelled out, because a bound value would hide the partial index from the planner.
            where.append(
                f"state IN ({', '.join(repr(str(BlockState(state))) for state in states)})"
            )
        if source is not None:
            where.append("producer_id = ? AND partition = ?")
            values += list(source)
        with self._database.snapshot() as db:
            rows = db.execute(f"{_BLOCK} WHERE {' AND '.join(where)} ORDER BY block_id", values)
            return [_block(row) for row in rows]

    def columns(self, block_id: int) -> tuple[pa.Table, pa.Table, pa.Table | None]:
        """Return a block's facts, verdicts and bus columns."""
        with self._database.snapshot() as db:
            return _columns(db, block_id)

    def decided(
        self, skip: Callable[[Block], bool] | None = None
    ) -> Iterator[tuple[Block, pa.Table, pa.Table, pa.Table | None]]:
        """Yield the decided blocks that are not skipped, with their columns, from one snapshot."""
        with self._database.snapshot() as db:
            rows = db.execute(f"{_BLOCK} WHERE {_DECIDED} ORDER BY block_id").fetchall()
            for row in rows:
                block = _block(row)
                if skip is None or not skip(block):
                    yield block, *_columns(db, block.block_id)

    def journal(self, block_id: int) -> bytes | None:
        """Return a block's original deliveries, while they are kept."""
        with self._database.snapshot() as db:
            row = db.execute(
                "SELECT deliveries FROM journal WHERE block_id = ?", (block_id,)
            ).fetchone()
        return row[0] if row else None

    def find(self, identity: bytes) -> list[tuple[int, int]]:
        """Return (block, ordinal) of the rows that hold an identity, newest first."""
        with self._database.snapshot() as db:
            return Segments(db, ADMISSION_STORE).find(identity[:KEY_BYTES])

    def anomalies(self, run_id: str | None = None) -> list[Anomaly]:
        """Return the open contradictions."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT run_id, identity, payload_hash, block_id, ordinal FROM anomaly"
                " WHERE state = 'OPEN' AND (? IS NULL OR run_id = ?) ORDER BY block_id, ordinal",
                (run_id, run_id),
            ).fetchall()
        return [Anomaly(*row) for row in rows]

    def pending_evidence(self, pipeline: str | None = None) -> list[int]:
        """Return the decided blocks, of one pipeline or of all, whose evidence is not durable yet."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT block_id FROM block JOIN source USING (producer_id, partition)"  # noqa: S608
                f" WHERE evidence_at IS NULL AND {_DECIDED} AND (? IS NULL OR pipeline = ?)"
                " ORDER BY block_id",
                (pipeline, pipeline),
            ).fetchall()
        return [block_id for (block_id,) in rows]

    def evidence_files(self, run_id: str | None = None) -> list[EvidenceFile]:
        """Return the evidence files that are durable."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT path, kind, run_id, rows, digest FROM evidence WHERE ? IS NULL OR run_id = ?"
                " ORDER BY path",
                (run_id, run_id),
            ).fetchall()
        return [EvidenceFile(*row) for row in rows]

    def run_blocks(self, run_id: str) -> int:
        """Return how many blocks were claimed with deliveries of a run."""
        with self._database.snapshot() as db:
            row = db.execute("SELECT blocks FROM run WHERE run_id = ?", (run_id,)).fetchone()
        return int(row[0]) if row else 0

    def closure(self, run_id: str) -> bytes | None:
        """Return the closing artifact of a run."""
        with self._database.snapshot() as db:
            row = db.execute("SELECT artifact FROM run WHERE run_id = ?", (run_id,)).fetchone()
        return row[0] if row else None

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()


def _block(row: tuple) -> Block:  # type: ignore[type-arg]
    (
        block_id, producer, partition, after, first, last, deliveries, epoch, state, rules, claimed_at,
        decided_at, published_at, destinations, refused, runs, evidence_hash,
    ) = row  # fmt: skip
    return Block(
        block_id=block_id,
        source=Source(producer, partition),
        after=after,
        first_offset=first,
        last_offset=last,
        deliveries=deliveries,
        epoch=epoch,
        state=BlockState(state),
        rules=rules,
        claimed_at=claimed_at,
        decided_at=decided_at,
        published_at=published_at,
        destinations=tuple(
            Destination(topic, topic_id, kind, tuple(ends))
            for topic, topic_id, kind, ends in orjson.loads(destinations)
        ),
        refused=tuple(orjson.loads(refused)),
        runs=orjson.loads(runs),
        evidence_hash=evidence_hash,
    )


def _columns(db: sqlite3.Connection, block_id: int) -> tuple[pa.Table, pa.Table, pa.Table | None]:
    row = db.execute(
        "SELECT facts, verdicts, bus FROM block WHERE block_id = ?", (block_id,)
    ).fetchone()
    if row is None or row[0] is None:
        raise NotFound(f"Block {block_id} has no columns; it does not exist or was aborted.")
    facts, verdicts, bus = row
    return unpack(facts), unpack(verdicts), unpack(bus) if bus is not None else None
