"""The counts in a SQLite file, read only."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from admitone.analytics.folding import clock_of, is_kept
from admitone.analytics.port import (
    Clock,
    CountingParameters,
    KeptValues,
    Mark,
    SourceProgress,
    StoreState,
)
from admitone.analytics.sqlite_schema import check_version
from admitone.core.errors import NotFound
from admitone.core.sketches import SketchBytes, SketchParameters, WindowSketch
from admitone.core.windows import KINDS, Window, window_of

PREFIXES: Final = ("sketch:v1", "space-saving:v1", "meta:v1")
_BUSY_MS: Final = 30_000


def open_file(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file; transactions are ours to begin."""
    # Spark calls a batch function from threads of its own, one at a time.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=_BUSY_MS / 1000,
    )
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    return connection


def parameters_to_json(parameters: CountingParameters) -> str:
    """Return the parameters as they are recorded."""
    return json.dumps({**parameters._asdict(), "sketch": parameters.sketch._asdict()})


def parameters_from_json(text: str) -> CountingParameters:
    """Read what `parameters_to_json` wrote."""
    values: dict[str, Any] = json.loads(text)
    values["sketch"] = SketchParameters(**values["sketch"])
    values["kinds"] = tuple(values["kinds"])
    return CountingParameters(**values)


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


def key_range(prefix: str, window: str) -> tuple[str, str]:
    """Return the first key of a window and the one after its last: `;` follows `:`."""
    return f"{prefix}:{window}:", f"{prefix}:{window};"


class SqliteSketchReader:
    """Reads the counts in a file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            raise NotFound("Nothing has been counted yet.", "admitone run analytics")
        self._connection = open_file(path, "ro")
        self._rows = StateRows(self._connection)
        check_version(self._connection, path.name)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything read inside come from one commit."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def state(self) -> StoreState:
        """Return the store's revision, parameters, clock and marks."""
        settings = dict(self._connection.execute("SELECT name, value FROM settings"))
        if "parameters" not in settings:
            raise NotFound("Nothing has been counted yet.", "admitone run analytics")
        parameters = parameters_from_json(settings["parameters"])
        marks = self._connection.execute(
            "SELECT topic, topic_id, partition, offset FROM marks ORDER BY topic, partition"
        )
        return StoreState(
            revision=int(settings["revision"]),
            updated_at=int(settings["updated_at"]),
            parameters=parameters,
            clock=self._clock(parameters.idle_after),
            marks=tuple(Mark(*row) for row in marks),
        )

    def windows(self) -> list[Window]:
        """Return every window there is, open ones included."""
        found = {
            Window(*row)
            for row in self._connection.execute("SELECT kind, start_ms, end_ms FROM windows")
        }
        state = self.state()
        for minute in self._open_minutes():
            found.update(window_of(kind, minute) for kind in state.parameters.kinds)
        if state.clock is not None:
            found = {window for window in found if is_kept(window, state.clock, state.parameters)}
        return sorted(found, key=lambda window: (KINDS.index(window.kind), window.start_ms))

    def sketch(self, window: Window, dimension_list: str) -> WindowSketch | None:
        """Return what is known about a list in a window, its open minutes included."""
        stored = self._rows.get(window.key, dimension_list)
        found = None if stored is None else WindowSketch.from_bytes(stored)
        if window.kind == "minute":
            return found
        for minute in self._open_minutes(window):
            added = self._rows.get(window_of("minute", minute).key, dimension_list)
            if added is not None:
                if found is None:
                    found = WindowSketch(self._parameters().of(window.kind))
                found.merge(WindowSketch.from_bytes(added))
        return found

    def kept_values(self) -> dict[tuple[str, str], KeptValues]:
        """Return the values that have a list, by dimension and attribute."""
        values: dict[tuple[str, str], set[str]] = {}
        query = "SELECT dimension, attribute, value FROM attribute_values"
        for dimension, attribute, value in self._connection.execute(query):
            values.setdefault((dimension, attribute), set()).add(value)
        attributes = self._connection.execute("SELECT dimension, attribute, closed FROM attributes")
        return {
            (dimension, attribute): KeptValues(
                frozenset(values.get((dimension, attribute), ())), bool(closed)
            )
            for dimension, attribute, closed in attributes
        }

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def _parameters(self) -> CountingParameters:
        query = "SELECT value FROM settings WHERE name = 'parameters'"
        row = self._connection.execute(query).fetchone()
        return parameters_from_json(row[0])

    def _clock(self, idle_after: int) -> Clock | None:
        rows = self._connection.execute("SELECT stream_time, append_time FROM sources")
        return clock_of((SourceProgress(*row) for row in rows), idle_after)

    def _open_minutes(self, within: Window | None = None) -> list[int]:
        query = "SELECT start_ms FROM windows WHERE kind = 'minute' AND NOT folded"
        minutes = [start for (start,) in self._connection.execute(query)]
        return [
            minute
            for minute in sorted(minutes)
            if within is None or within.start_ms <= minute < within.end_ms
        ]
