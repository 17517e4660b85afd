"""Counts in a SQLite file of their own: the embedded default."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Self

from admitone.analytics.active_sources import SPANS_KEPT, Spans
from admitone.analytics.folding import Folding
from admitone.analytics.kept_values import choose_values
from admitone.analytics.port import (
    NOTHING_READ,
    CountedBatch,
    Delta,
    KeptValues,
    PartitionRead,
    Place,
    UpstreamMarks,
)
from admitone.analytics.sqlite.sketch_reader import (
    FORMER_LIVES,
    PREFIXES,
    SqliteSketchReader,
    StateRows,
    former_lives,
    key_range,
    keys_of,
)
from admitone.analytics.store_state import Clock, CountingParameters, SourceProgress
from admitone.core.errors import ConfigurationError, ContractDrift, MarkMoved
from admitone.core.replay_filter import Progress, Reached, Upstream
from admitone.core.sketches import SketchBytes
from admitone.core.windows import window_of
from admitone.governance.rules_in_force import Rules
from admitone.infra.crash_points import crash_point

_REVISIONS_REMEMBERED: Final = 1_000
_LIVES_REMEMBERED: Final = 1_000
_CONTENT: Final = (
    "state windows rules window_rules marks sources spans attributes attribute_values upstream"
    " topics"
).split()
_REPLACEMENT: Final = ".recomputing"


class SqliteSketchStore(SqliteSketchReader):
    """A `SketchStore` on a SQLite file; of two drivers that count, the marks let only one write."""

    def __init__(self, path: Path, parameters: CountingParameters) -> None:
        super().__init__(path, parameters, read_only=False)
        self._rules: Rules | None = None

    def adopt(self, parameters: CountingParameters, rules: Rules | None = None) -> None:
        """Count under these parameters from the next batch on, or refuse with the reason."""
        self._rules = rules
        with self._database.transaction() as db:
            query = "SELECT value FROM settings WHERE name = 'parameters'"
            row = db.execute(query).fetchone()
            if row is not None and any(offset >= 0 for offset in self.marks().values()):
                parameters.must_fit(CountingParameters.from_json(row[0]))
            if row is not None:
                _fit_spans(db, CountingParameters.from_json(row[0]), parameters)
            _set(db, "parameters", parameters.to_json())
            if rules is not None:
                db.execute(
                    "INSERT OR IGNORE INTO rules VALUES (?, ?)", (rules.hash.hex(), rules.document)
                )

    def keep_values(self, values: Mapping[tuple[str, str], KeptValues]) -> None:
        """Give an empty store the values another one chose, so that it makes the same lists."""
        with self._database.transaction() as db:
            if self.marks():
                raise ConfigurationError(
                    "This store has counted already; its lists cannot change.", "use an empty store"
                )
            _write_values(db, values)

    def begin_life(self, now: int, beyond: int = 0) -> None:
        """Begin a new life: its generation is beyond every one before."""
        with self._database.transaction() as db:
            before = self.state()
            ended = [*former_lives(db).items(), (before.generation, before.revision)]
            _set(db, FORMER_LIVES, json.dumps(ended[-_LIVES_REMEMBERED:]))
            _set(db, "generation", str(max(now, before.generation + 1, beyond + 1)))

    def marks(self) -> dict[tuple[str, int], int]:
        """Return the last counted offset by topic id and partition."""
        with self._database.snapshot() as db:
            rows = db.execute("SELECT topic_id, partition, offset FROM marks").fetchall()
        return {(topic_id, partition): offset for topic_id, partition, offset in rows}

    def upstream_marks(self) -> UpstreamMarks:
        """Return the marks by which replays are found, by topic id and partition."""
        found: dict[Place, dict[Upstream, Reached]] = {}
        with self._database.snapshot() as db:
            for topic_id, partition, producer, of, highest, last in db.execute(
                "SELECT topic_id, partition, producer_id, source_partition, highest, last FROM upstream"
            ):
                found.setdefault((topic_id, partition), {})[producer, of] = Reached(highest, last)
        return found

    def fit_marks(self, partitions: Mapping[str, int]) -> None:
        """Say how many partitions the topics have whose replays are filtered, by topic id."""
        with self._database.transaction() as db:
            known = dict(db.execute("SELECT topic_id, partitions FROM topics"))
            for topic_id, count in partitions.items():
                if known.get(topic_id, count) != count:
                    raise ContractDrift(
                        f"An admitted topic has {count} partitions, the marks by which its replays are found were made"
                        f" for {known[topic_id]}: what is written again may reach a partition that does not know it.",
                        "make sure that nobody writes anything again and run once with filter_replays = false in its"
                        " [[topics]]; then turn it on again",
                    )
            db.execute("DELETE FROM topics")
            db.executemany("INSERT INTO topics VALUES (?, ?)", partitions.items())

    def sources(self) -> dict[tuple[int, int], SourceProgress]:
        """Return how far each source partition had come in what was counted of it."""
        with self._database.snapshot() as db:
            rows = db.execute(
                "SELECT producer_id, partition, stream_time, append_time, block FROM sources"
            )
            return {(producer, of): SourceProgress(*times) for producer, of, *times in rows}

    def spans(self) -> Spans:
        """Return the spans of the ledger's clock by which sources are judged active."""
        with self._database.snapshot() as db:
            return dict(db.execute("SELECT span, last_block FROM spans"))

    @contextmanager
    def replacement(self) -> Iterator[Self]:
        """Make an empty second store that no reader sees, under the parameters this one was opened with."""
        path = self._database.path.with_name(self._database.path.name + _REPLACEMENT)
        _remove(path)
        other = type(self)(path, self._configured)
        try:
            other.adopt(self._configured, self._rules)
            yield other
        finally:
            other.close()
            _remove(path)

    def writing(self) -> AbstractContextManager[object]:
        """Hold back all other writers; readers go on."""
        return self._database.transaction()

    def take_over(self, replacement: Self, now: int) -> None:
        """Replace all content by that of a store of `replacement`, as a new life of this one."""
        with self._database.snapshot() as db, replacement._database.snapshot() as source:
            before, counted = self.state(), replacement.state()
            revision = max(before.revision, counted.revision) + 1
            for table in _CONTENT:
                db.execute(f"DELETE FROM {table}")  # noqa: S608
                rows = source.execute(f"SELECT * FROM {table}")  # noqa: S608
                places = ", ".join("?" * len(rows.description))
                db.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608
            db.execute("DELETE FROM changes")
            _set(db, FORMER_LIVES, "[]")
            _set(db, "parameters", counted.parameters.to_json())
            _set(db, "updated_at", str(counted.updated_at))
            _set(db, "revision", str(revision))
            _set(db, "changes_from", str(revision))
            _set(db, "generation", str(max(now, before.generation + 1)))

    def commit(self, batch: CountedBatch) -> int:
        """Make one batch durable and return the store's new revision.

        1. Move every mark from the value the batch was counted from.
        2. Advance the sources, which tells what time it is.
        3. Choose the lists of new attribute values.
        4. Add the deltas to their minutes and fold what became complete.
        5. Drop what is older than the retention.
        6. Raise the revision.
        """
        with self._database.transaction() as db:
            for read in batch.reads:  # 1
                _move_mark(db, read)
            for place, moved in batch.upstream.items():
                _move_upstream(db, place, moved)
            _advance_sources(db, batch)  # 2
            state = self.state()
            parameters, clock = state.parameters, state.clock
            chosen = choose_values(self.kept_values(), batch, parameters.max_values)  # 3
            _write_values(db, chosen.values)
            if clock is not None:
                rows = _BufferedRows(db)
                folding = Folding(rows, parameters, clock, _minutes(db))  # 4
                folding.apply(chosen.deltas)
                rows.flush()
                _write_windows(db, folding)
                self._note_rules(db, parameters, chosen.deltas)
                _expire(db, parameters, clock)  # 5
                _note_changes(db, chosen.deltas, state.revision + 1)
                _forget_changes(db, state.revision, clock.horizon("minute", parameters))
            _set(db, "revision", str(state.revision + 1))  # 6
            _set(db, "updated_at", str(batch.counted_at))
            crash_point("analytics.written")
        return state.revision + 1

    def _note_rules(
        self, db: sqlite3.Connection, parameters: CountingParameters, deltas: Iterable[Delta]
    ) -> None:
        """Note for every window that gained something under which rules it did."""
        if self._rules is None:
            return
        minutes = {delta.minute for delta in deltas}
        windows = {window_of(kind, minute).key for minute in minutes for kind in parameters.kinds}
        db.executemany(
            "INSERT OR IGNORE INTO window_rules VALUES (?, ?)",
            [(window, self._rules.hash.hex()) for window in sorted(windows)],
        )


