"""TOP-8: history in a real PostgreSQL, partitioned by time, kept longer than the sketches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from admitone.analytics import item_rules
from admitone.core.errors import NotFound
from admitone.core.windows import DAY_MS, MINUTE_MS, parse_window, window_of
from admitone.results import open_answers, open_history, open_outlets
from admitone.results.answers import Answers
from admitone.results.history_schema import Span
from admitone.results.publisher import publish
from tests.support.counted import T0, Counts

MINUTE = "minute_202611151000"
DAY = 24 * 60


@pytest.fixture
def counts(tmp_path: Path, postgres_url: str) -> Counts:
    return Counts(
        tmp_path,
        {
            "history": {
                "kind": "postgresql",
                "url": postgres_url,
                "keep_minutes": 5 * DAY_MS,
                "keep_hours": 60 * DAY_MS,
            },
            "topk": {"keep_minutes": DAY_MS, "k": 3},
        },
    )


@pytest.fixture
def db(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def send(counts: Counts) -> None:
    for outlet in open_outlets(counts.settings):
        publish(counts.store, item_rules(counts.settings), outlet)
        outlet.close()


@pytest.fixture
def answers(counts: Counts) -> Answers:
    """A minute, an hour and a day ago the sketches still had them; now only the history has the minutes."""
    heavy = {f"/{number}": 100 - number for number in range(5)}
    counts.add(0, {"url": heavy, "productId": {"p1": 1}}, late=2)
    counts.add(1, {"url": {"/0": 150, "/4": 60}})
    send(counts)
    counts.add(30, {"productId": {"p1": 1}})
    send(counts)
    counts.add(3 * DAY, {"url": {"/0": 1}})
    send(counts)
    return open_answers(counts.settings)


def test_both_tables_have_the_agreed_columns_and_keys(counts, db):
    counts.add(0, {"url": {"/shoes": 60, "/hats": 30}}, late=4)
    send(counts)

    assert db.execute(
        "SELECT window_key, dimension, item_key, item_type, rank, estimated_count, error_bound_percent"
        " FROM heavy_hitters WHERE window_key = %s ORDER BY rank",
        (MINUTE,),
    ).fetchall() == [
        (MINUTE, "url", "/shoes", "url", 1, 60, 0.0),
        (MINUTE, "url", "/hats", "url", 2, 30, 0.0),
    ]
    assert db.execute(
        "SELECT window_start::text, window_end::text, total_events, unique_items_estimate, processing_complete,"
        " last_updated IS NOT NULL FROM window_metadata WHERE window_key = %s AND dimension = 'url'",
        (MINUTE,),
    ).fetchone() == ("2026-11-15 10:00:00+00", "2026-11-15 10:01:00+00", 90, 2, False, True)
    keys = db.execute(
        "SELECT table_name, string_agg(column_name, ' ' ORDER BY ordinal_position)"
        " FROM information_schema.key_column_usage WHERE table_schema = current_schema()"
        " AND table_name IN ('heavy_hitters', 'window_metadata') GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert keys == [
        ("heavy_hitters", "window_key dimension rank"),
        ("window_metadata", "window_key dimension"),
    ]


def test_open_windows_are_marked_incomplete_until_they_are_complete_and_global_never_is(counts, db):
    def complete() -> dict[str, bool]:
        rows = db.execute(
            "SELECT window_key, processing_complete FROM window_metadata WHERE dimension = 'url'"
        )
        return dict(rows.fetchall())

    counts.add(0, {"url": {"/shoes": 1}})
    send(counts)
    assert set(complete().values()) == {False}
    counts.add(20 * DAY, {"productId": {"p1": 1}})
    send(counts)

    assert {key: done for key, done in complete().items() if not done} == {"global": False}


def test_open_windows_wait_for_their_slower_pace(counts):
    complete, still_open = open_outlets(counts.settings)
    assert (complete.interval_ms, still_open.interval_ms) == (5_000, 60_000)
    counts.add(0, {"url": {"/shoes": 1}})
    publish(counts.store, item_rules(counts.settings), complete)
    assert open_answers(counts.settings)._history.windows() == {}
    counts.add(15, {"url": {"/shoes": 1}})
    publish(counts.store, item_rules(counts.settings), complete)
    assert open_answers(counts.settings)._history.windows() == {parse_window(MINUTE): True}


def test_the_reader_of_the_history_cannot_write(counts):
    send(counts)
    reader = open_history(counts.settings)
    assert reader is not None

    with (
        reader._database.snapshot() as db,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        db.execute("DELETE FROM window_metadata")
    reader.close()


def test_partitions_past_the_retention_are_dropped_and_the_rest_stays(counts, db):
    def partitions() -> set[str]:
        rows = db.execute(
            "SELECT relid::regclass::text FROM pg_partition_tree('heavy_hitters') WHERE isleaf"
        )
        return {name.rpartition(".")[2].removeprefix("heavy_hitters_") for (name,) in rows}

    counts.add(0, {"url": {"/shoes": 1}})
    counts.add(DAY, {"url": {"/shoes": 1}})
    send(counts)
    before = partitions()
    counts.add(6 * DAY + 1, {"url": {"/shoes": 1}})
    send(counts)
    counts.add(100 * DAY, {"url": {"/shoes": 1}})
    send(counts)

    assert {"minute_20261116", "hour_202611", "day_2026", "month_2026", "global"} <= before
    assert "minute_20261115" not in partitions()
    assert {"minute_20270223", "hour_202702", "day_2026", "day_2027", "global"} <= partitions()
    assert "hour_202611" not in partitions()


def test_a_window_that_the_sketches_dropped_is_answered_from_the_history(answers):
    top = answers.top("url", MINUTE)

    assert MINUTE not in [
        line["window"] for line in answers.windows()["windows"] if line["kept_in"] == "sketches"
    ]
    assert (top["total"], top["late"], top["distinct"], top["complete"]) == (490, 2, 5, True)
    assert [(line["item"], line["lower"], line["upper"]) for line in top["items"]] == [
        ("/0", 100, 100),
        ("/1", 99, 99),
        ("/2", 98, 98),
    ]
    assert top["source"] == {"kept_in": "history", "revision": 3}
    assert top["parameters"]["k"] == 3
    assert answers.top("searchQuery", MINUTE)["total"] == 0


def test_an_item_that_was_not_listed_has_a_bound_in_the_history(answers):
    listed = answers.item("url", "/1", MINUTE)
    unlisted = answers.item("url", "/4", MINUTE)

    assert (listed["lower"], listed["estimate"], listed["upper"]) == (99, 99, 99)
    assert (unlisted["lower"], unlisted["upper"]) == (0, 97)
    assert unlisted["total"] == 490


def test_an_items_history_reaches_from_the_history_into_the_sketches(answers):
    found = answers.history("url", "/0", MINUTE, "1m")

    assert [(line["window"], line["estimate"], line["source"]["kept_in"]) for line in found] == [
        (MINUTE, 100, "history"),
        ("minute_202611151001", 150, "history"),
        ("minute_202611151030", 0, "history"),
        ("minute_202611181000", 1, "sketches"),
    ]


def test_a_trend_in_the_history_has_bounds(answers):
    trend = answers.trend("url", "minute_202611151001")

    assert (trend["previous"], trend["previous_total"], trend["total"]) == (MINUTE, 490, 210)
    assert [
        (line["item"], line["change"], line["lower"], line["upper"]) for line in trend["items"]
    ] == [
        ("/0", 50, 50, 50),
    ]


def test_what_nobody_keeps_any_more_is_said_to_be_gone(counts, answers):
    with pytest.raises(NotFound, match="There is no window minute_202611141000"):
        answers.top("url", "minute_202611141000")
    counts.add(20 * DAY, {"url": {"/0": 1}})
    send(counts)
    with pytest.raises(NotFound, match=f"There is no window {MINUTE}"):
        answers.top("url", MINUTE)


@pytest.mark.parametrize(
    ("key", "suffix", "last"),
    [
        ("minute_202602280001", "minute_20260228", "minute_202602282359"),
        ("hour_2024021500", "hour_202402", "hour_2024022923"),
        ("hour_2026021500", "hour_202602", "hour_2026022823"),
        ("day_20260101", "day_2026", "day_20261231"),
        ("week_202601", "week_2026", "week_202653"),
        ("week_202501", "week_2025", "week_202552"),
        ("month_202601", "month_2026", "month_202612"),
    ],
)
def test_a_partition_ends_with_the_last_window_whose_key_lies_in_it(key, suffix, last):
    span = Span.of(parse_window(key))

    assert span.suffix == suffix
    assert span.end_ms == parse_window(last).end_ms
    assert span.bounds[0] <= key < span.bounds[1]
    assert Span.named(f"window_metadata_{suffix}") == span
    after = window_of(span.kind, parse_window(last).end_ms)
    assert not span.bounds[0] <= after.key < span.bounds[1]


def test_every_window_lies_in_the_partition_of_its_span():
    for moment in range(T0, T0 + 800 * DAY_MS, 7 * DAY_MS + 61 * MINUTE_MS):
        for kind in ("minute", "hour", "day", "week", "month", "global"):
            window = window_of(kind, moment)
            first, after = Span.of(window).bounds
            assert first <= window.key < after
