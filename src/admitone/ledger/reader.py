"""Questions to a ledger, on either database; nothing here can write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from admitone.core.decisions import (
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    DECIDED_STATES,
    Action,
    BlockState,
    Reason,
)
from admitone.core.errors import NotFound
from admitone.ledger.columns import unpack
from admitone.ledger.model import (
    ANYTHING,
    AcceptedTopic,
    Anomaly,
    Block,
    Destination,
    EvidenceFile,
    Filter,
    Late,
    Mark,
    Resolution,
    Source,
    SourceInfo,
    UpstreamInfo,
)
from admitone.ledger.name_filter import number_of_event, number_of_identity
from admitone.ledger.outcomes import Columns, standing
from admitone.ledger.store import Condition, Row, Rows, Store
from admitone.ledger.upstream_marks import upstreams_of

IS_DECIDED = f"block.state IN ({', '.join(repr(str(state)) for state in DECIDED_STATES)})"
_MET_NO_DRIFT = f"(reason_bits & {1 << CODE_OF_REASON[Reason.CONTRACT_DRIFT]}) = 0"
"""Nothing of the block was meant for a topic that had drifted."""
_SELECT_BLOCK = (
    "SELECT block.block_id, block.producer_id, block.partition, after_offset, first_offset, last_offset, deliveries,"
    " block.epoch, block.state, rules, claimed_at, decided_at, published_at, destinations, refused, runs,"
    " evidence_hash FROM block"
)


class StoredReader:
    """A `LedgerReader` on a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def snapshot(self) -> AbstractContextManager[object]:
        """Let every question asked within see one and the same state."""
        return self._store.snapshot()

    def sources(self) -> list[SourceInfo]:
        """Return every source this ledger has seen."""
        return [
            SourceInfo(
                Source(producer, partition), pipeline, topic, topic_id, Mark(mark, time), *rest
            )
            for producer, partition, pipeline, topic, topic_id, mark, time, *rest in self._all(
                "SELECT producer_id, partition, pipeline, topic, topic_id, mark, stream_time, re_read, door,"
                " decided, read_to, store, cached FROM source ORDER BY topic, producer_id, partition"
            )
        ]  # fmt: skip

    def upstreams(self, source: Source | None = None) -> list[UpstreamInfo]:
        """Return the marks by which replays are found, of one source or of all."""
        return self._store.read(lambda rows: upstreams_of(rows, source))

    def runs(self) -> dict[str, str]:
        """Return the state of each run, OPEN or CLOSED."""
        return self._store.read(
            lambda rows: dict(
                sorted(
                    (rows.name(run), state)
                    for run, state in rows.all("SELECT run_id, state FROM run")
                )
            )
        )

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
        return self._blocks(f"WHERE {' AND '.join(where)} ORDER BY block_id", *values)

    def last_blocks(self) -> list[Block]:
        """Return the block of each source that reaches furthest, whatever became of it."""
        return self._blocks(
            "JOIN source ON block_id = (SELECT last.block_id FROM block last"
            " WHERE last.producer_id = source.producer_id AND last.partition = source.partition"
            " ORDER BY last.first_offset DESC, last.block_id DESC LIMIT 1)"
        )

    def columns(self, block_id: int) -> Columns:
        """Return a block's facts, verdicts and bus columns, as they were first decided."""
        return self._store.read(lambda rows: columns_of(rows, block_id))

    def decided(
        self, wanted: Filter = ANYTHING
    ) -> Iterator[tuple[Block, pa.Table, pa.Table, pa.Table | None]]:
        """Yield the decided blocks that may hold what is wanted, with their columns as they stand now."""
        with self._store.snapshot() as rows:
            conditions = [(IS_DECIDED, []), *_restrictions(rows, wanted)]
            where = " AND ".join(condition for condition, _ in conditions)
            for row in rows.stream(
                f"{_SELECT_BLOCK} WHERE {where} ORDER BY block_id",
                *(value for _, values in conditions for value in values),
            ):
                block = _block(rows, row)
                columns = columns_of(rows, block.block_id)
                yield standing(block, columns, resolutions_of(rows, block.block_id))

    def resolutions(self, block_ids: Sequence[int] | None = None) -> list[Resolution]:
        """Return what was decided later, about some blocks or all, oldest first."""
        return self._store.read(
            lambda rows: (
                resolutions_of(rows, *(() if block_ids is None else block_ids))
                if block_ids is None or block_ids
                else []
            )
        )

    def late(self, block_id: int) -> Late | None:
        """Return the plan to publish a block late, where there is one."""

        def ask(rows: Rows) -> Late | None:
            row = rows.first(
                "SELECT producer_id, partition, first, records, destinations FROM late WHERE block_id = %s",
                block_id,
            )
            if row is None:
                return None
            producer, partition, first, records, places = row
            planned = _destinations(rows.loaded(places))
            return Late(block_id, Source(producer, partition), first, records, planned)

        return self._store.read(ask)

    def late_numbers(self) -> dict[Source, int]:
        """Return the next number of every producer that published something late."""
        return {
            Source(producer, partition): number
            for producer, partition, number in self._all(
                "SELECT producer_id, partition, max(first + records) FROM late GROUP BY producer_id, partition"
            )
        }

    def recent(self, source: Source, deliveries: int) -> tuple[int, int]:
        """Return (how many, how many quarantined) of a source's last deliveries."""

        def count_back(rows: Rows) -> tuple[int, int]:
            total = quarantined = 0
            for size, bad in rows.stream(
                f"SELECT deliveries, quarantined FROM block WHERE {IS_DECIDED} AND {_MET_NO_DRIFT}"  # noqa: S608
                " AND producer_id = %s AND partition = %s ORDER BY first_offset DESC",
                *source,
            ):
                if total >= deliveries:
                    break
                total, quarantined = total + size, quarantined + bad
            return total, quarantined

        return self._store.read(count_back)

    def journal(self, block_id: int) -> bytes | None:
        """Return a block's original deliveries, while they are kept."""
        return self._blob("SELECT deliveries FROM journal WHERE block_id = %s", block_id)

    def anomalies(self, run_id: str | None = None) -> list[Anomaly]:
        """Return the open contradictions."""

        def ask(rows: Rows) -> list[Anomaly]:
            found = rows.all(
                "SELECT run_id, identity, payload_hash, block_id, ordinal FROM anomaly"  # noqa: S608
                f" JOIN run USING ({rows.run_key}) WHERE anomaly.state = 'OPEN'"
                f"{'' if run_id is None else f' AND {rows.run_key} = %s'} ORDER BY block_id, ordinal",
                *(() if run_id is None else (rows.key_of_run(run_id),)),
            )
            return [Anomaly(rows.name(run), *rest) for run, *rest in found]

        return self._store.read(ask)

    def pending_evidence(self, pipeline: str | None = None) -> list[int]:
        """Return the decided blocks, of one pipeline or of all, whose evidence is not durable yet."""
        of_pipeline, values = _of_pipeline(pipeline)
        return self._numbers(
            "SELECT block_id FROM block JOIN source USING (producer_id, partition)"  # noqa: S608
            f" WHERE evidence_at IS NULL AND {IS_DECIDED}{of_pipeline} ORDER BY block_id",
            *values,
        )

    def pending_resolutions(self, pipeline: str | None = None) -> list[int]:
        """Return the resolutions, of one pipeline or of all, whose evidence is not durable yet."""
        of_pipeline, values = _of_pipeline(pipeline)
        return self._numbers(
            "SELECT resolution_id FROM resolution r JOIN block USING (block_id)"  # noqa: S608
            " JOIN source USING (producer_id, partition)"
            f" WHERE r.evidence_at IS NULL{of_pipeline} ORDER BY resolution_id",
            *values,
        )

    def evidence_of(self, path: str) -> tuple[list[int], list[int]]:
        """Return the blocks, or the resolutions, that a file was made from."""
        blocks, resolutions = (
            f"SELECT {key} FROM evidence_{table} WHERE path = %s ORDER BY {key}"  # noqa: S608
            for table, key in (("block", "block_id"), ("resolution", "resolution_id"))
        )
        with self._store.snapshot():
            return self._numbers(blocks, path), self._numbers(resolutions, path)

    def evidence_files(self, run_id: str | None = None) -> list[EvidenceFile]:
        """Return the evidence files that are durable."""

        def ask(rows: Rows) -> list[EvidenceFile]:
            found = rows.all(
                "SELECT path, kind, run_id, rows, digest, checksum FROM evidence"  # noqa: S608
                f"{'' if run_id is None else ' WHERE run_id = %s'} ORDER BY path",
                *(() if run_id is None else (rows.text(run_id),)),
            )
            return [
                EvidenceFile(path, kind, rows.name(run), size, digest, checksum)
                for path, kind, run, size, digest, checksum in found
            ]

        return self._store.read(ask)

    def closure(self, run_id: str) -> bytes | None:
        """Return the closing artifact of a run."""
        return self._store.read(
            lambda rows: _blob_of(
                rows.first(
                    f"SELECT artifact FROM run WHERE {rows.run_key} = %s",  # noqa: S608
                    rows.key_of_run(run_id),
                )
            )
        )

    def accepted_topics(self, cluster: str) -> list[AcceptedTopic]:
        """Return every acceptance of topics of a cluster, oldest first."""

        def ask(rows: Rows) -> list[AcceptedTopic]:
            found = rows.all(
                "SELECT cluster, topic, topic_id, at, author, reason FROM accepted_topic"
                " WHERE cluster = %s ORDER BY number",
                cluster,
            )
            return [
                AcceptedTopic(place, topic, topic_id, at, rows.name(author), rows.name(reason))
                for place, topic, topic_id, at, author, reason in found
            ]

        return self._store.read(ask)

    def close(self) -> None:
        """Close this thread's connection."""
        self._store.close()

    def _all(self, statement: str, *values: Any) -> list[Row]:
        return self._store.read(lambda rows: rows.all(statement, *values))

    def _numbers(self, statement: str, *values: Any) -> list[int]:
        return [number for (number,) in self._all(statement, *values)]

    def _blob(self, statement: str, key: object) -> bytes | None:
        return _blob_of(self._store.read(lambda rows: rows.first(statement, key)))

    def _blocks(self, which: str, *values: Any) -> list[Block]:
        return self._store.read(
            lambda rows: [
                _block(rows, row) for row in rows.all(f"{_SELECT_BLOCK} {which}", *values)
            ]
        )


