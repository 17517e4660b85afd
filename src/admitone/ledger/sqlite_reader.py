"""Questions to the SQLite ledger; nothing here can write."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from admitone.core.decisions import (
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    Action,
    BlockState,
)
from admitone.core.errors import NotFound
from admitone.core.identity import KEY_BYTES
from admitone.ledger.columns import unpack
from admitone.ledger.model import (
    ADMISSION_STORE,
    ANYTHING,
    AcceptedTopic,
    Anomaly,
    Block,
    Destination,
    EvidenceFile,
    Filter,
    Late,
    Resolution,
    Source,
    SourceInfo,
    UpstreamInfo,
)
from admitone.ledger.names import may_hold, number_of_event, number_of_identity
from admitone.ledger.outcomes import Columns, standing
from admitone.ledger.sqlite_schema import MIGRATIONS
from admitone.ledger.sqlite_segments import Segments
from admitone.ledger.stored import (
    IS_DECIDED,
    LATE_NUMBERS,
    MET_NO_DRIFT,
    SELECT_BLOCK,
    SELECT_SOURCE,
    block_from,
    destinations_from,
    sources_from,
)
from admitone.ledger.upstream import SELECT_UPSTREAM, UPSTREAM_ORDER, upstreams_from
from admitone.sqlite import Database


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
            return sources_from(db.execute(SELECT_SOURCE))

    def upstreams(self, source: Source | None = None) -> list[UpstreamInfo]:
        """Return the marks by which replays are found, of one source or of all."""
        with self._database.snapshot() as db:
            return upstreams_of(db, source)

    def runs(self) -> dict[str, str]:
        """Return the state of each run, OPEN or CLOSED."""
        with self._database.snapshot() as db:
            return dict(db.execute("SELECT run_id, state FROM run ORDER BY run_id"))

    def blocks(
        self,
        *,
        states: Sequence[BlockState] | None = None,
        source: Source | None = None,
        ids: Sequence[int] | None = None,
    ) -> list[Block]:
        """Return block rows in the order they were claimed."""
        where: list[str] = ["true"]
        values: list[object] = []
        if states is not None:
            # Spelled out, because a bound value would hide the partial index from the planner.
            where.append(
                f"state IN ({', '.join(repr(str(BlockState(state))) for state in states)})"
            )
        if source is not None:
            where.append("producer_id = ? AND partition = ?")
            values += list(source)
        if ids is not None:
            where.append("block_id IN (SELECT value FROM json_each(?))")
            values.append(orjson.dumps(list(ids)).decode())
        with self._database.snapshot() as db:
            rows = db.execute(
                f"{SELECT_BLOCK} WHERE {' AND '.join(where)} ORDER BY block_id", values
            )
            return [_block(row) for row in rows]

    def last_blocks(self) -> list[Block]:
        """Return the block of each source that reaches furthest, whatever became of it."""
        query = (
            f"{SELECT_BLOCK} WHERE producer_id = ? AND partition = ?"
            " ORDER BY first_offset DESC, block_id DESC LIMIT 1"
        )
        with self._database.snapshot() as db:
            sources = db.execute("SELECT producer_id, partition FROM source").fetchall()
            return [_block(row) for source in sources for row in db.execute(query, source)]

    def columns(self, block_id: int) -> Columns:
        """Return a block's facts, verdicts and bus columns, as they were first decided."""
        with self._database.snapshot() as db:
            return columns_of(db, block_id)

    def decided(
        self, wanted: Filter = ANYTHING
    ) -> Iterator[tuple[Block, pa.Table, pa.Table, pa.Table | None]]:
        """Yield the decided blocks that may hold what is wanted, with their columns as they stand now."""
        where, values = _restriction(wanted)
        with self._database.snapshot() as db:
            rows = db.execute(
                f"{SELECT_BLOCK} WHERE {' AND '.join([IS_DECIDED, *where])} ORDER BY block_id",
                values,
            ).fetchall()
            for row in rows:
                block = _block(row)
                if not _named_in(db, block.block_id, wanted):
                    continue
                columns = columns_of(db, block.block_id)
                yield standing(block, columns, resolutions_of(db, block.block_id))

    def resolutions(self, block_ids: Sequence[int] | None = None) -> list[Resolution]:
        """Return what was decided later, about some blocks or all, oldest first."""
        with self._database.snapshot() as db:
            if block_ids is None:
                return resolutions_of(db)
            found = [r for block_id in set(block_ids) for r in resolutions_of(db, block_id)]
        return sorted(found, key=lambda resolution: resolution.resolution_id)

    def late(self, block_id: int) -> Late | None:
        """Return the plan to publish a block late, where there is one."""
        with self._database.snapshot() as db:
            row = db.execute(
                "SELECT producer_id, partition, first, records, destinations FROM late"
                " WHERE block_id = ?",
                (block_id,),
            ).fetchone()
        if row is None:
            return None
        producer, partition, first, records, places = row
        planned = destinations_from(orjson.loads(places))
        return Late(block_id, Source(producer, partition), first, records, planned)

    def late_numbers(self) -> dict[Source, int]:
        """Return the next number of every producer that published something late."""
        with self._database.snapshot() as db:
            return {
                Source(producer, partition): number
                for producer, partition, number in db.execute(LATE_NUMBERS)
            }

    def recent(self, source: Source, deliveries: int) -> tuple[int, int]:
        """Return (how many, how many quarantined) of a source's last deliveries."""
        total = quarantined = 0
        with self._database.snapshot() as db:
            for size, bad in db.execute(
                f"SELECT deliveries, quarantined FROM block WHERE {IS_DECIDED} AND {MET_NO_DRIFT}"  # noqa: S608
                " AND producer_id = ? AND partition = ? ORDER BY first_offset DESC",
                source,
            ):
                if total >= deliveries:
                    break
                total, quarantined = total + size, quarantined + bad
        return total, quarantined

    def journal(self, block_id: int) -> bytes | None:
        """Return a block's original deliveries, while they are kept."""
        with self._database.snapshot() as db:
            row = db.execute(
                "SELECT deliveries FROM journal WHERE block_id = ?", (block_id,)
            ).fetchone()
        return row[0] if row else None

    def find(self, identity: bytes, store: str = ADMISSION_STORE) -> list[tuple[int, int]]:
        """Return (block, ordinal) of the rows that hold an identity, newest first."""
        with self._database.snapshot() as db:
            return Segments(db, store).find(identity[:KEY_BYTES])

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
                f" WHERE evidence_at IS NULL AND {IS_DECIDED} AND (? IS NULL OR pipeline = ?)"
                " ORDER BY block_id",
                (pipeline, pipeline),
            ).fetchall()
        return [block_id for (block_id,) in rows]

    def pending_resolutions(self, pipeline: str | None = None) -> list[int]:
        """Return the resolutions, of one pipeline or of all, whose evidence is not durable yet."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT resolution_id FROM resolution r JOIN block USING (block_id)"
                " JOIN source USING (producer_id, partition)"
                " WHERE r.evidence_at IS NULL AND (? IS NULL OR pipeline = ?) ORDER BY resolution_id",
                (pipeline, pipeline),
            ).fetchall()
        return [resolution_id for (resolution_id,) in rows]

    def evidence_of(self, path: str) -> tuple[list[int], list[int]]:
        """Return the blocks, or the resolutions, that a file was made from."""
        with self._database.snapshot() as db:
            blocks = db.execute(
                "SELECT block_id FROM evidence_block WHERE path = ? ORDER BY block_id", (path,)
            ).fetchall()
            resolutions = db.execute(
                "SELECT resolution_id FROM evidence_resolution WHERE path = ? ORDER BY resolution_id",
                (path,),
            ).fetchall()
        return [number for (number,) in blocks], [number for (number,) in resolutions]

    def evidence_files(self, run_id: str | None = None) -> list[EvidenceFile]:
        """Return the evidence files that are durable."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT path, kind, run_id, rows, digest, checksum FROM evidence"
                " WHERE ? IS NULL OR run_id = ? ORDER BY path",
                (run_id, run_id),
            ).fetchall()
        return [EvidenceFile(*row) for row in rows]

    def newest_block(self, run_id: str) -> int:
        """Return the newest block that was claimed with deliveries of a run; 0 if there is none."""
        with self._database.snapshot() as db:
            return newest_block(db, run_id)

    def closure(self, run_id: str) -> bytes | None:
        """Return the closing artifact of a run."""
        with self._database.snapshot() as db:
            row = db.execute("SELECT artifact FROM run WHERE run_id = ?", (run_id,)).fetchone()
        return row[0] if row else None

    def accepted_topics(self, cluster: str) -> list[AcceptedTopic]:
        """Return every acceptance of topics of a cluster, oldest first."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT cluster, topic, topic_id, at, author, reason FROM accepted_topic"
                " WHERE cluster = ? ORDER BY number",
                (cluster,),
            ).fetchall()
        return [AcceptedTopic(*row) for row in rows]

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()


def _block(row: Sequence[Any]) -> Block:
    *plain, places, refused, runs, evidence_hash = row
    documents = (orjson.loads(text) for text in (places, refused, runs))
    return block_from((*plain, *documents, evidence_hash))


def stored_destinations(destinations: Iterable[Destination]) -> str:
    """Return destinations as they are stored."""
    return orjson.dumps([astuple(place) for place in destinations]).decode()


def columns_of(db: sqlite3.Connection, block_id: int) -> Columns:
    """Return a block's columns as they were first decided."""
    row = db.execute(
        "SELECT facts, verdicts, bus FROM facts JOIN verdicts USING (block_id) WHERE block_id = ?",
        (block_id,),
    ).fetchone()
    if row is None:
        raise NotFound(f"Block {block_id} has no columns; it does not exist or was aborted.")
    facts, verdicts, bus = row
    return unpack(facts), unpack(verdicts), unpack(bus) if bus is not None else None


