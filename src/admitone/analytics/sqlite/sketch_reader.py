"""Questions to the sketches' SQLite file; nothing here can write."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from admitone.analytics.port import Changes, KeptValues
from admitone.analytics.sqlite.sketch_schema import MIGRATIONS
from admitone.analytics.store_state import (
    Clock,
    CountingParameters,
    Mark,
    SourceProgress,
    StoreState,
)
from admitone.core.sketches import SketchBytes, WindowSketch
from admitone.core.windows import GLOBAL, KINDS, Window, window_of
from admitone.infra.sqlite import Database

FORMER_LIVES: Final = "former_lives"
PREFIXES: Final = ("sketch:v1", "space-saving:v1", "meta:v1")


class StateRows:
    """The rows under `sketch:v1:…`, `space-saving:v1:…` and `meta:v1:…`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, window: str, dimension_list: str) -> SketchBytes | None:
        """Return the stored parts."""
        keys = keys_of(window, dimension_list)
        query = "SELECT key, value FROM state WHERE key IN (?, ?, ?)"
        rows = dict(self._connection.execute(query, keys))
        return SketchBytes(*(rows[key] for key in keys)) if rows else None

    def meta(self, window: str, dimension_list: str) -> bytes | None:
        """Return the stored totals only."""
        query = "SELECT value FROM state WHERE key = ?"
        row = self._connection.execute(query, keys_of(window, dimension_list)[2:]).fetchone()
        return None if row is None else bytes(row[0])

    def lists_in(self, window: str) -> list[str]:
        """Return the lists stored for a window."""
        first, last = key_range(PREFIXES[2], window)
        query = "SELECT key FROM state WHERE key >= ? AND key < ?"
        return [key[len(first) :] for (key,) in self._connection.execute(query, (first, last))]


class SqliteSketchReader:
    """A `SketchReader` on a SQLite file."""

    def __init__(
        self, path: Path, parameters: CountingParameters, *, read_only: bool = True
    ) -> None:
        self._database = Database(path, MIGRATIONS, read_only=read_only)
        self._configured = parameters
        self._listed: tuple[object, list[Window]] = (None, [])

    def snapshot(self) -> AbstractContextManager[object]:
        """Let everything read within come from one commit."""
        return self._database.snapshot()

    def state(self) -> StoreState:
        """Return the store's revision, parameters, clock and marks."""
        with self._database.snapshot() as db:
            settings = dict(db.execute("SELECT name, value FROM settings"))
            sources = db.execute("SELECT stream_time, append_time, block FROM sources").fetchall()
            spans = dict(db.execute("SELECT span, last_block FROM spans"))
            marks = db.execute(
                "SELECT topic, topic_id, partition, offset, counted, coalesce(sum(replayed), 0),"
                " coalesce(sum(order_violations), 0) FROM marks LEFT JOIN upstream USING (topic_id, partition)"
                " GROUP BY topic_id, partition ORDER BY topic, partition"
            ).fetchall()
        recorded = settings.get("parameters")
        parameters = CountingParameters.from_json(recorded) if recorded else self._configured
        return StoreState(
            generation=int(settings["generation"]),
            revision=int(settings["revision"]),
            updated_at=int(settings["updated_at"]),
            parameters=parameters,
            clock=Clock.of((SourceProgress(*row) for row in sources), spans, parameters.idle_after),
            marks=tuple(Mark(*row) for row in marks),
        )

    def windows(self) -> list[Window]:
        """Return every window there is, open ones included."""
        with self._database.snapshot() as db:
            state = self.state()
            # Every question asks for them, and only a commit changes them.
            commit = state.generation, state.revision, state.parameters
            if self._listed[0] == commit:
                return self._listed[1]
            stored = db.execute("SELECT kind, start_ms, end_ms, folded FROM windows").fetchall()
        found = {Window(kind, start, end) for kind, start, end, _ in stored}
        for _, minute, _, folded in stored:
            if not folded:
                found.update(window_of(kind, minute) for kind in state.parameters.kinds)
        listed = sorted(
            filter(state.is_kept, found), key=lambda w: (KINDS.index(w.kind), w.start_ms)
        )
        self._listed = commit, listed
        return listed

    def sketches(
        self, windows: Iterable[Window], dimension_list: str
    ) -> Iterator[tuple[Window, WindowSketch]]:
        """Yield what is known about a list in windows, their open minutes included; empty ones are left out."""
        with self._database.snapshot() as db:
            parameters = self.state().parameters
            rows = StateRows(db)
            sums: dict[tuple[int, ...], WindowSketch | None] = {}
            for window in windows:
                stored = rows.get(window.key, dimension_list)
                whole = None if stored is None else WindowSketch.from_bytes(stored)
                # Nearly always several windows hold the same open minutes.
                minutes = open_minutes(db, window)
                if minutes not in sums:
                    sums[minutes] = _sum(rows, minutes, dimension_list, parameters)
                added = sums[minutes]
                if added is not None:
                    # What is stored keeps the shape it was folded under; a mere sum of minutes takes today's.
                    whole = whole or WindowSketch(parameters.of(window.kind))
                    whole.merge(added)
                if whole is not None:
                    yield window, whole

    def rules_of(self, window: Window) -> list[str]:
        """Return the hashes of the rules that a window was counted under, where they are known."""
        with self._database.snapshot() as db:
            query = "SELECT rules FROM window_rules WHERE window = ? ORDER BY rules"
            return [rules for (rules,) in db.execute(query, (window.key,))]

    def rules(self) -> dict[bytes, bytes]:
        """Return every document of rules that was ever counted by, under its hash."""
        with self._database.snapshot() as db:
            found = db.execute("SELECT hash, document FROM rules").fetchall()
        return {bytes.fromhex(rules): document for rules, document in found}

    def lists_in(self, window: Window) -> list[str]:
        """Return the lists that have anything in a window."""
        with self._database.snapshot() as db:
            rows = StateRows(db)
            found = set(rows.lists_in(window.key))
            for minute in open_minutes(db, window):
                found.update(rows.lists_in(window_of("minute", minute).key))
        return sorted(found)

    def changes(self, generation: int, revision: int) -> Changes:
        """Return what changed after a revision of one life of the store."""
        with self._database.snapshot() as db:
            state = self.state()
            (known_from,) = db.execute(
                "SELECT CAST(value AS INTEGER) FROM settings WHERE name = 'changes_from'"
            ).fetchone()
            # Of a life that this store lived shorter than an outlet saw it, it is an older copy.
            lived = {**former_lives(db), state.generation: state.revision}
            if not known_from <= revision <= lived.get(generation, known_from - 1):
                return Changes(True, self._everything(db, state))
            changed = db.execute("SELECT list, minute FROM changes WHERE revision > ?", (revision,))
            return Changes(False, _with_windows_above(changed, state))

    def _everything(self, db: sqlite3.Connection, state: StoreState) -> dict[str, set[Window]]:
        rows = StateRows(db)
        still_open = (
            (name, minute)
            for minute in open_minutes(db, GLOBAL)
            for name in rows.lists_in(window_of("minute", minute).key)
        )
        found = _with_windows_above(still_open, state)
        for window in self.windows():
            for name in rows.lists_in(window.key):
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