def columns_of(rows: Rows, block_id: int) -> Columns:
    """Return a block's columns as they were first decided."""
    row = rows.first(
        "SELECT facts, verdicts, bus FROM facts JOIN verdicts USING (block_id) WHERE block_id = %s",
        block_id,
    )
    if row is None:
        raise NotFound(f"Block {block_id} has no columns; it does not exist or was aborted.")
    facts, verdicts, bus = row
    return unpack(facts), unpack(verdicts), unpack(bus) if bus is not None else None


def resolutions_of(rows: Rows, *block_ids: int) -> list[Resolution]:
    """Return what was decided later about some blocks, or about all when none is named, oldest first."""
    found = rows.all(
        "SELECT resolution_id, block_id, cause, action, at, published_at, author, reason, changes"  # noqa: S608
        f" FROM resolution{' WHERE block_id = ANY(%s)' if block_ids else ''} ORDER BY resolution_id",
        *((list(block_ids),) if block_ids else ()),
    )
    return [
        Resolution(
            number, block, cause, Action(action), at, published, rows.name(author),
            rows.name(reason), unpack(changes),
        )
        for number, block, cause, action, at, published, author, reason, changes in found
    ]  # fmt: skip


def _block(rows: Rows, row: Row) -> Block:
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
        destinations=_destinations(rows.loaded(destinations)),
        refused=tuple(rows.loaded(refused)),
        runs={rows.name(run): count for run, count in rows.loaded(runs).items()},
        evidence_hash=evidence_hash,
    )