def upstreams_of(db: sqlite3.Connection, source: Source | None = None) -> list[UpstreamInfo]:
    """Return the marks by which replays are found, of one source or of all."""
    where = "" if source is None else " WHERE producer_id = ? AND partition = ?"
    return upstreams_from(db.execute(SELECT_UPSTREAM + where + UPSTREAM_ORDER, source or ()))


def resolutions_of(db: sqlite3.Connection, block_id: int | None = None) -> list[Resolution]:
    """Return what was decided later about a block, or about all, oldest first."""
    rows = db.execute(
        "SELECT resolution_id, block_id, cause, action, at, published_at, author, reason, changes"
        " FROM resolution WHERE ? IS NULL OR block_id = ? ORDER BY resolution_id",
        (block_id, block_id),
    ).fetchall()
    return [
        Resolution(
            number, block, cause, Action(action), at, published, author, reason, unpack(changes)
        )
        for number, block, cause, action, at, published, author, reason, changes in rows
    ]


def newest_block(db: sqlite3.Connection, run_id: str) -> int:
    """Return the newest block that was claimed with deliveries of a run; 0 if there is none."""
    row = db.execute(
        "SELECT coalesce(max(block_id), 0) FROM block_run WHERE run_id = ?", (run_id,)
    ).fetchone()
    return int(row[0])


