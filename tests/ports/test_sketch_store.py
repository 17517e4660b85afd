"""What every store of sketches guarantees, checked on each of them."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from admitone.analytics import open_sketch_reader
from admitone.analytics.active_sources import spans_in
from admitone.analytics.port import (
    NOTHING_READ,
    CountedBatch,
    Delta,
    KeptValues,
    PartitionRead,
    SketchStore,
)
from admitone.analytics.sqlite.sketch_store import SqliteSketchStore
from admitone.analytics.store_state import CountingParameters, SourceProgress
from admitone.core.errors import ConfigurationError, ContractDrift, MarkMoved
from admitone.core.replay_filter import Progress, Reached
from admitone.core.sketches import SketchParameters, WindowSketch
from admitone.core.windows import (
    DAY_MS,
    HOUR_MS,
    KINDS,
    MINUTE_MS,
    parse_window,
    window_of,
)
from admitone.results import open_answers
from admitone.settings import load_settings
from tests.support.counted import Counts, sketch_in

T0 = parse_window("minute_202611151000").start_ms
LATENESS = 10 * MINUTE_MS
PARAMETERS = CountingParameters(
    sketch=SketchParameters(width=64, depth=3, k=5),
    kinds=KINDS,
    lateness=LATENESS,
    idle_after=10 * MINUTE_MS,
    keep_minutes=2 * HOUR_MS,
    keep_hours=2 * DAY_MS,
    max_values=3,
)
OpenStore = Callable[..., SketchStore]


def is_late(stream: int, minute: int) -> bool:
    return stream >= minute + MINUTE_MS + LATENESS


class Record(NamedTuple):
    """One admitted record: when it happened, and what its source partition had come to."""

    event: int
    stream: int
    source: int = 0
    item: str = "a"
    name: str = "url"
    append: int = T0
    block: int = 0
    claimed: int = T0

    @property
    def minute(self) -> int:
        return self.event // MINUTE_MS * MINUTE_MS


@pytest.fixture(params=["sqlite"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    opened: list[SketchStore] = []

    def open_one(
        name: str = "analytics", parameters: CountingParameters = PARAMETERS
    ) -> SketchStore:
        store = {"sqlite": SqliteSketchStore}[request.param](tmp_path / f"{name}.db", parameters)
        store.adopt(parameters)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> SketchStore:
    return open_store()


def batch_of(records: Iterable[Record], first: int, **changes: object) -> CountedBatch:
    """Return what counting these records, the next ones after `first`, asks a store to keep."""
    records = list(records)
    sketches: dict[tuple[str, int], WindowSketch] = {}
    sources: dict[tuple[int, int], SourceProgress] = {}
    for record in records:
        sketch = sketches.setdefault((record.name, record.minute), WindowSketch(PARAMETERS.sketch))
        if is_late(record.stream, record.minute):
            sketch.late += 1
        else:
            sketch.update({record.item: 1})
        found = SourceProgress(record.stream, record.append, record.block)
        before = sources.get((7, record.source), found)
        sources[7, record.source] = SourceProgress(*map(max, before, found))
    values: dict[str, object] = {
        "reads": [
            PartitionRead("t", "T", 0, first - 1, first + len(records) - 1, len(records), 0, 0)
        ],
        "sources": sources,
        "spans": spans_in(*_numbered(records), PARAMETERS.idle_after),
        "deltas": [Delta(*place, sketch.to_bytes()) for place, sketch in sketches.items()],
        "counted_at": 1,
    }
    return CountedBatch(**{**values, **changes})  # type: ignore[arg-type]


def _numbered(records: Iterable[Record]) -> tuple[np.ndarray, np.ndarray]:
    chosen = [record for record in records if record.block]
    return (
        np.array([record.claimed for record in chosen], np.int64),
        np.array([record.block for record in chosen], np.int64),
    )


def count(store: SketchStore, *batches: Iterable[Record]) -> None:
    for records in batches:
        store.commit(batch_of(records, store.marks().get(("T", 0), NOTHING_READ) + 1))


def at(minute: int, stream: int | None = None, **fields: object) -> Record:
    """Return a record at a minute after T0; stream time in minutes too."""
    event = T0 + minute * MINUTE_MS
    moved = event if stream is None else T0 + stream * MINUTE_MS
    return Record(event, moved, **fields)  # type: ignore[arg-type]


def totals(store: SketchStore, window: str, name: str = "url") -> tuple[int, int] | None:
    sketch = sketch_in(store, parse_window(window), name)
    return None if sketch is None else (sketch.total, sketch.late)


def assert_everything_is_counted(store: SketchStore, records: list[Record]) -> None:
    weights: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    late: Counter[tuple[str, str]] = Counter()
    for record in records:
        for kind in KINDS:
            place = (window_of(kind, record.event).key, record.name)
            if is_late(record.stream, record.minute):
                late[place] += 1
            else:
                weights[place][record.item] += 1
    kept = store.windows()
    for window in kept:
        for name in {record.name for record in records}:
            place = (window.key, name)
            sketch = sketch_in(store, window, name)
            if sketch is None:
                assert place not in weights
                assert place not in late
                continue
            assert (sketch.total, sketch.late) == (weights[place].total(), late[place])
            for item, true in weights[place].items():
                lower, upper = sketch.bounds(item)
                assert lower <= true <= upper
    expected = {
        window for record in records for window in map(window_of, KINDS, [record.event] * 6)
    }
    assert {window for window in expected if window.kind not in ("minute", "hour")} <= set(kept)


def test_an_open_minute_is_answered_in_every_window(store):
    count(store, [at(0), at(0, item="b"), at(1)])

    assert totals(store, "minute_202611151000") == (2, 0)
    assert totals(store, "hour_2026111510") == (3, 0)
    assert totals(store, "global") == (3, 0)
    assert [window.kind for window in store.windows()] == ["minute", *KINDS]


def test_a_minute_is_folded_once_when_the_slowest_partition_has_passed_it(store):
    count(store, [at(0), at(0, source=1)])
    for minute in (1, 11, 12, 13):
        count(store, [at(minute)])
        assert totals(store, "day_20261115") is not None

    count(store, [at(13, source=1)], [at(14)], [at(14, source=1)])

    assert totals(store, "minute_202611151000") == (2, 0)
    assert totals(store, "day_20261115") == (9, 0)


def test_an_idle_partition_does_not_hold_back_the_others(store):
    count(store, [at(0, source=1)], [at(30, append=T0 + 11 * MINUTE_MS)])

    clock = store.state().clock
    assert clock is not None
    assert clock.frontier == T0 + 30 * MINUTE_MS


def numbered(minutes: Iterable[int], **fields: object) -> list[Record]:
    """Return a record for each minute, of a block that was claimed in that minute by the ledger's clock."""
    return [at(n, block=n + 1, claimed=T0 + n * MINUTE_MS, **fields) for n in minutes]