def _destinations(places: Sequence[Any]) -> tuple[Destination, ...]:
    return tuple(
        Destination(topic, topic_id, kind, tuple(ends)) for topic, topic_id, kind, ends in places
    )


def _blob_of(row: Row | None) -> bytes | None:
    return None if row is None or row[0] is None else bytes(row[0])


def _of_pipeline(pipeline: str | None) -> Condition:
    return ("", []) if pipeline is None else (" AND pipeline = %s", [pipeline])


def _restrictions(rows: Rows, wanted: Filter) -> Iterator[Condition]:
    """Yield conditions on a block's row that hold where something wanted may be."""
    if wanted.record is not None:
        yield "block_id = %s", [wanted.record[0]]
    if wanted.after is not None:
        yield "block_id >= %s", [wanted.after[0]]
    if wanted.run_id is not None:
        yield rows.holds_run(wanted.run_id)
    if wanted.source is not None:
        producer, partition, offset = wanted.source
        if producer is not None:
            yield "producer_id = %s", [producer]
        held = "partition = %s AND first_offset <= %s AND last_offset >= %s"
        yield held, [partition, offset, offset]
    if wanted.since is not None:
        yield "decided_at >= %s", [wanted.since]
    if wanted.until is not None:
        yield "decided_at <= %s", [wanted.until]
    if wanted.verdict is not None:
        yield "verdict_bits & %s <> 0", [1 << CODE_OF_VERDICT[wanted.verdict]]
    if wanted.reason is not None:
        yield "reason_bits & %s <> 0", [1 << CODE_OF_REASON[wanted.reason]]
    if wanted.bus is not None:
        topic, partition, offset = wanted.bus
        yield (
            "block_id IN (SELECT block_id FROM place WHERE topic = %s AND partition = %s"
            " AND first_offset <= %s AND last_offset >= %s)",
            [topic, partition, offset, offset],
        )
    # Last, because they read from a table beside the block's.
    if wanted.identity is not None:
        yield rows.may_hold_name(number_of_identity(wanted.identity))
    if wanted.event_id is not None:
        yield rows.may_hold_name(number_of_event(wanted.event_id))
