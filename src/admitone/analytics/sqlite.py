"""Counts in a SQLite file of their own: the embedded default."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from admitone.analytics.folding import Folding, horizon
from admitone.analytics.port import (
    NOTHING_READ,
    Clock,
    CountedBatch,
    CountingParameters,
    KeptValues,
    PartitionRead,
)
from admitone.analytics.sqlite_schema import migrate
from admitone.analytics.sqlite_reader import (
    PREFIXES,
    SqliteSketchReader,
    StateRows,
    key_range,
    open_file,
    parameters_from_json,
    parameters_to_json,
)
from admitone.analytics.values import choose_values
from admitone.core.errors import ConfigurationError, MarkMoved
from admitone.core.sketches import SketchBytes
from admitone.core.windows import window_of
from admitone.faults import crash_point


class SqliteSketchStore(SqliteSketchReader):
    """Keeps counts in a file; one writer at a time, checked by its marks."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = open_file(path, "rwc")
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._rows = StateRows(self._connection)
        migrate(self._connection, path.name)

    def adopt(self, parameters: CountingParameters) -> None:
        """Count under these parameters from the next batch on, or refuse with the reason."""
        with self._transaction():
            query = "SELECT value FROM settings WHERE name = 'parameters'"
            row = self._connection.execute(query).fetchone()
            if row is not None and self.marks():
                _refuse_incompatible(parameters_from_json(row[0]), parameters)
            self._set("parameters", parameters_to_json(parameters))

    def keep_values(self, values: Mapping[tuple[str, str], KeptValues]) -> None:
        """Give an empty store the values another one chose, so that it makes the same lists."""
        with self._transaction():
            if self.marks():
                raise ConfigurationError(
                    "This store has counted already; its lists cannot change.", "use an empty store"
                )
            self._write_values(values)

    def marks(self) -> dict[tuple[str, int], int]:
        """Return the last counted offset by topic id and partition."""
        rows = self._connection.execute("SELECT topic_id, partition, offset FROM marks")
        return {(topic_id, partition): offset for topic_id, partition, offset in rows}

    def commit(self, batch: CountedBatch) -> int:
        """Make one batch durable and return the store's new revision."""
        with self._transaction():
            for read in batch.reads:
                self._move_mark(read)
            self._advance_sources(batch)
            parameters = self._parameters()
            clock = self._clock(parameters.idle_after)
            chosen = choose_values(self.kept_values(), batch, parameters.max_values)
            self._write_values(chosen.values)
            if clock is not None:
                shelf = _WrittenTogether(self._connection)
                folding = Folding(shelf, parameters, clock, self._minutes())
                folding.apply(chosen.deltas)
                shelf.flush()
                self._write_windows(folding)
                self._expire(parameters, clock)
            revision = self.state().revision + 1
            self._set("revision", str(revision))
            self._set("updated_at", str(batch.counted_at))
            crash_point("analytics.committing")
        return revision

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _set(self, name: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def _move_mark(self, read: PartitionRead) -> None:
        place = (read.topic_id, read.partition)
        if read.mark == NOTHING_READ:
            self._connection.execute(
                "INSERT INTO marks VALUES (?, ?, ?, ?, 0, 0, 0) ON CONFLICT DO NOTHING",
                (*place, read.topic, NOTHING_READ),
            )
        moved = self._connection.execute(
            "UPDATE marks SET topic = ?, offset = ?, counted = counted + ?, re_read = re_read + ?,"
            " skipped = skipped + ? WHERE topic_id = ? AND partition = ? AND offset = ?",
            (
                read.topic,
                read.last_offset,
                read.counted,
                read.re_read,
                read.skipped,
                *place,
                read.mark,
            ),
        )
        if moved.rowcount != 1:
            raise MarkMoved(
                f"Expected {read.topic} partition {read.partition} to be counted up to {read.mark}, "
                f"found {self.marks().get(place)}.",
                "let one analytics query run on a store; this one starts again from the marks",
            )

    def _advance_sources(self, batch: CountedBatch) -> None:
        self._connection.executemany(
            "INSERT INTO sources VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " stream_time = max(stream_time, excluded.stream_time),"
            " append_time = max(append_time, excluded.append_time)",
            [(*source, *progress) for source, progress in batch.sources.items()],
        )

    def _write_values(self, values: Mapping[tuple[str, str], KeptValues]) -> None:
        for (dimension, attribute), kept in values.items():
            self._connection.execute(
                "INSERT OR REPLACE INTO attributes VALUES (?, ?, ?)",
                (dimension, attribute, kept.closed),
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO attribute_values VALUES (?, ?, ?)",
                [(dimension, attribute, value) for value in kept.values],
            )

    def _minutes(self) -> dict[int, bool]:
        query = "SELECT start_ms, folded FROM windows WHERE kind = 'minute'"
        return {start: bool(folded) for start, folded in self._connection.execute(query)}

    def _write_windows(self, folding: Folding) -> None:
        changed = [
            (window_of("minute", minute), folded)
            for minute, folded in folding.minutes.items()
            if folding.folded_before.get(minute) is not folded
        ]
        changed += [(window, True) for window in folding.raised]
        self._connection.executemany(
            "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?)",
            [(window.key, *window, folded) for window, folded in changed],
        )

    def _expire(self, parameters: CountingParameters, clock: Clock) -> None:
        for kind in ("minute", "hour"):
            expired = self._connection.execute(
                "SELECT key FROM windows WHERE kind = ? AND end_ms <= ?",
                (kind, horizon(kind, clock, parameters)),
            ).fetchall()
            for (window,) in expired:
                for prefix in PREFIXES:
                    self._connection.execute(
                        "DELETE FROM state WHERE key >= ? AND key < ?", key_range(prefix, window)
                    )
                self._connection.execute("DELETE FROM windows WHERE key = ?", (window,))


class _WrittenTogether(StateRows):
    """Reads rows and collects what is written for one statement at the end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._changes: list[tuple[str, bytes]] = []

    def put(self, window: str, dimension_list: str, parts: SketchBytes) -> None:
        place = f"{window}:{dimension_list}"
        self._changes += [
            (f"{prefix}:{place}", part) for prefix, part in zip(PREFIXES, parts, strict=True)
        ]

    def put_meta(self, window: str, dimension_list: str, meta: bytes) -> None:
        self._changes.append((f"meta:v1:{window}:{dimension_list}", meta))

    def flush(self) -> None:
        self._changes.sort(key=lambda change: change[0])
        self._connection.executemany(
            "INSERT INTO state VALUES (?, ?)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            self._changes,
        )


def _refuse_incompatible(before: CountingParameters, after: CountingParameters) -> None:
    old, new = before.sketch, after.sketch
    problems = []
    if (old.width, old.depth) != (new.width, new.depth):
        problems.append(
            f"the sketches are {old.width}x{old.depth} and cannot become {new.width}x{new.depth}"
        )
    if new.counter_bits < old.counter_bits:
        problems.append(
            f"counters have {old.counter_bits} bits and cannot shrink to {new.counter_bits}"
        )
    missing = [kind for kind in after.kinds if kind not in before.kinds]
    if missing:
        problems.append(f"{', '.join(missing)} would start in the middle of what was counted")
    if problems:
        raise ConfigurationError(
            f"{'; '.join(problems)}.", "admitone recompute, or the former [topk]"
        )
