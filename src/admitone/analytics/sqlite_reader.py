"""Questions to the sketches' SQLite file; nothing here can write."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from admitone.analytics.folding import clock_of, is_kept
from admitone.analytics.port import (
    Changes,
    CountingParameters,
    KeptValues,
    Mark,
    SourceProgress,
    StoreState,
)
from admitone.analytics.sqlite_schema import MIGRATIONS
from admitone.core.sketches import SketchBytes, SketchParameters, WindowSketch
from admitone.core.windows import KINDS, Window, window_of
from admitone.sqlite import Database

PREFIXES: Final = ("sketch:v1", "space-saving:v1", "meta:v1")


class StateRows:
    """The rows under `sketch:v1:…`, `space-saving:v1:…` and `meta:v1:…`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, window: str, dimension_list: str) -> SketchBytes | None:
        """Return the stored parts."""
        keys = [f"{prefix}:{window}:{dimension_list}" for prefix in PREFIXES]
        query = "SELECT key, value FROM state WHERE key IN (?, ?, ?)"
        rows = dict(self._connection.execute(query, keys))
        return SketchBytes(*(rows[key] for key in keys)) if rows else None

    def meta(self, window: str, dimension_list: str) -> bytes | None:
        """Return the stored totals only."""
        query = "SELECT value FROM state WHERE key = ?"
        row = self._connection.execute(query, (f"meta:v1:{window}:{dimension_list}",)).fetchone()
        return None if row is None else bytes(row[0])

    def lists_in(self, window: str) -> list[str]:
        """Return the lists stored for a window."""
        first, last = key_range("meta:v1", window)
        query = "SELECT key FROM state WHERE key >= ? AND key < ?"
        return [key[len(first) :] for (key,) in self._connection.execute(query, (first, last))]


class SqliteSketchReader:
    """A `SketchReader` on a SQLite file."""

    def __init__(self, path: Path, parameters: CountingParameters) -> None:
        self._database = Database(path, MIGRATIONS)
        self._configured = parameters

    def snapshot(self) -> AbstractContextManager[object]:
        """Let everything read within come from one commit."""
        return self._database.snapshot()

    def state(self) -> StoreState:
        """Return the store's revision, parameters, clock and marks."""
        with self._database.snapshot() as db:
            settings = dict(db.execute("SELECT name, value FROM settings"))
            sources = db.execute("SELECT stream_time, append_time FROM sources").fetchall()
            marks = db.execute(
                "SELECT topic, topic_id, partition, offset, counted, coalesce(sum(replayed), 0),"
                " coalesce(sum(order_violations), 0) FROM marks LEFT JOIN upstream USING (topic_id, partition)"
                " GROUP BY topic_id, partition ORDER BY topic, partition"
            ).fetchall()
        recorded = settings.get("parameters")
        parameters = parameters_from_json(recorded) if recorded else self._configured
        return StoreState(
            generation=int(settings["generation"]),
            revision=int(settings["revision"]),
            updated_at=int(settings["updated_at"]),
            parameters=parameters,
            clock=clock_of((SourceProgress(*row) for row in sources), parameters.idle_after),
            marks=tuple(Mark(*row) for row in marks),
        )

    def windows(self) -> list[Window]:
        """Return every window there is, open ones included."""
        with self._database.snapshot() as db:
            state = self.state()
            stored = db.execute("SELECT kind, start_ms, end_ms, folded FROM windows").fetchall()
        found = {Window(kind, start, end) for kind, start, end, _ in stored}
        for _, minute, _, folded in stored:
            if not folded:
                found.update(window_of(kind, minute) for kind in state.parameters.kinds)
        if state.clock is not None:
            found = {window for window in found if is_kept(window, state.clock, state.parameters)}
        return sorted(found, key=lambda window: (KINDS.index(window.kind), window.start_ms))

    def sketch(self, window: Window, dimension_list: str) -> WindowSketch | None:
        """Return what is known about a list in a window, its open minutes included."""
        return next((found for _, found in self.sketches([window], dimension_list)), None)

    def sketches(
        self, windows: Iterable[Window], dimension_list: str
    ) -> Iterator[tuple[Window, WindowSketch]]:
        """Yield the same for many windows, each open minute read once; empty ones are left out."""
        with self._database.snapshot() as db:
            parameters = self.state().parameters
            rows = StateRows(db)
            still_open = _OpenMinutes(db, rows, dimension_list, parameters)
            for window in windows:
                stored = rows.get(window.key, dimension_list)
                whole = None if stored is None else WindowSketch.from_bytes(stored)
                added = None if window.kind == "minute" else still_open.within(window)
                if added is not None:
                    # What is stored keeps the shape it was folded under; a mere sum of minutes takes today's.
                    whole = whole or WindowSketch(parameters.of(window.kind))
                    whole.merge(added)
                if whole is not None:
                    yield window, whole

    def lists_in(self, window: Window) -> list[str]:
        """Return the lists that have anything in a window."""
        with self._database.snapshot() as db:
            rows = StateRows(db)
            found = set(rows.lists_in(window.key))
            for minute in () if window.kind == "minute" else open_minutes(db, window):
                found.update(rows.lists_in(window_of("minute", minute).key))
        return sorted(found)

    def changes(self, generation: int, revision: int) -> Changes:
        """Return what changed after a revision of one life of the store."""
        with self._database.snapshot() as db:
            state = self.state()
            (known_from,) = db.execute(
                "SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'changes_from'"
            ).fetchone()
            told = generation == state.generation and known_from <= revision <= state.revision
            if not told:
                return Changes(True, self._everything(db, state))
            changed = db.execute("SELECT list, minute FROM changes WHERE revision > ?", (revision,))
            return Changes(False, _with_windows_above(changed, state))

    def _everything(self, db: sqlite3.Connection, state: StoreState) -> dict[str, set[Window]]:
        minutes = db.execute("SELECT start_ms FROM windows WHERE kind = 'minute' AND NOT folded")
        found = _with_windows_above(
            (
                (name, minute)
                for (minute,) in minutes.fetchall()
                for name in StateRows(db).lists_in(window_of("minute", minute).key)
            ),
            state,
        )
        for window in self.windows():
            for name in StateRows(db).lists_in(window.key):
                found.setdefault(name, set()).add(window)
        return found

    def kept_values(self) -> dict[tuple[str, str], KeptValues]:
        """Return the values that have a list, by dimension and attribute."""
        with self._database.snapshot() as db:
            attributes = db.execute(
                "SELECT dimension, attribute, closed FROM attributes"
            ).fetchall()
            rows = db.execute("SELECT dimension, attribute, value FROM attribute_values").fetchall()
        values: dict[tuple[str, str], set[str]] = {}
        for dimension, attribute, value in rows:
            values.setdefault((dimension, attribute), set()).add(value)
        return {
            (dimension, attribute): KeptValues(
                frozenset(values.get((dimension, attribute), ())), bool(closed)
            )
            for dimension, attribute, closed in attributes
        }

    def close(self) -> None:
        """Release the file."""
        self._database.close()


