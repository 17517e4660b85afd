"""Questions to the sketches' SQLite file; nothing here can write."""

from __future__ import annotations

import json
import sqlite3
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from admitone.analytics.folding import clock_of, is_kept
from admitone.analytics.port import (
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
        with self._database.snapshot() as db:
            rows = StateRows(db)
            parts = [rows.get(window.key, dimension_list)]
            if window.kind != "minute":
                open_minutes = db.execute(
                    "SELECT key FROM windows WHERE kind = 'minute' AND NOT folded"
                    " AND start_ms >= ? AND start_ms < ? ORDER BY start_ms",
                    (window.start_ms, window.end_ms),
                ).fetchall()
                parts += [rows.get(minute, dimension_list) for (minute,) in open_minutes]
            parameters = self.state().parameters.of(window.kind)
        stored = [part for part in parts if part is not None]
        if not stored:
            return None
        # What is stored keeps the shape it was folded under; a mere sum of minutes takes today's.
        whole = (
            WindowSketch(parameters) if parts[0] is None else WindowSketch.from_bytes(stored.pop(0))
        )
        for part in stored:
            whole.merge(WindowSketch.from_bytes(part))
        return whole

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
