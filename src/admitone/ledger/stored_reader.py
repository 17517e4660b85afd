"""Questions to a ledger, on either database; nothing here can write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from admitone.core.decisions import (
    CODE_OF_REASON,
    DECIDED_STATES,
    Action,
    BlockState,
    Reason,
)
from admitone.core.errors import IntegrityError, NotFound
from admitone.ledger.block_rows import SELECT_BLOCK, block_from, destinations_from
from admitone.ledger.columns import unpack
from admitone.ledger.filter_conditions import conditions_of
from admitone.ledger.model import (
    ANYTHING,
    AcceptedTopic,
    Anomaly,
    Attempt,
    Block,
    ChainedClosing,
    Decided,
    Derived,
    EvidenceFile,
    Filter,
    KnownEnds,
    Late,
    Mark,
    Resolution,
    Source,
    SourceInfo,
    Summary,
)
from admitone.ledger.outcomes import Columns, standing
from admitone.ledger.store import Condition, ReadStore, Rows
from admitone.ledger.upstream_marks import upstreams_of

P = ParamSpec("P")
T = TypeVar("T")

IS_DECIDED = f"block.state IN ({', '.join(repr(str(state)) for state in DECIDED_STATES)})"
_MET_NO_DRIFT = f"(reason_bits & {1 << CODE_OF_REASON[Reason.CONTRACT_DRIFT]}) = 0"
"""Nothing of the block was meant for a topic that had drifted."""


def reading(
    ask: Callable[Concatenate[Rows, P], T],
) -> Callable[Concatenate[StoredReader, P], T]:
    """Return the method that asks this of one consistent state."""

    @wraps(ask)
    def read(self: StoredReader, /, *values: P.args, **named: P.kwargs) -> T:
        return self._store.read(lambda rows: ask(rows, *values, **named))

    return read


def ledger_id_of(rows: Rows) -> str:
    """Return the id that this ledger got when it was made."""
    found = rows.all("SELECT ledger_id FROM ledger")
    if len(found) != 1:
        raise IntegrityError(
            f"Expected a ledger to have one id, got {len(found)}.",
            "restore the ledger from a backup",
        )
    return str(found[0][0])


def sources_of(rows: Rows, only: Source | None = None) -> list[SourceInfo]:
    """Return every source this ledger has seen, or one of them."""
    one = "" if only is None else " WHERE producer_id = %s AND partition = %s"
    return [
        SourceInfo(Source(producer, partition), pipeline, topic, topic_id, Mark(mark, time), *rest)
        for producer, partition, pipeline, topic, topic_id, mark, time, *rest in rows.all(
            "SELECT producer_id, partition, pipeline, topic, topic_id, mark, stream_time, re_read, door,"  # noqa: S608
            f" decided, read_to, store, cached FROM source{one} ORDER BY topic, producer_id, partition",
            *(only or ()),
        )
    ]


def next_offset_of(rows: Rows, source: Source) -> int | None:
    """Return the offset to read a source from next, None where nothing was ever read."""
    return next((info.next_offset for info in sources_of(rows, source)), None)


def states_of_runs(rows: Rows) -> dict[str, str]:
    """Return the state of each run, OPEN or CLOSED."""
    found = rows.all("SELECT run_id, state FROM run")
    return dict(sorted((rows.name(run), state) for run, state in found))


def blocks_of(
    rows: Rows,
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
    condition = f"WHERE {' AND '.join(where)} ORDER BY block_id"
    return [block_from(rows, row) for row in rows.all(f"{SELECT_BLOCK} {condition}", *values)]


def last_blocks(rows: Rows) -> list[Block]:
    """Return the block of each source that reaches furthest, whatever became of it."""
    found = rows.all(
        f"{SELECT_BLOCK} JOIN source ON block_id = (SELECT last.block_id FROM block last"  # noqa: S608
        " WHERE last.producer_id = source.producer_id AND last.partition = source.partition"
        " ORDER BY last.first_offset DESC, last.block_id DESC LIMIT 1)"
    )
    return [block_from(rows, row) for row in found]


def blocks_in(rows: Rows, topic: str, partition: int, first: int, last: int) -> list[int]:
    """Return the decided blocks that have records within a stretch of the log."""
    return _numbers(
        rows,
        "SELECT DISTINCT block_id FROM place WHERE topic = %s AND partition = %s"
        " AND first_offset <= %s AND last_offset >= %s ORDER BY block_id",
        topic, partition, last, first,
    )  # fmt: skip


def derived_of(rows: Rows, block_id: int) -> Derived:
    """Return what is kept beside a block's columns and follows from them."""
    row = rows.first(
        "SELECT verdict_bits, reason_bits, quarantined, ambiguous, filter FROM block"
        " LEFT JOIN names USING (block_id) WHERE block_id = %s",
        block_id,
    )
    places = rows.all(
        "SELECT topic, partition, first_offset, last_offset FROM place WHERE block_id = %s",
        block_id,
    )
    *summary, names = row or (0, 0, 0, 0, None)
    return Derived(Summary(*summary), bytes(names or b""), places)