class _OpenMinutes:
    """The open minutes of one list, each read once, and their sums."""

    def __init__(
        self,
        db: sqlite3.Connection,
        rows: StateRows,
        dimension_list: str,
        parameters: CountingParameters,
    ) -> None:
        self._db = db
        self._rows = rows
        self._list = dimension_list
        self._parameters = parameters
        self._sums: dict[tuple[int, ...], WindowSketch | None] = {}

    def within(self, window: Window) -> WindowSketch | None:
        """Return the sum of those in a window; nearly always that is the same for several windows."""
        minutes = tuple(open_minutes(self._db, window))
        if minutes not in self._sums:
            self._sums[minutes] = self._sum(minutes)
        return self._sums[minutes]

    def _sum(self, minutes: tuple[int, ...]) -> WindowSketch | None:
        parts = [
            part
            for minute in minutes
            if (part := self._rows.get(window_of("minute", minute).key, self._list)) is not None
        ]
        if not parts:
            return None
        # Wide counters, so that none stops on the way to a window that has wide ones.
        whole = WindowSketch(self._parameters.sketch.widened())
        for part in parts:
            whole.merge(WindowSketch.from_bytes(part))
        return whole


def open_minutes(db: sqlite3.Connection, window: Window) -> list[int]:
    """Return the starts of the minutes in a window that are not folded yet."""
    query = (
        "SELECT start_ms FROM windows WHERE kind = 'minute' AND NOT folded"
        " AND start_ms >= ? AND start_ms < ? ORDER BY start_ms"
    )
    return [start for (start,) in db.execute(query, (window.start_ms, window.end_ms))]


def _with_windows_above(
    minutes: Iterable[tuple[str, int]], state: StoreState
) -> dict[str, set[Window]]:
    """Return the kept windows of some minutes, by list."""
    found: dict[str, set[Window]] = {}
    for name, minute in minutes:
        found.setdefault(name, set()).update(
            window
            for window in (window_of(kind, minute) for kind in state.parameters.kinds)
            if state.clock is None or is_kept(window, state.clock, state.parameters)
        )
    return found


def key_range(prefix: str, window: str) -> tuple[str, str]:
    """Return the first key of a window and the one after its last: `;` follows `:`."""
    return f"{prefix}:{window}:", f"{prefix}:{window};"


def parameters_to_json(parameters: CountingParameters) -> str:
    """Return the parameters as they are recorded."""
    return json.dumps({**parameters._asdict(), "sketch": parameters.sketch._asdict()})


def parameters_from_json(text: str) -> CountingParameters:
    """Read what `parameters_to_json` wrote."""
    values: dict[str, Any] = json.loads(text)
    values["sketch"] = SketchParameters(**values["sketch"])
    values["kinds"] = tuple(values["kinds"])
    return CountingParameters(**values)
