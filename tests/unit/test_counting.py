"""From admitted records to deltas, without Spark and without a store."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest

from admitone.analytics import counting
from admitone.analytics.batch_counter import gather_batch
from admitone.analytics.counting import CountingPlan, build_deltas, count_batches
from admitone.analytics.port import CountedBatch, KeptValues, PartitionRead
from admitone.analytics.store_state import SourceProgress
from admitone.core.items import ItemRule
from admitone.core.replay_filter import Progress, Reached
from admitone.core.sketches import SketchParameters, WindowSketch
from admitone.core.windows import MINUTE_MS
from admitone.core.wire import StreamMetadata
from admitone.transport.port import RECORD_SCHEMA

T0 = 1_763_200_000_000 // MINUTE_MS * MINUTE_MS
LATENESS = IDLE_AFTER = 10 * MINUTE_MS
PAGES = ItemRule("page_view", "url", "url", "url", ("deviceType",), "weight")
PARAMETERS = SketchParameters(width=64, depth=2, k=10)


def envelope(url: object = "/", event_type: str = "page_view", **payload: object) -> bytes:
    return orjson.dumps({"metadata": {"eventType": event_type}, "payload": {"url": url, **payload}})


def record(offset: int, value: bytes | None = None, **changes: object) -> dict[str, object]:
    event = changes.pop("event", T0)
    stream = changes.pop("stream", event)
    headers: list[tuple[str, bytes | None]] = [
        ("class", b"page_view"),
        ("stream-time", str(stream).encode()),
        ("event-time", str(event).encode()),
    ]
    return {
        "key": StreamMetadata(-5, 3, offset).to_bytes(),
        "value": envelope() if value is None else value,
        "topic": "t",
        "partition": 0,
        "offset": offset,
        "timestamp": (T0 + offset) * 1000,
        "timestampType": 1,
        "headers": headers,
        **changes,
    }


def counted(
    records: list[dict[str, object]],
    marks: dict[tuple[str, int], int] | None = None,
    kept: dict[tuple[str, str], KeptValues] | None = None,
    rows_per_batch: int = 1000,
    rule: ItemRule = PAGES,
    **replays: object,
) -> CountedBatch:
    plan = CountingPlan(
        (rule,), marks or {}, kept or {}, LATENESS, IDLE_AFTER, max_values=2, **replays
    )
    table = pa.Table.from_pylist(records, schema=RECORD_SCHEMA)
    partials = list(count_batches(plan, table.to_batches(max_chunksize=rows_per_batch)))
    deltas = pa.Table.from_batches(build_deltas(PARAMETERS, 42, partials))
    return gather_batch(deltas, {"t": "T", "u": "U"}, marks or {}, 42, {})


def sketches(batch: CountedBatch) -> dict[tuple[str, int], WindowSketch]:
    return {
        (delta.dimension_list, delta.minute - T0): WindowSketch.from_bytes(delta.parts)
        for delta in batch.deltas
    }


def test_items_are_summed_per_list_and_minute():
    batch = counted(
        [
            record(0, envelope("/a", deviceType="mobile")),
            record(1, envelope("/a", deviceType="mobile", weight=4)),
            record(2, envelope("/b"), event=T0 + MINUTE_MS),
        ]
    )

    found = sketches(batch)
    assert found.keys() == {("url", 0), ("url|deviceType=mobile", 0), ("url", MINUTE_MS)}
    assert found["url", 0].bounds("/a") == (5, 5)
    assert found["url", MINUTE_MS].bounds("/b") == (1, 1)
    assert found["url", 0].updated_at == 42


def test_reading_in_small_batches_gives_the_same_sketches(monkeypatch):
    records = [record(offset, envelope(f"/{offset % 7}")) for offset in range(100)]
    whole = counted(records)
    monkeypatch.setattr(counting, "_FLUSH_ENTRIES", 3)
    pieces = counted(records, rows_per_batch=10)

    assert [delta.parts.sketch for delta in pieces.deltas] == [d.parts.sketch for d in whole.deltas]
    assert pieces.reads == whole.reads
    assert pieces.sources == whole.sources


def test_what_lies_at_or_below_the_mark_is_a_re_read():
    batch = counted([record(offset) for offset in range(5)], marks={("t", 0): 2})

    assert batch.reads == [
        PartitionRead("t", "T", 0, mark=2, last_offset=4, counted=2, re_read=3, skipped=0)
    ]
    assert sketches(batch)["url", 0].total == 2


def test_a_batch_of_re_reads_counts_nothing():
    batch = counted([record(offset) for offset in range(3)], marks={("t", 0): 9})

    assert batch.reads == [PartitionRead("t", "T", 0, 9, 9, 0, 3, 0)]
    assert not batch.deltas
    assert not batch.sources


def test_partitions_and_topics_in_one_task_are_told_apart():
    batch = counted(
        [record(0), record(7, partition=1), record(3, topic="u"), record(4, topic="u")],
        marks={("u", 0): 3},
    )

    assert {
        (read.topic_id, read.partition, read.last_offset, read.re_read) for read in batch.reads
    } == {
        ("T", 0, 0, 0),
        ("T", 1, 7, 0),
        ("U", 0, 4, 1),
    }


@pytest.mark.parametrize(("after_the_end", "late"), [(LATENESS - 1, 0), (LATENESS, 1)])
def test_a_record_is_late_from_end_plus_lateness_on(after_the_end, late):
    stream = T0 + MINUTE_MS + after_the_end
    (sketch,) = sketches(counted([record(0, stream=stream)])).values()

    assert (sketch.total, sketch.late) == (1 - late, late)


def test_late_weight_is_counted_in_grouped_lists_too():
    late = record(0, envelope("/", deviceType="mobile", weight=3), stream=T0 + 2 * LATENESS)
    found = sketches(counted([late]))

    assert {name: sketch.late for (name, _), sketch in found.items()} == {
        "url": 3,
        "url|deviceType=mobile": 3,
    }


def test_an_attribute_may_be_called_as_a_column_of_ours():
    rule = ItemRule("page_view", "url", "url", "url", ("key", "minute", "weight", "0"))
    found = sketches(
        counted([record(0, envelope("/", key="a", minute=7, weight=3, **{"0": "b"}))], rule=rule)
    )

    assert {name for name, _ in found} == {
        *("url", "url|key=a", "url|minute=7", "url|weight=3", "url|0=b"),
    }


def test_a_source_partition_comes_as_far_as_its_newest_record():
    other = StreamMetadata(9, 0, 7).to_bytes()
    batch = counted([record(0, stream=T0 + 5), record(1, stream=T0 + 9), record(2, key=other)])

    assert batch.sources == {
        (-5, 3): SourceProgress(T0 + 9, T0 + 1),
        (9, 0): SourceProgress(T0, T0 + 2),
    }


@pytest.mark.parametrize("key", [None, b"", b"foreign", StreamMetadata(1, -2, 3).to_bytes()])
def test_records_without_stream_metadata_are_a_source_of_their_own(key):
    batch = counted([record(0), record(1, key=key, stream=T0 + 3)])

    assert batch.sources == {
        (-5, 3): SourceProgress(T0, T0),
        (0, -1): SourceProgress(T0 + 3, T0 + 1),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"value": b"not json"},
        {"value": b"[1]"},
        {"value": b'{"metadata": {}, "payload": {}}'},
        {"value": envelope(event_type="page_view").replace(b'{"url":"/"}', b'"text"')},
        {"headers": []},
        {"headers": None},
        {"headers": [("stream-time", b"soon"), ("event-time", b"1")]},
        {"headers": [("stream-time", b"1"), ("event-time", None)]},
        {"headers": [("stream-time", b"1"), ("event-time", b"9" * 30)]},
        {"headers": [("stream-time", b"1"), ("event-time", b"9000000000000000000")]},
    ],
)
def test_a_record_that_cannot_be_read_is_skipped_and_counted_as_such(changes):
    batch = counted([record(0), record(1, **changes), record(2)])

    assert batch.reads == [PartitionRead("t", "T", 0, -1, 2, counted=2, re_read=0, skipped=1)]
    assert sketches(batch)["url", 0].total == 2


def test_an_event_without_an_item_is_counted_as_read():
    batch = counted([record(0, envelope(event_type="heartbeat")), record(1, envelope(url=None))])

    assert batch.reads[0].counted == 2
    assert not batch.deltas
    assert batch.sources


def test_headers_are_found_by_name_in_any_order():
    headers = [("event-time", str(T0).encode()), ("x", None), ("stream-time", str(T0).encode())]

    assert counted([record(0, headers=headers)]).reads[0].counted == 1


def test_values_outside_a_closed_choice_go_to_other():
    kept = {("url", "deviceType"): KeptValues(frozenset({"mobile"}), closed=True)}
    values = ("mobile", "desktop", "tv")
    found = sketches(
        counted([record(i, envelope("/", deviceType=v)) for i, v in enumerate(values)], kept=kept)
    )

    assert found["url|deviceType=*other", 0].total == 2
    assert found["url|deviceType=mobile", 0].total == 1


def test_a_task_reports_a_bounded_number_of_new_values():
    records = [record(i, envelope("/", deviceType=f"device {i}")) for i in range(50)]
    batch = counted(records)

    (reported,) = batch.candidates["url", "deviceType"]
    assert reported == {f"device {i}" for i in range(8)}
    assert sketches(batch)["url|deviceType=*other", 0].total == 42


def test_an_empty_batch_is_nothing():
    assert counted([]) == CountedBatch([], {}, [], 42, {})


def written(*positions: tuple[int, int], **changes: object) -> list[dict[str, object]]:
    """Return records at consecutive offsets that come from these source partitions and offsets."""
    return [
        record(offset, key=StreamMetadata(-5, *position).to_bytes(), **changes)
        for offset, position in enumerate(positions)
    ]


@pytest.mark.parametrize("rows_per_batch", [1, 3, 1000])
def test_a_replayed_record_is_not_counted_and_its_offset_is_passed(rows_per_batch: int):
    records = written((3, 0), (3, 1), (4, 0), (3, 0), (3, 1), (3, 2), (4, 1))
    batch = counted(records, rows_per_batch=rows_per_batch, filtered=frozenset({"t"}))

    assert sketches(batch)["url", 0].total == 5
    assert batch.reads == [PartitionRead("t", "T", 0, -1, 6, counted=5, re_read=0, skipped=0)]
    assert batch.upstream == {
        ("T", 0): {
            (-5, 3): Progress(Reached(), Reached(2, 2), 2, 1),
            (-5, 4): Progress(Reached(), Reached(1, 1), 0, 0),
        }
    }


def test_replays_are_found_by_the_marks_of_the_partition_they_are_in():
    records = [
        *written((3, 5), (3, 6)),
        *written((3, 5), (3, 6), partition=1),
    ]
    seen = {("t", 0): {(-5, 3): Reached(5, 5)}, ("u", 1): {(-5, 3): Reached(9, 9)}}
    batch = counted(records, filtered=frozenset({"t"}), upstream=seen)

    assert sketches(batch)["url", 0].total == 3
    assert batch.upstream["T", 0] == {(-5, 3): Progress(Reached(5, 5), Reached(6, 6), 1, 1)}
    assert batch.upstream["T", 1] == {(-5, 3): Progress(Reached(), Reached(6, 6), 0, 0)}


def test_a_re_read_is_no_replay():
    records = written((3, 0), (3, 1), (3, 2))
    seen = {("t", 0): {(-5, 3): Reached(1, 1)}}
    batch = counted(records, {("t", 0): 1}, filtered=frozenset({"t"}), upstream=seen)

    assert batch.reads == [PartitionRead("t", "T", 0, 1, 2, counted=1, re_read=2, skipped=0)]
    assert batch.upstream["T", 0][-5, 3].replayed == 0


def test_a_topic_that_is_not_filtered_counts_everything():
    batch = counted(written((3, 0), (3, 0)), filtered=frozenset({"u"}))

    assert sketches(batch)["url", 0].total == 2
    assert batch.upstream == {}


def test_the_position_is_found_in_the_header_under_a_business_key():
    position = StreamMetadata(-5, 3, 7).to_bytes()
    again = record(1)
    headers = [*again["headers"], ("position", position)]  # type: ignore[misc]
    records = [
        record(0, key=position),
        record(1, key=b"customer", headers=headers),
        record(2, key=b"customer"),
    ]
    batch = counted(records, filtered=frozenset({"t"}))

    assert sketches(batch)["url", 0].total == 2
    assert batch.upstream["T", 0][-5, 3].replayed == 1
    assert batch.sources.keys() == {(-5, 3), (0, -1)}