def attempts_of(rows: Rows, run_id: str) -> list[Attempt]:
    """Return every try at closing a run, oldest first."""
    found = rows.all(
        f"SELECT at, author, closed, document FROM closing_attempt WHERE {rows.run_key} = %s ORDER BY number",  # noqa: S608
        rows.key_of_run(run_id),
    )
    return [
        Attempt(run_id, at, rows.name(author), bool(closed), rows.name(document))
        for at, author, closed, document in found
    ]


def rules_of(rows: Rows) -> dict[bytes, bytes]:
    """Return every document of rules that was ever decided by, under its hash."""
    found = rows.all("SELECT hash, document FROM rules")
    return {bytes(rules_hash): bytes(document) for rules_hash, document in found}


def closings_of(rows: Rows) -> list[ChainedClosing]:
    """Return the chain of all closings, oldest first."""
    found = rows.all(
        f"SELECT number, run_id, statement, seal, head FROM closing LEFT JOIN run USING ({rows.run_key})"  # noqa: S608
        " ORDER BY number"
    )
    return [
        ChainedClosing(
            number, rows.name(run or ""), bytes(statement), None if seal is None else rows.name(seal), bytes(head)
        )
        for number, run, statement, seal, head in found
    ]  # fmt: skip


def columns_of(rows: Rows, block_id: int) -> Columns:
    """Return a block's facts, verdicts and bus columns, as they were first decided."""
    row = rows.first(
        "SELECT facts, verdicts, bus FROM facts JOIN verdicts USING (block_id) WHERE block_id = %s",
        block_id,
    )
    if row is None:
        raise NotFound(f"Block {block_id} has no columns; it does not exist or was aborted.")
    facts, verdicts, bus = row
    return unpack(facts), unpack(verdicts), unpack(bus) if bus is not None else None


def resolutions_of(rows: Rows, block_ids: Sequence[int] | None = None) -> list[Resolution]:
    """Return what was decided later, about some blocks or all, oldest first."""
    chosen = None if block_ids is None else list(block_ids)
    which, values = _only(" WHERE block_id = ANY(%s)", chosen)
    found = rows.all(
        "SELECT resolution_id, block_id, cause, action, at, published_at, author, reason, changes"  # noqa: S608
        f" FROM resolution{which} ORDER BY resolution_id",
        *values,
    )
    return [
        Resolution(
            number, block, cause, Action(action), at, published, rows.name(author),
            rows.name(reason), unpack(changes),
        )
        for number, block, cause, action, at, published, author, reason, changes in found
    ]  # fmt: skip


def late_plan(rows: Rows, block_id: int) -> Late | None:
    """Return the plan to publish a block late, where there is one."""
    row = rows.first(
        "SELECT producer_id, partition, first, records, destinations FROM late WHERE block_id = %s",
        block_id,
    )
    if row is None:
        return None
    producer, partition, first, records, places = row
    planned = destinations_from(rows.loaded(places))
    return Late(block_id, Source(producer, partition), first, records, planned)