def test_a_partition_is_idle_by_the_time_the_ledger_saw_pass_and_not_by_brokers(store):
    far_ahead = T0 + 1_000 * DAY_MS
    count(store, numbered([0], source=1), numbered(range(1, 12), append=far_ahead))
    assert store.state().clock.frontier == T0

    count(store, numbered([12]))
    assert store.state().clock.frontier == T0 + 12 * MINUTE_MS


def test_spans_of_the_ledgers_clock_that_no_longer_matter_are_forgotten(store):
    count(store, numbered(range(50)), numbered([30]))

    assert sorted(store.spans().values()) == list(range(39, 51))


def test_another_idle_time_is_measured_anew_and_nobody_is_idle_until_then(store):
    count(store, numbered([0], source=1), numbered(range(1, 20)))
    store.adopt(PARAMETERS._replace(lateness=MINUTE_MS))
    assert store.state().clock.frontier == T0 + 19 * MINUTE_MS

    store.adopt(PARAMETERS._replace(idle_after=PARAMETERS.idle_after + 1))
    assert store.spans() == {}
    assert store.state().clock.frontier == T0


def test_an_on_time_record_for_a_folded_minute_reaches_every_window_above(store):
    count(store, [at(0), at(20)])
    count(store, [at(0, 5, source=1, item="b")])

    for window in ("minute_202611151000", "hour_2026111510", "week_202646", "global"):
        sketch = sketch_in(store, parse_window(window), "url")
        assert sketch is not None
        assert sketch.bounds("b") == (1, 1)


def test_a_late_record_is_counted_as_late_in_all_six_windows(store):
    count(store, [at(0), at(20)], [at(0, 20), at(3, 20)])

    assert totals(store, "minute_202611151000") == (1, 1)
    assert totals(store, "minute_202611151003") == (0, 1)
    for window in ("hour_2026111510", "day_20261115", "week_202646", "month_202611", "global"):
        assert totals(store, window) == (2, 2)


@pytest.mark.parametrize(("stream", "complete"), [(LATENESS - 1, False), (LATENESS, True)])
def test_a_minute_is_complete_exactly_when_late_begins(store, stream, complete):
    record = Record(T0, T0 + MINUTE_MS + stream)
    count(store, [record])

    assert is_late(record.stream, record.minute) is complete
    assert store.state().is_complete(window_of("minute", T0)) is complete