def _remove(path: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)


def _set(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))


def _move_mark(db: sqlite3.Connection, read: PartitionRead) -> None:
    place = (read.topic_id, read.partition)
    if read.mark == NOTHING_READ:
        db.execute(
            "INSERT INTO marks VALUES (?, ?, ?, ?, 0, 0, 0) ON CONFLICT DO NOTHING",
            (*place, read.topic, NOTHING_READ),
        )
    moved = db.execute(
        "UPDATE marks SET topic = ?, offset = ?, counted = counted + ?, re_read = re_read + ?,"
        " skipped = skipped + ? WHERE topic_id = ? AND partition = ? AND offset = ?",
        (read.topic, read.last_offset, read.counted, read.re_read, read.skipped, *place, read.mark),
    )
    if moved.rowcount != 1:
        query = "SELECT offset FROM marks WHERE topic_id = ? AND partition = ?"
        found = db.execute(query, place).fetchone()
        raise MarkMoved(
            f"Expected {read.topic} partition {read.partition} to be counted up to {read.mark}, "
            f"found {found[0] if found else 'no mark'}.",
            "run one analytics query on a store; this one starts again from the marks",
        )


def _move_upstream(
    db: sqlite3.Connection, place: Place, moved: Mapping[Upstream, Progress]
) -> None:
    for upstream, progress in moved.items():
        changed = db.execute(
            "INSERT INTO upstream VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " highest = excluded.highest, last = excluded.last, replayed = replayed + excluded.replayed,"
            " order_violations = order_violations + excluded.order_violations WHERE highest = ?",
            (
                *place, *upstream, *progress.after, progress.replayed, progress.order_violations,
                progress.before.highest,
            ),
        )  # fmt: skip
        if changed.rowcount != 1:
            raise MarkMoved(
                f"Expected partition {place[1]} of {place[0]} to have seen {upstream} up to"
                f" {progress.before.highest}, it has seen another offset.",
                "run one analytics query on a store; this one starts again from the marks",
            )