def open_minutes(db: sqlite3.Connection, window: Window) -> tuple[int, ...]:
    """Return the starts of the minutes below a window that are not folded into it yet."""
    if window.kind == "minute":
        return ()
    query = (
        "SELECT start_ms FROM windows WHERE kind = 'minute' AND NOT folded"
        " AND start_ms >= ? AND start_ms < ? ORDER BY start_ms"
    )
    return tuple(start for (start,) in db.execute(query, (window.start_ms, window.end_ms)))


def _sum(
    rows: StateRows, minutes: Iterable[int], dimension_list: str, parameters: CountingParameters
) -> WindowSketch | None:
    """Return the sum of a list in some minutes."""
    stored = (rows.get(window_of("minute", minute).key, dimension_list) for minute in minutes)
    whole = None
    for parts in filter(None, stored):
        # Wide counters, so that none stops on the way to a window that has wide ones.
        whole = whole or WindowSketch(parameters.sketch.widened())
        whole.merge(WindowSketch.from_bytes(parts))
    return whole


def _with_windows_above(
    minutes: Iterable[tuple[str, int]], state: StoreState
) -> dict[str, set[Window]]:
    """Return the kept windows of some minutes, by list."""
    found: dict[str, set[Window]] = {}
    for name, minute in minutes:
        windows = (window_of(kind, minute) for kind in state.parameters.kinds)
        found.setdefault(name, set()).update(filter(state.is_kept, windows))
    return found


def keys_of(window: str, dimension_list: str) -> list[str]:
    """Return the keys of the three parts of a sketch, its totals last."""
    return [f"{prefix}:{window}:{dimension_list}" for prefix in PREFIXES]


def key_range(prefix: str, window: str) -> tuple[str, str]:
    """Return the first key of a window and the one after its last: `;` follows `:`."""
    return f"{prefix}:{window}:", f"{prefix}:{window};"


def former_lives(db: sqlite3.Connection) -> dict[int, int]:
    """Return the generations of a store's former lives, each with the revision at which it ended."""
    row = db.execute("SELECT value FROM settings WHERE name = ?", (FORMER_LIVES,)).fetchone()
    return dict(json.loads(row[0])) if row else {}
