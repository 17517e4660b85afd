"""The ledger's database in PostgreSQL, for any number of writing processes.

Whatever a claim may have to wait for it asks for in key order: first its inserts, then the rows it takes over, so that
two claims never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from psycopg.errors import LockNotAvailable

from admitone.core.segment_times import Segment
from admitone.infra.postgres import PATIENCE_S, Database
from admitone.ledger.claims import Deliveries, Holder
from admitone.ledger.postgres.candidates import CANDIDATE_COLUMNS, copied_candidates
from admitone.ledger.postgres.rows import PostgresRows
from admitone.ledger.postgres.schema import MIGRATIONS
from admitone.ledger.segments import held_in_closed, held_in_open, pointer_of, table_of, take_over
from admitone.ledger.store import KeyClaim, Rows, T

# The candidates are looked up one by one in key order. The planner, knowing nothing about a temporary table,
# might rather read a whole segment.
_CANDIDATES = (
    f"CREATE TEMPORARY TABLE IF NOT EXISTS candidate ({CANDIDATE_COLUMNS}) ON COMMIT DELETE ROWS;"
    " SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;"
    " SELECT pg_relation_size('pg_temp.candidate')"
)


class PostgresStore:
    """A `Store` in a PostgreSQL database."""

    def __init__(
        self, url: str, patience_s: float = PATIENCE_S, *, read_only: bool = False
    ) -> None:
        self._database = Database(url, "ledger", MIGRATIONS, patience_s, read_only=read_only)

    def is_made(self) -> bool:
        """Tell whether a writer has made the tables: one that is opened read-only makes none."""
        return self._database.is_made()

    def run(self, work: Callable[[Rows], T], *, durable: bool = True) -> T:
        """Run a transaction until it is known to have happened; commit it unless the work rolled it back."""
        return self._database.run(lambda db: work(PostgresRows(db)))

    def read(self, work: Callable[[Rows], T]) -> T:
        """Ask questions of one consistent state."""
        return self._database.read(lambda db: work(PostgresRows(db)))

    @contextmanager
    def snapshot(self) -> Iterator[Rows]:
        """Read one consistent state, however long it takes; what is read within it sees the same."""
        with self._database.snapshot() as db:
            yield PostgresRows(db)

    def stage(self, deliveries: Deliveries) -> None:
        """Do nothing: candidates are copied within the claim, and hold up nobody else's."""

    def claim_keys(self, rows: Rows, claim: KeyClaim) -> dict[int, Holder]:
        """Insert the keys of deliveries for a block; return the holders that decide instead."""
        assert isinstance(rows, PostgresRows)
        _empty_candidates(rows)
        with rows.db.cursor().copy("COPY candidate FROM STDIN (FORMAT binary)") as copy:
            copy.write(copied_candidates(claim.deliveries, claim.ordinals))
        holders, table = held_in_closed(rows, claim), table_of(claim.store, claim.opened)
        waiting = set(claim.ordinals.tolist()) - holders.keys()
        while waiting:
            waiting -= _insert(rows, table, claim.block_id)
            if not waiting:
                break
            # A statement of its own: the one that inserts does not see what others committed meanwhile.
            opened, absent = held_in_open(rows, claim, waiting)
            holders |= opened
            waiting -= holders.keys()
            same = _locked(rows, table, absent) if absent else {}
            if same:
                take_over(rows, claim, same)
                waiting -= same.keys()
        return holders

    def drop(self, store: str, segment: Segment) -> bool:
        """Drop a given-up segment, unless a reader still needs it: claims must not wait for that.

        The pointer comes first, as in a claim, so that no claim looks for a table that is gone.
        """

        def drop(rows: Rows) -> bool:
            pointer_of(rows, store, " FOR UPDATE")
            rows.change("SET LOCAL lock_timeout = '500ms'")
            try:
                rows.change(f"DROP TABLE IF EXISTS {table_of(store, segment)}")
            except LockNotAvailable:
                rows.roll_back()
                return False
            rows.change("DELETE FROM segment WHERE store = %s AND start = %s", store, segment.start)
            return True

        return self.run(drop)

    def close(self) -> None:
        """Close this thread's connection."""
        self._database.close()


def _empty_candidates(rows: PostgresRows) -> None:
    found = rows.db.execute(_CANDIDATES)
    while found.nextset():
        pass
    # A commit empties the table; a claim that was rolled back leaves its dead rows to be read over.
    if found.fetchone() != (0,):
        rows.db.execute("TRUNCATE pg_temp.candidate")


def _insert(rows: PostgresRows, table: str, block_id: int) -> set[int]:
    """Insert what is not there; return the ordinals that were inserted."""
    row = rows.first(
        f"WITH inserted AS (INSERT INTO {table} (key, payload_hash, event_time, block_id, ordinal)"  # noqa: S608
        " SELECT key, payload_hash, event_time, %s, ordinal FROM candidate ORDER BY key"
        " ON CONFLICT DO NOTHING RETURNING ordinal)"
        " SELECT array_agg(ordinal) FROM inserted",
        block_id,
    )
    assert row is not None
    return set(row[0] or ())


def _locked(rows: PostgresRows, table: str, absent: Mapping[int, Holder]) -> dict[int, Holder]:
    """Lock rows, and return those that are still what was read."""
    found = rows.all(
        f"SELECT c.ordinal, k.block_id, k.ordinal FROM candidate c JOIN {table} k ON k.key = c.key"  # noqa: S608
        " WHERE c.ordinal = ANY(%s) ORDER BY c.key FOR UPDATE OF k",
        list(absent),
    )
    return {
        ordinal: absent[ordinal] for ordinal, *place in found if tuple(place) == absent[ordinal][:2]
    }