def late_numbers(rows: Rows) -> dict[Source, int]:
    """Return the next number of every producer that published something late."""
    return {
        Source(producer, partition): number
        for producer, partition, number in rows.all(
            "SELECT producer_id, partition, max(first + records) FROM late GROUP BY producer_id, partition"
        )
    }


def recent(rows: Rows, source: Source, deliveries: int) -> tuple[int, int]:
    """Return (how many, how many quarantined) of a source's last deliveries."""
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


def journal_of(rows: Rows, block_id: int) -> bytes | None:
    """Return a block's original deliveries, while they are kept."""
    return _blob(rows, "SELECT deliveries FROM journal WHERE block_id = %s", block_id)


def anomalies_of(rows: Rows, run_id: str | None = None) -> list[Anomaly]:
    """Return the open contradictions."""
    run = None if run_id is None else rows.key_of_run(run_id)
    of_run, values = _only(f" AND {rows.run_key} = %s", run)
    found = rows.all(
        f"SELECT run_id, identity, payload_hash, block_id, ordinal FROM anomaly JOIN run USING ({rows.run_key})"  # noqa: S608
        f" WHERE anomaly.state = 'OPEN'{of_run} ORDER BY block_id, ordinal",
        *values,
    )
    return [Anomaly(rows.name(run), *rest) for run, *rest in found]


def now_ms(rows: Rows) -> int:
    """Return what time it is by the ledger's clock."""
    row = rows.first(f"SELECT {rows.now_ms}")
    assert row is not None
    return int(row[0])


def pending_evidence(rows: Rows, pipeline: str | None = None) -> list[int]:
    """Return the decided blocks, of one pipeline or of all, whose evidence is not durable yet."""
    of_pipeline, values = _only(" AND pipeline = %s", pipeline)
    return _numbers(
        rows,
        "SELECT block_id FROM block JOIN source USING (producer_id, partition)"  # noqa: S608
        f" WHERE evidence_at IS NULL AND {IS_DECIDED}{of_pipeline} ORDER BY block_id",
        *values,
    )


def pending_resolutions(rows: Rows, pipeline: str | None = None) -> list[int]:
    """Return the resolutions, of one pipeline or of all, whose evidence is not durable yet."""
    of_pipeline, values = _only(" AND pipeline = %s", pipeline)
    return _numbers(
        rows,
        "SELECT resolution_id FROM resolution r JOIN block USING (block_id)"  # noqa: S608
        " JOIN source USING (producer_id, partition)"
        f" WHERE r.evidence_at IS NULL{of_pipeline} ORDER BY resolution_id",
        *values,
    )


def evidence_of(rows: Rows, path: str) -> tuple[list[int], list[int]]:
    """Return the blocks, or the resolutions, that a file was made from."""
    blocks, resolutions = (
        _numbers(rows, f"SELECT {key} FROM evidence_{table} WHERE path = %s ORDER BY {key}", path)  # noqa: S608
        for table, key in (("block", "block_id"), ("resolution", "resolution_id"))
    )
    return blocks, resolutions


def evidence_files(rows: Rows, run_id: str | None = None) -> list[EvidenceFile]:
    """Return the evidence files that are durable."""
    of_run, values = _only(" WHERE run_id = %s", None if run_id is None else rows.text(run_id))
    found = rows.all(
        f"SELECT path, kind, run_id, rows, digest, checksum FROM evidence{of_run} ORDER BY path",  # noqa: S608
        *values,
    )
    return [
        EvidenceFile(path, kind, rows.name(run), size, digest, checksum)
        for path, kind, run, size, digest, checksum in found
    ]


def closure_of(rows: Rows, run_id: str) -> bytes | None:
    """Return the closing artifact of a run."""
    statement = f"SELECT artifact FROM run WHERE {rows.run_key} = %s"  # noqa: S608
    return _blob(rows, statement, rows.key_of_run(run_id))


