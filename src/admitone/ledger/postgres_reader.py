"""Questions to the PostgreSQL ledger; nothing here can write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import count
from typing import Any

import pyarrow as pa

from admitone.core.decisions import Action, BlockState
from admitone.core.errors import NotFound
from admitone.core.identity import KEY_BYTES
from admitone.ledger.columns import unpack
from admitone.ledger.model import (
    ADMISSION_STORE,
    ANYTHING,
    AcceptedTopic,
    Anomaly,
    Block,
    EvidenceFile,
    Filter,
    Late,
    Resolution,
    Source,
    SourceInfo,
    UpstreamInfo,
)
from admitone.ledger.outcomes import Columns, standing
from admitone.ledger.postgres_filter import restriction
from admitone.ledger.postgres_schema import MIGRATIONS
from admitone.ledger.postgres_segments import Segments
from admitone.ledger.postgres_values import (
    key_of_run,
    loaded_name,
    loaded_runs,
    stored_name,
)
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
from admitone.postgres import PATIENCE_S, Connection, Database

_AT_ONCE = 100

_cursors = count(1)


class PostgresReader:
    """A `LedgerReader` on a PostgreSQL database."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S) -> None:
        self._database = Database(url, "ledger", MIGRATIONS, patience_s)

    def snapshot(self) -> AbstractContextManager[object]:
        """Let every question asked within see one and the same state."""
        return self._database.snapshot()

    def sources(self) -> list[SourceInfo]:
        """Return every source this ledger has seen."""
        return sources_from(self._rows(SELECT_SOURCE))

    def upstreams(self, source: Source | None = None) -> list[UpstreamInfo]:
        """Return the marks by which replays are found, of one source or of all."""
        return self._database.read(lambda db: upstreams_of(db, source))

    def runs(self) -> dict[str, str]:
        """Return the state of each run, OPEN or CLOSED."""
        rows = self._rows("SELECT run_id, state FROM run")
        return dict(sorted((loaded_name(run), state) for run, state in rows))

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
            named = ", ".join(repr(str(BlockState(state))) for state in states)
            where.append(f"state IN ({named})" if states else "false")
        if source is not None:
            where.append("producer_id = %s AND partition = %s")
            values += list(source)
        if ids is not None:
            where.append("block_id = ANY(%s)")
            values.append(list(ids))
        rows = self._rows(f"{SELECT_BLOCK} WHERE {' AND '.join(where)} ORDER BY block_id", values)
        return [_block(row) for row in rows]

    def last_blocks(self) -> list[Block]:
        """Return the block of each source that reaches furthest, whatever became of it."""
        rows = self._rows(
            f"SELECT last.* FROM source, LATERAL ({SELECT_BLOCK} WHERE block.producer_id = source.producer_id"  # noqa: S608
            " AND block.partition = source.partition ORDER BY first_offset DESC, block_id DESC LIMIT 1) AS last"
        )
        return [_block(row) for row in rows]

    def columns(self, block_id: int) -> Columns:
        """Return a block's facts, verdicts and bus columns, as they were first decided."""
        return self._database.read(lambda db: columns_of(db, block_id))

    def decided(
        self, wanted: Filter = ANYTHING
    ) -> Iterator[tuple[Block, pa.Table, pa.Table, pa.Table | None]]:
        """Yield the decided blocks that may hold what is wanted, with their columns as they stand now."""
        where, values = restriction(wanted)
        query = f"{SELECT_BLOCK} WHERE {' AND '.join([IS_DECIDED, *where])} ORDER BY block_id"
        with (
            self._database.snapshot() as db,
            db.cursor(f"decided_{next(_cursors)}", binary=True) as rows,
        ):
            rows.itersize = _AT_ONCE
            for row in rows.execute(query, values):
                block = _block(row)
                columns = columns_of(db, block.block_id)
                yield standing(block, columns, resolutions_of(db, block.block_id))

    def resolutions(self, block_ids: Sequence[int] | None = None) -> list[Resolution]:
        """Return what was decided later, about some blocks or all, oldest first."""
        return self._database.read(
            lambda db: (
                resolutions_of(db, *(() if block_ids is None else block_ids))
                if block_ids is None or block_ids
                else []
            )
        )

    def late(self, block_id: int) -> Late | None:
        """Return the plan to publish a block late, where there is one."""
        rows = self._rows(
            "SELECT producer_id, partition, first, records, destinations FROM late WHERE block_id = %s",
            (block_id,),
        )
        for producer, partition, first, records, places in rows:
            source = Source(producer, partition)
            return Late(block_id, source, first, records, destinations_from(places))
        return None

    def late_numbers(self) -> dict[Source, int]:
        """Return the next number of every producer that published something late."""
        return {
            Source(producer, partition): number
            for producer, partition, number in self._rows(LATE_NUMBERS)
        }

    def recent(self, source: Source, deliveries: int) -> tuple[int, int]:
        """Return (how many, how many quarantined) of a source's last deliveries."""
        query = (
            f"SELECT deliveries, quarantined FROM block WHERE {IS_DECIDED} AND {MET_NO_DRIFT}"  # noqa: S608
            " AND producer_id = %s AND partition = %s ORDER BY first_offset DESC"
        )

        def count_back(db: Connection) -> tuple[int, int]:
            total = quarantined = 0
            with db.cursor(f"recent_{next(_cursors)}") as rows:
                rows.itersize = _AT_ONCE
                for size, bad in rows.execute(query, source):
                    if total >= deliveries:
                        break
                    total, quarantined = total + size, quarantined + bad
            return total, quarantined

        return self._database.read(count_back)

    def journal(self, block_id: int) -> bytes | None:
        """Return a block's original deliveries, while they are kept."""
        return self._blob("SELECT deliveries FROM journal WHERE block_id = %s", block_id)

    def find(self, identity: bytes, store: str = ADMISSION_STORE) -> list[tuple[int, int]]:
        """Return (block, ordinal) of the rows that hold an identity, newest first."""
        key = identity[:KEY_BYTES]
        return self._database.read(lambda db: Segments(db, store).find(key))

    def anomalies(self, run_id: str | None = None) -> list[Anomaly]:
        """Return the open contradictions."""
        key = key_of_run(run_id) if run_id is not None else None
        rows = self._rows(
            "SELECT run_id, identity, payload_hash, block_id, ordinal FROM anomaly JOIN run USING (run_key)"
            " WHERE anomaly.state = 'OPEN' AND (%(run)s::uuid IS NULL OR run_key = %(run)s)"
            " ORDER BY block_id, ordinal",
            {"run": key},
        )
        return [Anomaly(loaded_name(run), *rest) for run, *rest in rows]

    def pending_evidence(self, pipeline: str | None = None) -> list[int]:
        """Return the decided blocks, of one pipeline or of all, whose evidence is not durable yet."""
        return self._numbers(
            "SELECT block_id FROM block JOIN source USING (producer_id, partition)"  # noqa: S608
            f" WHERE evidence_at IS NULL AND {IS_DECIDED}"
            " AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) ORDER BY block_id",
            {"pipeline": pipeline},
        )

    def pending_resolutions(self, pipeline: str | None = None) -> list[int]:
        """Return the resolutions, of one pipeline or of all, whose evidence is not durable yet."""
        return self._numbers(
            "SELECT resolution_id FROM resolution r JOIN block USING (block_id)"
            " JOIN source USING (producer_id, partition) WHERE r.evidence_at IS NULL"
            " AND (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s) ORDER BY resolution_id",
            {"pipeline": pipeline},
        )

    def evidence_of(self, path: str) -> tuple[list[int], list[int]]:
        """Return the blocks, or the resolutions, that a file was made from."""
        with self._database.snapshot():
            return (
                self._numbers(
                    "SELECT block_id FROM evidence_block WHERE path = %s ORDER BY block_id", (path,)
                ),
                self._numbers(
                    "SELECT resolution_id FROM evidence_resolution WHERE path = %s"
                    " ORDER BY resolution_id",
                    (path,),
                ),
            )

    def evidence_files(self, run_id: str | None = None) -> list[EvidenceFile]:
        """Return the evidence files that are durable."""
        rows = self._rows(
            "SELECT run_id, path, kind, rows, digest, checksum FROM evidence"
            " WHERE %(run)s::text IS NULL OR run_id = %(run)s ORDER BY path",
            {"run": stored_name(run_id) if run_id is not None else None},
        )
        return [
            EvidenceFile(path, kind, loaded_name(run), size, digest, checksum)
            for run, path, kind, size, digest, checksum in rows
        ]

    def newest_block(self, run_id: str) -> int:
        """Return the newest block that was claimed with deliveries of a run; 0 if there is none.

        Outside a snapshot it waits for the claims under way: one of them may have an older number and be seen later.
        """
        if self._database.is_reading:
            return self._database.read(lambda db: newest_block(db, run_id))
        return self._database.run(lambda db: newest_block(db, run_id, lock=True))

    def closure(self, run_id: str) -> bytes | None:
        """Return the closing artifact of a run."""
        return self._blob("SELECT artifact FROM run WHERE run_key = %s", key_of_run(run_id))

    def accepted_topics(self, cluster: str) -> list[AcceptedTopic]:
        """Return every acceptance of topics of a cluster, oldest first."""
        rows = self._rows(
            "SELECT cluster, topic, topic_id, at, author, reason FROM accepted_topic"
            " WHERE cluster = %s ORDER BY number",
            (cluster,),
        )
        return [
            AcceptedTopic(found, topic, topic_id, at, loaded_name(author), loaded_name(reason))
            for found, topic, topic_id, at, author, reason in rows
        ]

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()

    def _rows(self, query: str, values: Any = ()) -> list[tuple[Any, ...]]:
        return self._database.read(lambda db: db.execute(query, values, binary=True).fetchall())

    def _numbers(self, query: str, values: Any) -> list[int]:
        return [number for (number,) in self._rows(query, values)]

    def _blob(self, query: str, key: object) -> bytes | None:
        for (blob,) in self._rows(query, (key,)):
            return None if blob is None else bytes(blob)
        return None


