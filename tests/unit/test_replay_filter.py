"""The replay filter against a model of a few lines, and what it says about order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admitone.core.replay_filter import Kind, Reached, filter_replays, kind_of_span
from admitone.core.wire import StreamMetadata, decode, encode, positions_of
from admitone.transport.port import HEADERS_TYPE

NEW, REPLAYED, UNKEYED, FOREIGN, SHIFTED = Kind


def key(offset: int, producer: int = 1, partition: int = 0) -> bytes:
    return StreamMetadata(producer, partition, offset).to_bytes()


def judged(keys: list[bytes | None], announced=None, marks=None, firsts=None):  # type: ignore[no-untyped-def]
    firsts = None if firsts is None else pa.array(firsts, pa.int64())
    return filter_replays(pa.array(keys, pa.binary()), announced, marks or {}, firsts)


def model(keys, announced, marks):  # type: ignore[no-untyped-def]
    """Say the same thing record by record."""
    marks, kinds, violations = dict(marks), [], 0
    for bytes_ in keys:
        found = StreamMetadata.from_bytes(bytes_)
        if found is None or (announced is not None and found.producer_id not in announced):
            kinds.append(UNKEYED if bytes_ is None else FOREIGN)
            continue
        highest, last = marks.get(found[:2], (-1, -1))
        kinds.append(NEW if found.offset > highest else REPLAYED)
        violations += found.offset <= last
        marks[found[:2]] = (max(highest, found.offset), found.offset)
    return kinds, marks, violations


offsets = st.one_of(st.integers(0, 12), st.integers(-3, 2**63 - 1))
metadata = st.builds(key, offsets, st.sampled_from([1, 2, -(2**63)]), st.integers(-1, 2))
keys_given = st.lists(st.one_of(metadata, metadata, st.none(), st.binary(max_size=24)), max_size=40)
announced_given = st.one_of(st.none(), st.sets(st.sampled_from([1, 2, 9, -(2**63)])))


@settings(max_examples=300, deadline=None)
@given(keys_given, announced_given, st.integers(0, 40))
def test_every_record_is_judged_as_by_the_model_in_one_go_and_in_two(keys, announced, cut) -> None:  # type: ignore[no-untyped-def]
    whole = judged(keys, announced)
    kinds, marks, violations = model(keys, announced, {})
    assert whole.kinds.tolist() == kinds
    assert whole.marks({}) == marks
    assert sum(moved.order_violations for moved in whole.progress.values()) == violations
    replayed = sum(moved.replayed for moved in whole.progress.values())
    assert replayed == kinds.count(REPLAYED)

    head = judged(keys[:cut], announced)
    tail = judged(keys[cut:], announced, head.marks({}))
    assert [*head.kinds, *tail.kinds] == kinds
    assert tail.marks(head.marks({})) == marks
    parts = (*head.progress.values(), *tail.progress.values())
    assert sum(moved.order_violations for moved in parts) == violations


@settings(deadline=None)
@given(keys_given)
def test_what_is_new_is_strictly_increasing_for_each_upstream(keys) -> None:  # type: ignore[no-untyped-def]
    passed: dict[tuple[int, int], int] = {}
    for bytes_, kind in zip(keys, judged(keys).kinds, strict=True):
        if kind == NEW:
            found = StreamMetadata.from_bytes(bytes_)
            assert found is not None
            assert found.offset > passed.get(found[:2], -1)
            passed[found[:2]] = found.offset


def test_a_replayed_batch_is_dropped_and_counts_as_one_violation_of_order() -> None:
    batch = [key(offset) for offset in range(10)]
    found = judged([*batch, *batch[5:], *(key(offset) for offset in range(10, 13))])

    assert found.kinds.tolist() == [NEW] * 10 + [REPLAYED] * 5 + [NEW] * 3
    (moved,) = found.progress.values()
    assert (moved.replayed, moved.order_violations) == (5, 1)
    assert moved.after == Reached(12, 12)


def test_a_replayed_batch_is_one_violation_wherever_it_is_cut() -> None:
    keys = [key(offset) for offset in (*range(10), *range(5, 10))]
    for cut in range(len(keys) + 1):
        head = judged(keys[:cut])
        tail = judged(keys[cut:], marks=head.marks({}))
        parts = (*head.progress.values(), *tail.progress.values())
        assert sum(moved.order_violations for moved in parts) == 1


def test_two_writers_under_one_id_are_seen_in_the_violations() -> None:
    interleaved = [key(offset) for pair in zip(range(50), range(100, 150)) for offset in pair]  # noqa: B905
    (moved,) = judged(interleaved).progress.values()

    assert moved.order_violations == 49


def test_marks_of_one_producer_and_partition_are_no_concern_of_another() -> None:
    marks = {(1, 0): Reached(9, 9)}
    found = judged([key(5), key(5, partition=1), key(5, producer=2), key(10)], marks=marks)

    assert found.kinds.tolist() == [REPLAYED, NEW, NEW, NEW]
    assert found.marks(marks) == {
        (1, 0): Reached(10, 10),
        (1, 1): Reached(5, 5),
        (2, 0): Reached(5, 5),
    }


def test_a_key_is_foreign_unless_it_is_metadata_of_an_announced_producer() -> None:
    keys = [key(1), key(1, producer=2), b"", b"a" * 19, key(1, partition=-1), key(-1), None]

    assert judged(keys, {1}).kinds.tolist() == [NEW, *[FOREIGN] * 5, UNKEYED]
    assert judged(keys, set()).kinds.tolist() == [*[FOREIGN] * 6, UNKEYED]


def test_nothing_gives_nothing() -> None:
    found = judged([])
    assert (found.kinds.tolist(), found.progress) == ([], {})


@pytest.mark.parametrize(
    ("first", "last", "kind"),
    [(10, 19, NEW), (12, 19, NEW), (0, 9, REPLAYED), (5, 7, REPLAYED), (9, 10, SHIFTED), (0, 99, SHIFTED)],
)  # fmt: skip
def test_a_span_is_new_above_the_mark_replayed_below_it_and_shifted_across_it(
    first: int, last: int, kind: Kind
) -> None:
    assert kind_of_span(first, last, 9) is kind
    found = judged([key(last)], marks={(1, 0): Reached(9, 9)}, firsts=[first])
    assert found.kinds.tolist() == [kind]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12))
def test_spans_that_pass_never_cover_an_offset_twice(spans: list[tuple[int, int]]) -> None:
    found = judged(
        [key(first + length) for first, length in spans], firsts=[first for first, _ in spans]
    )
    covered = [
        offset
        for (first, length), kind in zip(spans, found.kinds, strict=True)
        if kind == NEW
        for offset in range(first, first + length + 1)
    ]
    assert len(covered) == len(set(covered))


def test_a_shifted_span_does_not_hide_the_right_one_that_follows() -> None:
    found = judged([key(9), key(14), key(14), key(19)], firsts=[0, 5, 10, 15])

    assert found.kinds.tolist() == [NEW, SHIFTED, NEW, NEW]


def test_a_span_without_a_beginning_is_foreign() -> None:
    assert judged([key(5), key(5)], firsts=[None, 6]).kinds.tolist() == [FOREIGN, FOREIGN]


def test_columns_of_metadata_are_the_bytes_of_single_ones() -> None:
    offsets = np.array([0, 7, 2**63 - 1])
    keys = encode(-3, 4, offsets)

    assert keys.to_pylist() == [StreamMetadata(-3, 4, offset).to_bytes() for offset in offsets]
    whole, numbers = decode(pa.chunked_array([keys.slice(1), pa.array([b"x", None], pa.binary())]))
    assert whole.tolist() == [True, True, False, False]
    assert numbers.offsets.tolist() == offsets[1:].tolist()
    assert (numbers.producers.tolist(), numbers.partitions.tolist()) == ([-3, -3], [4, 4])


def test_a_record_comes_from_where_its_header_says_and_else_from_where_its_key_says() -> None:
    here, there = key(1), key(2)
    headers = pa.array(
        [
            [],
            None,
            [("position", there), ("other", b"x")],
            [("position", b"short")],
            [("position", here), ("position", there)],
        ],
        HEADERS_TYPE,
    )
    keys = pa.array([here, None, b"customer-7", here, b""], pa.binary())

    assert positions_of(keys, headers).to_pylist() == [here, None, there, here, there]