def accepted_topics(rows: Rows, cluster: str) -> list[AcceptedTopic]:
    """Return every acceptance of topics of a cluster, oldest first."""
    found = rows.all(
        "SELECT cluster, topic, topic_id, at, author, reason FROM accepted_topic"
        " WHERE cluster = %s ORDER BY number",
        cluster,
    )
    return [
        AcceptedTopic(place, topic, topic_id, at, rows.name(author), rows.name(reason))
        for place, topic, topic_id, at, author, reason in found
    ]


def reading_back(rows: Rows) -> dict[str, KnownEnds]:
    """Return the pipelines whose reading back was begun and not ended, each with the ends it begins at."""
    found = rows.all("SELECT pipeline, ends FROM reading_back")
    return {
        pipeline: {
            (topic, topic_id): tuple(offsets) for topic, topic_id, offsets in rows.loaded(ends)
        }
        for pipeline, ends in found
    }


class StoredReader:
    """A `LedgerReader` on a database."""

    ledger_id = reading(ledger_id_of)
    sources = reading(sources_of)
    next_offset = reading(next_offset_of)
    upstreams = reading(upstreams_of)
    runs = reading(states_of_runs)
    blocks = reading(blocks_of)
    last_blocks = reading(last_blocks)
    columns = reading(columns_of)
    blocks_in = reading(blocks_in)
    derived = reading(derived_of)
    attempts = reading(attempts_of)
    closings = reading(closings_of)
    rules = reading(rules_of)
    resolutions = reading(resolutions_of)
    late = reading(late_plan)
    late_numbers = reading(late_numbers)
    recent = reading(recent)
    journal = reading(journal_of)
    anomalies = reading(anomalies_of)
    pending_evidence = reading(pending_evidence)
    pending_resolutions = reading(pending_resolutions)
    evidence_of = reading(evidence_of)
    evidence_files = reading(evidence_files)
    closure = reading(closure_of)
    accepted_topics = reading(accepted_topics)
    reading_back = reading(reading_back)
    now_ms = reading(now_ms)

    def __init__(self, store: ReadStore) -> None:
        self._store = store

    def snapshot(self) -> AbstractContextManager[object]:
        """Let every question asked within see one and the same state."""
        return self._store.snapshot()

    def decided(self, wanted: Filter = ANYTHING) -> Iterator[Decided]:
        """Yield the decided blocks that may hold what is wanted, with their columns as they stand now."""
        with self._store.snapshot() as rows:
            conditions = [(IS_DECIDED, []), *conditions_of(rows, wanted)]
            where = " AND ".join(condition for condition, _ in conditions)
            for row in rows.stream(
                f"{SELECT_BLOCK} WHERE {where} ORDER BY block_id",
                *(value for _, values in conditions for value in values),
            ):
                block = block_from(rows, row)
                columns = columns_of(rows, block.block_id)
                yield standing(block, columns, resolutions_of(rows, [block.block_id]))

    def decided_rows(self) -> Iterator[Block]:
        """Yield the rows of all decided blocks, source by source, in the order of their offsets."""
        with self._store.snapshot() as rows:
            order = "ORDER BY producer_id, partition, first_offset, block_id"
            for row in rows.stream(f"{SELECT_BLOCK} WHERE {IS_DECIDED} {order}"):
                yield block_from(rows, row)

    def close(self) -> None:
        """Close this thread's connection."""
        self._store.close()


def _numbers(rows: Rows, statement: str, *values: object) -> list[int]:
    return [number for (number,) in rows.all(statement, *values)]


def _blob(rows: Rows, statement: str, key: object) -> bytes | None:
    row = rows.first(statement, key)
    return None if row is None or row[0] is None else bytes(row[0])


def _only(condition: str, value: object) -> Condition:
    """Return a condition that holds for everything where there is no value."""
    return ("", []) if value is None else (condition, [value])
