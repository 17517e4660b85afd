"""History in PostgreSQL: complete windows as they complete, open ones at a slower pace, marked so.

A list in a window is one row of `window_metadata` and its items in `heavy_hitters`; both are replaced in one
transaction that first writes the row where it is older. So writers that race, or wake up late, cannot undo each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final

from psycopg import sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from admitone.analytics.store_state import Point
from admitone.core.moments import milliseconds, moment
from admitone.core.sketches import RankedItem
from admitone.core.windows import GLOBAL, Window, parse_window
from admitone.infra.crash_points import crash_point
from admitone.infra.postgres import Connection, Database
from admitone.results.history_schema import COMPONENT, MIGRATIONS, TABLES, Span
from admitone.results.port import ItemResult, ListResult, counted_under

_LISTS_AT_ONCE: Final = 200
_PATIENCE_S: Final = 5.0

_WRITE_METADATA: Final = """
INSERT INTO window_metadata VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (window_key, dimension) DO UPDATE SET
    total_events = excluded.total_events,
    unique_items_estimate = excluded.unique_items_estimate,
    processing_complete = excluded.processing_complete,
    last_updated = excluded.last_updated,
    late_events = excluded.late_events,
    item_type = excluded.item_type,
    error_bound_percent = excluded.error_bound_percent,
    unlisted_upper = excluded.unlisted_upper,
    parameters = excluded.parameters,
    revision = excluded.revision
WHERE window_metadata.revision <= excluded.revision
RETURNING true"""
_READ_METADATA: Final = """
SELECT item_type, total_events AS total, late_events AS late, unique_items_estimate AS "distinct",
    processing_complete AS complete, last_updated, error_bound_percent AS error_bound, unlisted_upper,
    parameters, revision AS fence
FROM window_metadata WHERE window_key = %s AND dimension = %s"""
_READ_ITEMS: Final = """
SELECT rank, item_key, estimated_count, lower_count, upper_count FROM heavy_hitters
WHERE window_key = %s AND dimension = %s ORDER BY rank"""
_REMOVE_ITEMS: Final = (
    "DELETE FROM heavy_hitters USING unnest(%s::text[], %s::text[]) AS gone (key, list)"
    " WHERE window_key = gone.key AND dimension = gone.list"
)
_RETIRE: Final = (
    "DELETE FROM window_metadata WHERE window_key = ANY(%s) AND revision < %s"
    " RETURNING window_key, dimension"
)
_WRITTEN: Final = """
INSERT INTO history_written VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (pace) DO UPDATE SET generation = excluded.generation, revision = excluded.revision,
    frontier = excluded.frontier, newest = excluded.newest