def test_a_mark_moves_only_from_the_value_that_was_read(store):
    count(store, [at(0)])
    before = store.state()
    stale = batch_of([at(0)], first=0)

    with pytest.raises(MarkMoved, match="counted up to -1, found 0"):
        store.commit(stale)

    assert store.state() == before
    assert totals(store, "global") == (1, 0)


def test_one_stale_mark_of_many_leaves_nothing_behind(store):
    count(store, [at(0)])
    other = PartitionRead("t", "T", 1, NOTHING_READ, 4, 5, 0, 0)
    stale = batch_of([at(1)], first=9)

    with pytest.raises(MarkMoved):
        store.commit(batch_of([at(1)], 0, reads=[other, *stale.reads]))

    assert store.marks() == {("T", 0): 0}


def test_a_re_read_changes_nothing_but_the_revision(store):
    count(store, [at(0), at(20)])
    before = (store.marks(), store.windows(), totals(store, "global"))
    re_read = PartitionRead("t", "T", 0, 1, 1, 0, 2, 0)

    revision = store.commit(CountedBatch([re_read], {}, [], 2))

    assert revision == 2
    assert (store.marks(), store.windows(), totals(store, "global")) == before


def test_a_commit_that_is_interrupted_leaves_nothing_behind(store, monkeypatch):
    count(store, [at(0)])
    before = (store.state(), store.windows(), totals(store, "global"))

    def interrupt(point: str) -> None:
        raise KeyboardInterrupt(point)

    monkeypatch.setattr("admitone.analytics.sqlite.sketch_store.crash_point", interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"analytics\.written"):
        count(store, [at(20)])

    assert (store.state(), store.windows(), totals(store, "global")) == before


def test_a_recreated_topic_has_marks_of_its_own(store):
    count(store, [at(0)])
    read = PartitionRead("t", "T2", 0, NOTHING_READ, 0, 1, 0, 0)
    store.commit(batch_of([at(0)], 0, reads=[read]))

    assert store.marks() == {("T", 0): 0, ("T2", 0): 0}


def seen(before: int, after: int, replayed: int = 0, violations: int = 0):
    progress = Progress(Reached(before, before), Reached(after, after), replayed, violations)
    return {("T", 0): {(7, 1): progress}}


def test_upstream_marks_move_with_the_counts_and_add_up_what_came_again(store):
    store.commit(batch_of([at(0)], 0, upstream=seen(-1, 5)))
    store.commit(batch_of([at(0)], 1, upstream=seen(5, 9, replayed=3, violations=1)))

    assert store.upstream_marks() == {("T", 0): {(7, 1): Reached(9, 9)}}
    (mark,) = store.state().marks
    assert (mark.offset, mark.replayed, mark.order_violations) == (1, 3, 1)


def test_an_upstream_mark_moves_only_from_the_value_that_was_read(store):
    store.commit(batch_of([at(0)], 0, upstream=seen(-1, 5)))
    for stale in (seen(-1, 6), seen(4, 6)):
        with pytest.raises(MarkMoved, match="seen another offset"):
            store.commit(batch_of([at(0)], 1, upstream=stale))

    assert store.upstream_marks() == {("T", 0): {(7, 1): Reached(5, 5)}}
    assert (store.marks(), totals(store, "global")) == ({("T", 0): 0}, (1, 0))


def test_marks_of_replays_hold_for_the_partitions_they_were_made_for(store):
    store.fit_marks({"T": 4, "U": 2})
    store.fit_marks({"T": 4, "U": 2})
    with pytest.raises(ContractDrift, match=r"has 6 partitions.*made for 4"):
        store.fit_marks({"T": 6, "U": 2})
    store.fit_marks({"U": 2})
    store.fit_marks({"T": 6, "U": 2})
    with pytest.raises(ContractDrift):
        store.fit_marks({"T": 4})


def test_minutes_and_hours_leave_after_their_retention_and_the_rest_stays(store):
    count(store, [at(0), at(1)], [at(121)])
    assert totals(store, "minute_202611151000") is None
    assert totals(store, "minute_202611151001") == (1, 0)
    assert totals(store, "hour_2026111510") == (2, 0)

    count(store, [at(3 * 24 * 60)])
    assert totals(store, "hour_2026111510") is None
    assert totals(store, "day_20261115") == (3, 0)
    assert totals(store, "global") == (4, 0)


