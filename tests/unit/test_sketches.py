"""TOP-5, TOP-6: bounds that hold for every tree of merges, and bytes that are read back."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admitone.core.countmin import CountMin, cells_of
from admitone.core.errors import IntegrityError
from admitone.core.sketches import Meta, SketchBytes, SketchParameters, WindowSketch
from admitone.core.summary import Summary, lg_size_for

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
        together.update(list(counts), counts.values())
        delta = CountMin(32, 3)
        delta.update(list(counts), counts.values())
        apart.merge(CountMin.from_bytes(delta.to_bytes()))

    assert (together.cells == apart.cells).all()


def test_a_table_that_lost_all_its_items_at_once_keeps_its_offset():
    capacity = int(0.75 * (1 << lg_size_for(1)))
    counts = {f"item {number}": 1 for number in range(capacity + 1)}
    summary = Summary(1)
    summary.update(counts)
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
    narrow.update(["heavy"], [(1 << 32) + 7])
    wide = CountMin(16, 1, 64)
    wide.merge(CountMin.from_bytes(narrow.to_bytes()))

    assert wide.saturated
    assert wide.estimate("heavy", 1 << 40) == 1 << 40


def test_64_bit_counters_count_beyond_32_bits_and_stop_at_their_own_end():
    wide = CountMin(16, 2, 64)
    wide.update(["heavy"], [1 << 40])
    assert wide.estimate("heavy", 1 << 41) == 1 << 40
    assert not wide.saturated

    wide.update(["heavy"], [(1 << 64) - 5])
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


def test_bytes_of_version_1_are_still_read():
    countmin = bytes.fromhex("41434d53012001000400000001000000030005")
    sketch = CountMin.from_bytes(countmin)

    assert sketch.cells.tolist() == [0, 0, 0, 5]
    assert sketch.to_bytes() == countmin


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
