"""TOP-5, TOP-6: bounds that hold for every tree of merges, and bytes that are read back."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admitone.core.countmin import CountMin, cells_of
from admitone.core.errors import IntegrityError
from admitone.core.sketches import Meta, SketchBytes, SketchParameters, WindowSketch
from admitone.core.summary import Summary, distinct_hash, lg_size_for

SMALL = SketchParameters(width=16, depth=2, counter_bits=32, k=1)

items = st.one_of(
    st.integers(0, 200).map(str),
    st.sampled_from(["", "é", "a\0b", "1.0", "nan", "-7"]),
    st.text(max_size=4),
)
streams = st.dictionaries(items, st.integers(1, 1000), max_size=60)


def sketch_of(counts: dict[str, int], parameters: SketchParameters = SMALL) -> WindowSketch:
    sketch = WindowSketch(parameters)
    sketch.update(counts)
    return sketch


def add(countmin: CountMin, counts: dict[str, int]) -> None:
    cells = [cells_of(item, countmin.width, countmin.depth) for item in counts]
    countmin.update(np.array(cells, np.int64).reshape(-1, countmin.depth), counts.values())


def assert_bounds_hold(sketch: WindowSketch, truth: Counter[str]) -> None:
    assert sketch.total == truth.total()
    for item in [*truth, "never seen"]:
        lower, upper = sketch.bounds(item)
        assert lower <= truth[item] <= upper <= max(sketch.total, lower)
    for entry in sketch.top(10):
        assert entry.lower <= entry.estimate <= entry.upper
        assert entry.lower <= truth[entry.item] <= entry.upper


@given(st.lists(streams, max_size=8))
@settings(max_examples=60, deadline=None)
def test_bounds_are_never_violated_and_survive_merging_and_storing(parts):
    truth: Counter[str] = Counter()
    merged = WindowSketch(SMALL.widened())
    for counts in parts:
        truth.update(counts)
        merged.merge(WindowSketch.from_bytes(sketch_of(counts).to_bytes()))
        assert_bounds_hold(merged, truth)

    assert_bounds_hold(WindowSketch.from_bytes(merged.to_bytes()), truth)


@given(st.lists(streams, min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_count_min_cells_do_not_depend_on_batching(parts):
    together = CountMin(32, 3)
    apart = CountMin(32, 3)
    for counts in parts:
        add(together, counts)
        delta = CountMin(32, 3)
        add(delta, counts)
        apart.merge(CountMin.from_bytes(delta.to_bytes()))

    assert (together.cells == apart.cells).all()


def test_a_table_that_lost_all_its_items_at_once_keeps_its_offset():
    capacity = int(0.75 * (1 << lg_size_for(1)))
    counts = {f"item {number}": 1 for number in range(capacity + 1)}
    summary = Summary(1)
    summary.update(counts, map(distinct_hash, counts))
    assert summary.entries() == []

    merged = Summary(1)
    merged.merge(Summary.from_bytes(summary.to_bytes()))

    assert summary.bounds("item 0").upper >= 1
    assert merged.bounds("item 0").upper >= 1
    assert merged.distinct() == pytest.approx(capacity + 1, rel=0.05)


def test_few_items_are_exact():
    sketch = sketch_of({"123": 5, "0123": 2, "": 1}, SketchParameters())

    assert [(entry.item, entry.lower, entry.upper) for entry in sketch.top(5)] == [
        ("123", 5, 5),
        ("0123", 2, 2),
        ("", 1, 1),
    ]
    assert sketch.meta().distinct == 3
    assert sketch.bounds("absent") == (0, 0)


def test_many_items_stay_within_the_stated_error():
    counts = {f"item {rank}": 100_000 // rank for rank in range(1, 20_000)}
    sketch = sketch_of(counts, SketchParameters())

    total = sum(counts.values())
    top = sketch.top(100)
    assert [entry.item for entry in top[:20]] == [f"item {rank}" for rank in range(1, 21)]
    assert max(entry.upper - entry.lower for entry in top) <= 0.0027 * total
    assert sketch.meta().distinct == pytest.approx(len(counts), rel=0.06)


def test_a_cell_is_where_the_pinned_hash_says():
    assert cells_of("/shoes", 1024, 5) == [714, 1522, 2376, 3740, 4962]


def test_a_stopped_counter_reads_as_the_total_and_says_so():
    sketch = WindowSketch(SketchParameters(width=16, depth=1, k=1))
    sketch.update({"heavy": (1 << 32) - 1})
    sketch.update({f"light {number}": 1 for number in range(200)})

    assert sketch.countmin.estimate("heavy", sketch.total) == sketch.total
    assert sketch.meta().saturated
    assert Meta.from_bytes(WindowSketch.from_bytes(sketch.to_bytes()).to_bytes().meta).saturated


def test_what_stopped_at_32_bits_does_not_start_again_at_64():
    narrow = CountMin(16, 1, 32)
    add(narrow, {"heavy": (1 << 32) + 7})
    wide = CountMin(16, 1, 64)
    wide.merge(CountMin.from_bytes(narrow.to_bytes()))

    assert wide.saturated
    assert wide.estimate("heavy", 1 << 40) == 1 << 40


def test_64_bit_counters_count_beyond_32_bits_and_stop_at_their_own_end():
    wide = CountMin(16, 2, 64)
    add(wide, {"heavy": 1 << 40})
    assert wide.estimate("heavy", 1 << 41) == 1 << 40
    assert not wide.saturated

    add(wide, {"heavy": (1 << 64) - 5})
    assert wide.saturated


def test_only_equal_shapes_merge():
    with pytest.raises(ValueError, match="merge only equal shapes"):
        CountMin(16, 2).merge(CountMin(32, 2))


@pytest.mark.parametrize("items", [0, 3, 40, 5000])
@pytest.mark.parametrize("bits", [32, 64])
def test_every_stored_form_is_read_back(items, bits):
    parameters = SketchParameters(counter_bits=bits)
    sketch = sketch_of({f"item {number}": number * 7 + 1 for number in range(items)}, parameters)
    sketch.late, sketch.updated_at = 4, 99

    again = WindowSketch.from_bytes(sketch.to_bytes())

    assert again.to_bytes().sketch == sketch.to_bytes().sketch
    assert again.meta() == sketch.meta()
    assert again.top(50) == sketch.top(50)


VERSION_1 = SketchBytes(
    bytes.fromhex("41434d5301200200100000000100000003000a000e00120016001f00010502050201"),
    bytes.fromhex(
        "4153554d010100005100000014000000000000000000000004010a0503000000030000000000000008000000000000000000000000000000"
        "050000000000000001000000000000000200000000000000060000002f73686f657302000000c3a9050000002f686174730201070c030803"
        "001c0eb30b3e599504cf5b2c06"
    ),
    b'{"version":1,"total":8,"late":3,"distinct":3,"updated_at":1763200000123,"saturated":false,'
    b'"parameters":{"width":16,"depth":2,"counter_bits":32,"k":2}}',
)
"""Written by the first release: /shoes 5, /hats 2, é 1, and 3 late."""


def test_bytes_of_version_1_are_still_read_and_written():
    sketch = WindowSketch.from_bytes(VERSION_1)

    assert [(entry.item, entry.lower, entry.upper) for entry in sketch.top(5)] == [
        ("/shoes", 5, 5),
        ("/hats", 2, 2),
        ("é", 1, 1),
    ]
    assert (sketch.total, sketch.late, sketch.summary.distinct()) == (8, 3, 3)
    assert sketch.to_bytes() == VERSION_1


def test_what_an_older_release_stored_merges_with_what_this_one_counts():
    sketch = WindowSketch.from_bytes(VERSION_1)
    fresh = WindowSketch(sketch.parameters)
    fresh.update({"/shoes": 10, "new": 1})
    fresh.merge(sketch)

    assert fresh.bounds("/shoes") == (15, 15)
    assert fresh.bounds("new") == (1, 1)
    assert (fresh.total, fresh.late) == (19, 3)


def test_the_full_form_of_version_1_is_still_read():
    parameters = SketchParameters(width=64, depth=4, counter_bits=64, k=1)
    written = sketch_of({f"item {number}": number + 1 for number in range(200)}, parameters)
    header = written.to_bytes().sketch[:16]

    assert header == bytes.fromhex("41434d53014004004000000000000000")
    assert (CountMin.from_bytes(written.to_bytes().sketch).cells == written.countmin.cells).all()


def test_an_unlisted_item_was_never_counted_more_often_than_said():
    counts = {f"item {number}": 1 + (number * 7919) % 400 for number in range(3_000)}
    for k in (1, 5, 100):
        sketch = sketch_of(counts, SketchParameters(k=k))
        listed, unlisted = sketch.ranking(k)
        named = {entry.item for entry in listed}
        assert max(count for item, count in counts.items() if item not in named) <= unlisted
        assert listed == sketch.ranking(2 * k).items[:k]


@pytest.mark.parametrize("minutes", [1_440])
def test_many_small_merges_stay_within_their_stated_bound(minutes):
    chances = random.Random(5)
    truth: Counter[str] = Counter()
    day = WindowSketch(SMALL.widened()._replace(width=256, depth=4, k=10))
    for _ in range(minutes):
        counts = Counter(f"item {int(chances.paretovariate(0.6)) % 500}" for _ in range(30))
        minute = sketch_of(counts, day.parameters._replace(counter_bits=32))
        day.merge(WindowSketch.from_bytes(minute.to_bytes()))
        truth.update(counts)

    assert day.summary.offset > 0
    assert_bounds_hold(day, truth)
    assert max(entry.upper - entry.lower for entry in day.top(10)) <= 3.5 / 128 * day.total


def test_bytes_of_a_newer_version_are_refused():
    parts = sketch_of({"a": 1}).to_bytes()
    newer = parts._replace(sketch=parts.sketch[:4] + b"\x02" + parts.sketch[5:])
    with pytest.raises(IntegrityError, match="version 2"):
        WindowSketch.from_bytes(newer)
    with pytest.raises(IntegrityError, match="version 2"):
        Summary.from_bytes(parts.summary[:4] + b"\x02" + parts.summary[5:])
    with pytest.raises(IntegrityError, match="got 2"):
        Meta.from_bytes(parts.meta.replace(b'"version":1', b'"version":2'))


def test_other_bytes_are_refused():
    parts = sketch_of({"a": 1}).to_bytes()
    with pytest.raises(IntegrityError, match="no Count-Min"):
        WindowSketch.from_bytes(SketchBytes(b"", parts.summary, parts.meta))
    with pytest.raises(IntegrityError, match="no top-K summary"):
        WindowSketch.from_bytes(SketchBytes(parts.sketch, b"other bytes", parts.meta))


def test_late_weight_stands_beside_the_total():
    one, other = sketch_of({"a": 3}), WindowSketch(SMALL)
    other.late = 2
    one.merge(other)

    assert (one.total, one.late) == (3, 2)
    assert one.bounds("a") == (3, 3)
