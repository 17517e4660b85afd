"""What a ledger keeps of a source: who holds it, how far it is decided and read, what was counted of it."""

from __future__ import annotations

from collections.abc import Mapping

from admitone.core.errors import Fenced, NotFound
from admitone.ledger.model import ADMISSION_STORE, Mark, Source
from admitone.ledger.segments import must_be_a_store, pointer_of
from admitone.ledger.store import Rows


def register(
    rows: Rows,
    source: Source,
    pipeline: str,
    topic: str,
    topic_id: str,
    door: str = "stream",
    store: str = ADMISSION_STORE,
) -> None:
    """Make a source known, and the store its identities are kept in; again is harmless."""
    must_be_a_store(store)
    rows.change(
        "INSERT INTO source (producer_id, partition, pipeline, topic, topic_id, door, store)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
        *source, pipeline, topic, topic_id, door, store,
    )  # fmt: skip


def take_generation(rows: Rows, pipeline: str) -> int:
    """Start a new generation of a pipeline; tasks of older ones get no epoch any more."""
    row = rows.first(
        "INSERT INTO generation VALUES (%s, 1) ON CONFLICT (pipeline) DO UPDATE SET"
        " generation = generation.generation + 1 RETURNING generation",
        pipeline,
    )
    assert row is not None
    return int(row[0])


def take_epoch(rows: Rows, source: Source, generation: int | None, beyond: int = 0) -> int:
    """Take over a source partition, or raise `Fenced` when the generation is not the current one."""
    taken = rows.first(
        "UPDATE source SET epoch = greatest(epoch, %s) + 1 WHERE producer_id = %s AND partition = %s"
        " RETURNING epoch, pipeline",
        beyond,
        *source,
    )
    if taken is None:
        raise NotFound(f"Source {tuple(source)} is not registered.")
    epoch, pipeline = taken
    if generation is not None:
        # Shared until the end: a new generation that begins meanwhile comes after this epoch.
        row = rows.first(
            "SELECT generation FROM generation WHERE pipeline = %s FOR SHARE", pipeline
        )
        current = row[0] if row else None
        if current != generation:
            raise Fenced(
                f"Generation {generation} of pipeline {pipeline!r} ended; {current} is running now.",
                "let the newer pipeline run, or stop it first",
            )
    return int(epoch)


def owned(
    rows: Rows, source: Source, epoch: int, *, lock: bool = True
) -> tuple[int, int | None, str]:
    """Return a source's mark, stream time and store, locked; raise `Fenced` unless it is held under this epoch."""
    row = rows.first(
        "SELECT epoch, mark, stream_time, store FROM source WHERE producer_id = %s AND partition = %s"  # noqa: S608
        + (" FOR UPDATE" if lock else ""),
        *source,
    )
    if row is None or row[0] != epoch:
        raise Fenced(f"Source {tuple(source)} is held under epoch {row and row[0]}, not {epoch}.")
    return row[1], row[2], row[3]


def database_of(rows: Rows) -> str:
    """Return which database holds the ledger."""
    row = rows.first(f"SELECT {rows.database}")
    assert row is not None
    return str(row[0])


def mark_of(rows: Rows, source: Source) -> Mark:
    """Return how far the source is decided."""
    row = rows.first(
        "SELECT mark, stream_time, dropped_before FROM source LEFT JOIN store ON name = store"
        " WHERE producer_id = %s AND partition = %s",
        *source,
    )
    return Mark(*row) if row else Mark()


def horizon_of(rows: Rows, source: Source, retention_ms: int) -> int | None:
    """Return the event time from which on no row of a source's store can have been taken over."""
    row = rows.first("SELECT store FROM source WHERE producer_id = %s AND partition = %s", *source)
    return pointer_of(rows, row[0]).horizon(retention_ms) if row else None


def count_re_reads(rows: Rows, source: Source, deliveries: int) -> None:
    """Count deliveries that were read again below the mark."""
    _count(rows, "re_read", source, deliveries)


def count_cached(rows: Rows, source: Source, deliveries: int) -> None:
    """Count duplicates that a cache knew."""
    _count(rows, "cached", source, deliveries)


def must_be_in(rows: Rows, database: str | None) -> None:
    """Raise in another database than the one that was compared with the log: blocks may be missing in it."""
    found = database_of(rows)
    if database is not None and found != database:
        raise Fenced(
            f"The ledger moved from {database} to {found} meanwhile, as after a failover: what was decided last may be"
            " missing in it.",
            "run again, which compares it with the log first",
        )


def read_up_to(rows: Rows, ends: Mapping[Source, int], database: str | None = None) -> None:
    """Note that every record of these sources before an offset is decided; it never goes back."""
    must_be_in(rows, database)
    rows.change_each(
        "UPDATE source SET read_to = %s WHERE producer_id = %s AND partition = %s"
        " AND coalesce(read_to, -1) < %s",
        # In one order, because a worker that settles a block locks its source's row.
        [(end, *source, end) for source, end in sorted(ends.items())],
    )


def _count(rows: Rows, column: str, source: Source, deliveries: int) -> None:
    rows.change(
        f"UPDATE source SET {column} = {column} + %s WHERE producer_id = %s AND partition = %s",  # noqa: S608
        deliveries,
        *source,
    )