def test_a_historical_load_on_a_partition_of_its_own_is_not_late_and_reaches_what_is_kept(store):
    month = -30 * 24 * 60
    count(store, [at(0)], [at(month, source=1), at(month + 1, source=1)], [at(1)])

    assert totals(store, "day_20261016") == (2, 0)
    assert totals(store, "global") == (4, 0)
    assert "minute_202610161000" not in [window.key for window in store.windows()]


def test_a_window_size_that_is_not_configured_is_not_kept(open_store):
    store = open_store("few", PARAMETERS._replace(kinds=("minute", "day")))
    count(store, [at(0), at(30)])

    assert {window.kind for window in store.windows()} == {"minute", "day"}
    assert totals(store, "day_20261115") == (2, 0)


@pytest.mark.parametrize("seed", range(6))
def test_every_window_holds_all_admitted_weight_however_it_was_batched(open_store, seed):
    records = random_records(random.Random(seed), 400)
    one, other = open_store("one"), open_store("other")
    for store, sizes in ((one, (1, 40)), (other, (100, 200))):
        chances = random.Random(seed + sizes[0])
        rest = list(records)
        while rest:
            size = chances.randint(*sizes)
            count(store, rest[:size])
            rest = rest[size:]
        assert_everything_is_counted(store, records)

    assert one.state().clock == other.state().clock
    assert one.spans() == other.spans()
    assert one.windows() == other.windows()
    for window in one.windows():
        for name in ("url", "product"):
            left, right = sketch_in(one, window, name), sketch_in(other, window, name)
            assert (left is None) == (right is None)
            if left is not None and right is not None:
                assert (left.countmin.cells == right.countmin.cells).all()


def random_records(chances: random.Random, number: int) -> list[Record]:
    """Return disordered records of three partitions, with jumps, pauses and late ones."""
    now, streams, records = T0, [T0] * 3, []
    for step in range(number):
        now += chances.choice([0, 1_000, 30_000, 90_000, 600_000])
        if chances.random() < 0.01:
            now += chances.choice([HOUR_MS, DAY_MS])
        source = chances.choice([0, 0, 1, 2])
        event = now - chances.choice([0, 5_000, 100_000, LATENESS, 2 * HOUR_MS, DAY_MS])
        streams[source] = max(streams[source], event)
        records.append(
            Record(
                event,
                streams[source],
                source,
                item=str(chances.randint(0, 30)),
                name=chances.choice(["url", "product"]),
                append=T0 + step * 10_000,
                block=step + 1,
                claimed=T0 + step * 10_000 + chances.choice([0, 0, 0, HOUR_MS, -HOUR_MS]),
            )
        )
    return records


def test_a_full_attribute_sends_further_values_to_other_for_good(store):
    heavy = [at(0, name=f"url|device={value}") for value in "aaaabbbccd"]
    count(store, heavy, [at(1, name="url|device=e"), at(1, name="url|device=a")])

    assert store.kept_values() == {("url", "device"): KeptValues(frozenset("abc"), closed=True)}
    assert totals(store, "global", "url|device=*other") == (2, 0)
    assert totals(store, "global", "url|device=a") == (5, 0)
    assert totals(store, "global", "url|device=d") is None


def test_an_attribute_with_room_keeps_new_values_as_they_come(store):
    count(store, [at(0, name="url|device=a")], [at(0, name="url|device=b")])

    assert store.kept_values() == {("url", "device"): KeptValues(frozenset("ab"), closed=False)}


def test_a_value_that_a_worker_split_already_is_never_chosen(store):
    records = [at(0, name="url|device=a"), at(0, name="url|device=b")]
    store.commit(batch_of(records, 0, candidates={("url", "device"): [frozenset("b")]}))

    assert store.kept_values() == {("url", "device"): KeptValues(frozenset("b"), closed=True)}
    assert totals(store, "global", "url|device=*other") == (1, 0)


def test_a_recomputation_makes_the_same_lists(open_store):
    live, again = open_store("live"), open_store("again")
    count(live, [at(0, name=f"url|device={value}") for value in "wxyz"])

    again.keep_values(live.kept_values())
    count(again, [at(0, name="url|device=z")])

    assert again.kept_values() == live.kept_values()
    with pytest.raises(ConfigurationError, match="cannot change"):
        again.keep_values({})