def _block(row: Sequence[Any]) -> Block:
    *plain, runs, evidence_hash = row
    return block_from((*plain, loaded_runs(runs), evidence_hash))


def columns_of(db: Connection, block_id: int) -> Columns:
    """Return a block's columns as they were first decided."""
    row = db.execute(
        "SELECT facts, verdicts, bus FROM facts JOIN verdicts USING (block_id) WHERE block_id = %s",
        (block_id,),
        binary=True,
    ).fetchone()
    if row is None:
        raise NotFound(f"Block {block_id} has no columns; it does not exist or was aborted.")
    facts, verdicts, bus = row
    return unpack(facts), unpack(verdicts), unpack(bus) if bus is not None else None


def upstreams_of(db: Connection, source: Source | None = None) -> list[UpstreamInfo]:
    """Return the marks by which replays are found, of one source or of all."""
    where = "" if source is None else " WHERE producer_id = %s AND partition = %s"
    query = SELECT_UPSTREAM + where + UPSTREAM_ORDER
    return upstreams_from(db.execute(query, source or ()).fetchall())


def resolutions_of(db: Connection, *block_ids: int) -> list[Resolution]:
    """Return what was decided later about some blocks, or about all when none is named, oldest first."""
    rows = db.execute(
        "SELECT resolution_id, block_id, cause, action, at, published_at, author, reason, changes"
        " FROM resolution WHERE %(blocks)s::bigint[] IS NULL OR block_id = ANY(%(blocks)s)"
        " ORDER BY resolution_id",
        {"blocks": list(block_ids) or None},
        binary=True,
    )
    return [
        Resolution(
            number,
            block,
            cause,
            Action(action),
            at,
            published,
            loaded_name(author),
            loaded_name(reason),
            unpack(changes),
        )
        for number, block, cause, action, at, published, author, reason, changes in rows
    ]


def newest_block(db: Connection, run_id: str, *, lock: bool = False) -> int:
    """Return the newest block that was claimed with deliveries of a run; 0 if there is none."""
    if lock:
        db.execute("SELECT 1 FROM run WHERE run_key = %s FOR UPDATE", (key_of_run(run_id),))
    row = db.execute(
        "SELECT max(block_id) FROM block WHERE runs ? %s", (stored_name(run_id),)
    ).fetchone()
    return int(row[0]) if row and row[0] is not None else 0