WHERE (history_written.generation, history_written.revision) <= (excluded.generation, excluded.revision)"""


class Pace(StrEnum):
    """Which windows are written how often."""

    COMPLETE = "complete"
    OPEN = "open"


class PostgresHistory:
    """An `Outlet` in PostgreSQL, for complete windows or for open ones."""

    label = "the history in PostgreSQL"
    wants_items = False

    def __init__(self, url: str, pace: Pace, keep: dict[str, int], interval_ms: int) -> None:
        self._database = Database(url, COMPONENT, MIGRATIONS, _PATIENCE_S)
        self._pace = pace
        self._keep = keep
        self.interval_ms = interval_ms
        self._spans: set[Span] = set()

    def reached(self) -> Point | None:
        """Return the point up to which everything of this pace was written."""
        query = "SELECT generation, revision, frontier, newest FROM history_written WHERE pace = %s"
        row = self._database.read(lambda db: db.execute(query, (self._pace,)).fetchone())
        return None if row is None else Point(*row)

    def wants(self, window: Window, complete: bool, now: Point) -> bool:
        """Tell whether a window is of this pace, and inside the retention."""
        keep = self._keep.get(window.kind)
        kept = keep is None or (Span.of(window).end_ms or now.newest) > now.newest - keep
        return kept and complete == (self._pace is Pace.COMPLETE)

    def write(self, lists: Sequence[ListResult], items: Sequence[ItemResult]) -> None:
        """Replace lists that are older; items over all time are not kept here."""
        for first in range(0, len(lists), _LISTS_AT_ONCE):
            # In one order, so that two writers wait for each other instead of blocking each other.
            some = sorted(
                lists[first : first + _LISTS_AT_ONCE], key=lambda r: (r.window.key, r.name)
            )
            self._make_partitions({Span.of(result.window) for result in some})
            crash_point("history.writing")
            self._database.run(partial(_replace, lists=some))
            crash_point("history.written")

    def finish(self, now: Point, rebuilt: Collection[Window]) -> bool:
        """Note that everything up to a point is written, and drop what is past the retention."""
        keys = [window.key for window in rebuilt]

        def note(db: Connection) -> None:
            gone = db.execute(_RETIRE, (keys, now.fence)).fetchall() if keys else []
            _remove_items(db, gone)
            db.execute(_WRITTEN, (self._pace, *now))

        self._database.run(note)
        for span in self._expired(now):
            self._drop(span)
        return True

    def close(self) -> None:
        """Release the connection."""
        self._database.close()

    def _make_partitions(self, spans: Collection[Span]) -> None:
        missing = sorted(set(spans) - self._spans)

        def make(db: Connection) -> None:
            # Creating a table twice at the same time fails, in spite of IF NOT EXISTS.
            db.execute("SELECT pg_advisory_xact_lock(hashtextextended('admitone history', 0))")
            for span in missing:
                for table in TABLES:
                    db.execute(
                        sql.SQL(
                            "CREATE TABLE IF NOT EXISTS {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})"
                        ).format(
                            sql.Identifier(f"{table}_{span.suffix}"),
                            sql.Identifier(table),
                            *map(sql.Literal, span.bounds),
                        )
                    )

        if missing:
            self._database.run(make)
            self._spans.update(missing)

    def _expired(self, now: Point) -> list[Span]:
        query = (
            "SELECT relid::regclass::text FROM pg_partition_tree('window_metadata') WHERE isleaf"
        )
        rows = self._database.read(lambda db: db.execute(query).fetchall())
        found = (Span.named(name.rpartition(".")[2].strip('"')) for (name,) in rows)
        return [
            span
            for span in found
            if span is not None
            and (keep := self._keep.get(span.kind)) is not None
            and (end := span.end_ms) is not None
            and end <= now.newest - keep
        ]

    def _drop(self, span: Span) -> None:
        def drop(db: Connection) -> None:
            for table in TABLES:
                name = sql.Identifier(f"{table}_{span.suffix}")
                db.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))

        self._database.run(drop)
        self._spans.discard(span)


class HistoryReader:
    """Reads what the history holds, in read-only transactions; it is empty until a writer has made its tables."""

    def __init__(self, url: str) -> None:
        self._database = Database(url, COMPONENT, MIGRATIONS, _PATIENCE_S, read_only=True)

    def result(self, window: Window, name: str) -> ListResult | None:
        """Return a list in a window as it was last written."""

        def ask(db: Connection) -> ListResult | None:
            place = (window.key, _text(name))
            found = db.cursor(row_factory=dict_row).execute(_READ_METADATA, place).fetchone()
            if found is None:
                return None
            updated = found.pop("last_updated")
            found["parameters"] = counted_under(found["parameters"])
            return ListResult(
                **found,
                window=window,
                name=name,
                updated_at=0 if updated is None else milliseconds(updated),
                items=tuple(RankedItem(*item) for item in db.execute(_READ_ITEMS, place)),
            )

        return self._database.read(ask) if self._database.is_made() else None

    def windows(self) -> dict[Window, bool]:
        """Return every window there is, and whether it is complete."""
        query = "SELECT window_key, bool_and(processing_complete) FROM window_metadata GROUP BY 1"
        made = self._database.is_made()
        rows = self._database.read(lambda db: db.execute(query).fetchall()) if made else []
        return {parse_window(key): complete for key, complete in rows}

    def close(self) -> None:
        """Release the connection."""
        self._database.close()


def _replace(db: Connection, lists: Sequence[ListResult]) -> None:
    accepted = [
        result for result in lists if db.execute(_WRITE_METADATA, _metadata(result)).fetchone()
    ]
    _remove_items(db, [(result.window.key, _text(result.name)) for result in accepted])
    with db.cursor().copy("COPY heavy_hitters FROM STDIN") as copy:
        for result in accepted:
            for entry in result.items:
                copy.write_row(_item(result, entry))


def _remove_items(db: Connection, places: Iterable[tuple[str, str]]) -> None:
    gone = list(places)
    if gone:
        db.execute(_REMOVE_ITEMS, tuple(map(list, zip(*gone, strict=True))))


def _metadata(result: ListResult) -> tuple[Any, ...]:
    window = result.window
    spans = window != GLOBAL
    return (
        window.key,
        _text(result.name),
        moment(window.start_ms) if spans else None,
        moment(window.end_ms) if spans else None,
        result.total,
        result.distinct,
        result.complete,
        moment(result.updated_at) if result.updated_at else None,
        result.late,
        result.item_type,
        result.error_bound,
        result.unlisted_upper,
        Jsonb(result.parameters),
        result.fence,
    )


def _item(result: ListResult, entry: RankedItem) -> tuple[Any, ...]:
    width = (entry.upper - entry.lower) / result.total * 100
    return (
        result.window.key,
        _text(result.name),
        _text(entry.item),
        result.item_type,
        entry.rank,
        entry.estimate,
        round(width, 4),
        entry.lower,
        entry.upper,
    )


def _text(value: str) -> str:
    """Return a text as PostgreSQL can hold it: all but the character zero."""
    return value.replace("\0", "␀")