def test_a_replacement_is_seen_by_no_reader_and_gone_afterwards(store, tmp_path):
    count(store, [at(0)])
    before, files = store.state(), set(tmp_path.iterdir())
    with store.replacement() as fresh:
        count(fresh, [at(0), at(1)])
        assert totals(fresh, "global") == (2, 0)
        assert (store.state(), totals(store, "global")) == (before, (1, 0))
    with store.replacement() as fresh:
        assert fresh.state().clock is None

    assert set(tmp_path.iterdir()) == files


def switch(store: SketchStore, fresh: SketchStore) -> None:
    with store.writing():
        store.take_over(fresh, 7)


def interrupted(work: Callable[..., object]) -> Callable[..., None]:
    """Return a function that does its work, and is ended before anybody hears of it."""

    def work_and_end(*arguments: object) -> None:
        work(*arguments)
        raise KeyboardInterrupt

    return work_and_end


def test_a_replacement_takes_the_place_as_a_whole_or_not_at_all(open_store, monkeypatch):
    store, reader = open_store(), open_store()
    count(store, [at(0, name="product")])
    before = store.state()
    with store.replacement() as fresh:
        count(fresh, [at(0), at(1)], [at(2)])
        monkeypatch.setattr(store, "take_over", interrupted(store.take_over))
        with pytest.raises(KeyboardInterrupt):
            switch(store, fresh)
        assert (reader.state(), totals(reader, "global", "product")) == (before, (1, 0))
        monkeypatch.undo()
        switch(store, fresh)

    after = reader.state()
    assert (totals(reader, "global"), totals(reader, "global", "product")) == ((3, 0), None)
    assert (reader.marks(), reader.windows()) == ({("T", 0): 2}, store.windows())
    assert after.generation > before.generation
    assert after.revision == 3
    assert reader.changes(before.generation, before.revision).whole


def test_the_reader_of_answers_cannot_write_and_makes_no_file(tmp_path):
    settings = load_settings(tmp_path)
    reader, answers = open_sketch_reader(settings), open_answers(settings)
    assert (reader.windows(), reader.kept_values(), reader.state().clock) == ([], {}, None)
    assert list(tmp_path.iterdir()) == []

    Counts(tmp_path).add(0, {"url": {"/": 1}})
    assert [line["complete"] for line in answers.windows()["windows"]] == [False] * len(KINDS)
    for opened in (reader, answers._reader):
        with (
            opened.snapshot() as db,
            pytest.raises(sqlite3.OperationalError, match="readonly database"),
        ):
            db.execute("DELETE FROM state")


def test_counts_survive_closing_and_opening(open_store):
    count(open_store(), [at(0), at(20)])

    again = open_store()
    assert totals(again, "global") == (2, 0)
    assert again.state().revision == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sketch": SketchParameters(width=128, depth=3, k=5)}, "64x3 and cannot become 128x3"),
        ({"sketch": PARAMETERS.sketch._replace(counter_bits=16)}, "cannot shrink"),
    ],
)
def test_parameters_that_do_not_fit_what_was_counted_are_refused(store, changes, reason):
    count(store, [at(0)])

    with pytest.raises(ConfigurationError, match=reason):
        store.adopt(PARAMETERS._replace(**changes))


def test_a_window_size_cannot_begin_in_the_middle(open_store):
    store = open_store("few", PARAMETERS._replace(kinds=("minute", "day")))
    count(store, [at(0)])

    with pytest.raises(ConfigurationError, match="hour would start in the middle"):
        store.adopt(PARAMETERS._replace(kinds=("minute", "hour", "day")))


def test_other_parameters_take_effect_at_the_next_batch(store):
    count(store, [at(0), at(5)])
    changed = PARAMETERS._replace(
        lateness=MINUTE_MS, sketch=PARAMETERS.sketch._replace(k=50, counter_bits=64)
    )
    store.adopt(changed)
    count(store, [at(6)])

    assert store.state().parameters == changed
    assert totals(store, "hour_2026111510") == (3, 0)


def test_a_file_of_a_newer_release_is_refused(open_store, tmp_path):
    count(open_store("newer"), [at(0)])
    with sqlite3.connect(tmp_path / "newer.db") as connection:
        connection.execute("PRAGMA user_version = 99")

    with pytest.raises(ConfigurationError, match="version 99"):
        open_store("newer")


def test_keys_are_versioned_and_named_after_window_and_list(store, tmp_path):
    count(store, [at(0, name="url|device=a:b")])

    with sqlite3.connect(tmp_path / "analytics.db") as connection:
        keys = {key for (key,) in connection.execute("SELECT key FROM state")}
    assert keys == {
        f"{prefix}:v1:minute_202611151000:url|device=a:b"
        for prefix in ("sketch", "space-saving", "meta")
    }