def _advance_sources(db: sqlite3.Connection, batch: CountedBatch) -> None:
    db.executemany(
        "INSERT INTO sources VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
        " stream_time = max(stream_time, excluded.stream_time),"
        " append_time = max(append_time, excluded.append_time),"
        " block = max(block, excluded.block)",
        [(*source, *progress) for source, progress in batch.sources.items()],
    )
    db.executemany(
        "INSERT INTO spans VALUES (?, ?) ON CONFLICT DO UPDATE SET"
        " last_block = max(last_block, excluded.last_block)",
        batch.spans.items(),
    )
    db.execute(
        "DELETE FROM spans WHERE last_block NOT IN"
        " (SELECT last_block FROM spans ORDER BY last_block DESC LIMIT ?)",
        (SPANS_KEPT,),
    )


def _fit_spans(
    db: sqlite3.Connection, before: CountingParameters, after: CountingParameters
) -> None:
    """Forget spans of another length: until there are new ones, every source is active."""
    if before.idle_after != after.idle_after:
        db.execute("DELETE FROM spans")


def _write_values(db: sqlite3.Connection, values: Mapping[tuple[str, str], KeptValues]) -> None:
    for place, kept in values.items():
        db.execute("INSERT OR REPLACE INTO attributes VALUES (?, ?, ?)", (*place, kept.closed))
        db.executemany(
            "INSERT OR IGNORE INTO attribute_values VALUES (?, ?, ?)",
            [(*place, value) for value in kept.values],
        )


def _minutes(db: sqlite3.Connection) -> dict[int, bool]:
    query = "SELECT start_ms, folded FROM windows WHERE kind = 'minute'"
    return {start: bool(folded) for start, folded in db.execute(query)}


def _write_windows(db: sqlite3.Connection, folding: Folding) -> None:
    changed = [
        (window_of("minute", minute), folded)
        for minute, folded in folding.minutes.items()
        if folding.folded_before.get(minute) is not folded
    ]
    changed += [(window, True) for window in folding.raised]
    db.executemany(
        "INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?, ?)",
        [(window.key, *window, folded) for window, folded in changed],
    )


def _expire(db: sqlite3.Connection, parameters: CountingParameters, clock: Clock) -> None:
    for kind in ("minute", "hour"):
        expired = db.execute(
            "SELECT key FROM windows WHERE kind = ? AND end_ms <= ?",
            (kind, clock.horizon(kind, parameters)),
        ).fetchall()
        for (window,) in expired:
            for prefix in PREFIXES:
                db.execute(
                    "DELETE FROM state WHERE key >= ? AND key < ?", key_range(prefix, window)
                )
            db.execute("DELETE FROM windows WHERE key = ?", (window,))
            db.execute("DELETE FROM window_rules WHERE window = ?", (window,))


def _note_changes(db: sqlite3.Connection, deltas: Iterable[Delta], revision: int) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO changes VALUES (?, ?, ?)",
        [(delta.dimension_list, delta.minute, revision) for delta in deltas],
    )


def _forget_changes(db: sqlite3.Connection, revision: int, before: int) -> None:
    """Drop what changed long ago in minutes that are gone; an outlet that lacks more than the rest gets everything."""
    forgotten = db.execute(
        "DELETE FROM changes WHERE minute < ? AND revision <= ?",
        (before, revision - _REVISIONS_REMEMBERED),
    )
    if forgotten.rowcount:
        _set(db, "changes_from", str(revision - _REVISIONS_REMEMBERED))


class _BufferedRows(StateRows):
    """Reads rows, and collects what is written for one statement at the end."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._changes: list[tuple[str, bytes]] = []

    def put(self, window: str, dimension_list: str, parts: SketchBytes) -> None:
        self._changes += zip(keys_of(window, dimension_list), parts, strict=True)

    def put_meta(self, window: str, dimension_list: str, meta: bytes) -> None:
        self._changes.append((keys_of(window, dimension_list)[2], meta))

    def flush(self) -> None:
        self._changes.sort(key=lambda change: change[0])
        self._connection.executemany(
            "INSERT INTO state VALUES (?, ?)"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            self._changes,
        )