def _restriction(wanted: Filter) -> tuple[list[str], list[object]]:
    """Return conditions on a block's row, and their values, that hold where something wanted may be."""
    found: list[tuple[str, list[object]]] = []
    if wanted.record is not None:
        found.append(("block_id = ?", [wanted.record[0]]))
    if wanted.after is not None:
        found.append(("block_id >= ?", [wanted.after[0]]))
    if wanted.run_id is not None:
        found.append(
            ("block_id IN (SELECT block_id FROM block_run WHERE run_id = ?)", [wanted.run_id])
        )
    if wanted.source is not None:
        producer, partition, offset = wanted.source
        if producer is not None:
            found.append(("producer_id = ?", [producer]))
        found.append(
            (
                "partition = ? AND first_offset <= ? AND last_offset >= ?",
                [partition, offset, offset],
            )
        )
    if wanted.since is not None:
        found.append(("decided_at >= ?", [wanted.since]))
    if wanted.until is not None:
        found.append(("decided_at <= ?", [wanted.until]))
    if wanted.verdict is not None:
        found.append(("verdict_bits & ?", [1 << CODE_OF_VERDICT[wanted.verdict]]))
    if wanted.reason is not None:
        found.append(("reason_bits & ?", [1 << CODE_OF_REASON[wanted.reason]]))
    if wanted.bus is not None:
        topic, partition, offset = wanted.bus
        found.append(
            (
                "block_id IN (SELECT block_id FROM place WHERE topic = ? AND partition = ?"
                " AND first_offset <= ? AND last_offset >= ?)",
                [topic, partition, offset, offset],
            )
        )
    return [condition for condition, _ in found], [value for _, values in found for value in values]


def _named_in(db: sqlite3.Connection, block_id: int, wanted: Filter) -> bool:
    names = []
    if wanted.identity is not None:
        names.append(number_of_identity(wanted.identity))
    if wanted.event_id is not None:
        names.append(number_of_event(wanted.event_id))
    if not names:
        return True
    (packed,) = db.execute("SELECT filter FROM names WHERE block_id = ?", (block_id,)).fetchone()
    return all(may_hold(packed, name) for name in names)
