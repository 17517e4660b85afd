"""TOP-4: the six windows of a moment and their names."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admitone.core.windows import (
    BEGINNING,
    END,
    KINDS,
    Window,
    parse_window,
    window_of,
)

moments = st.integers(BEGINNING, END - 1)


def ms(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc]


def test_a_moment_has_six_windows_from_minute_to_global():
    keys = [window_of(kind, ms(2026, 11, 15, 10, 32, 59)).key for kind in KINDS]

    assert keys == [
        "minute_202611151032",
        "hour_2026111510",
        "day_20261115",
        "week_202646",
        "month_202611",
        "global",
    ]


@pytest.mark.parametrize(
    ("day", "week"),
    [
        ((2024, 12, 30), "week_202501"),
        ((2025, 12, 29), "week_202601"),
        ((2027, 1, 3), "week_202653"),
        ((2026, 1, 4), "week_202601"),
    ],
)
def test_a_week_carries_the_iso_year(day, week):
    assert window_of("week", ms(*day)).key == week


def test_a_window_holds_its_start_and_not_its_end():
    hour = parse_window("hour_2026111510")

    assert hour == Window("hour", ms(2026, 11, 15, 10), ms(2026, 11, 15, 11))
    assert window_of("hour", hour.end_ms - 1) == hour
    assert window_of("hour", hour.end_ms).key == "hour_2026111511"


def test_windows_before_1970_are_floored_not_truncated():
    assert window_of("minute", -1).key == "minute_196912312359"
    assert window_of("minute", -1).start_ms == -60_000
    assert window_of("month", -1) == Window("month", ms(1969, 12, 1), 0)


def test_the_calendar_has_a_first_and_a_last_window():
    assert window_of("month", END - 1).key == "month_999912"
    assert window_of("day", BEGINNING).key == "day_00010101"
    assert window_of("day", BEGINNING).previous() is None
    with pytest.raises(ValueError, match="years 1 to 9999"):
        window_of("day", END)


def test_february_of_a_leap_year_has_29_days():
    february = parse_window("month_202402")

    assert february.end_ms - february.start_ms == 29 * 86_400_000


def test_nothing_comes_before_global():
    assert parse_window("global").previous() is None


@pytest.mark.parametrize(
    "key",
    [
        *("", "hour", "hour_", "hour_20261115", "hour_2026111524", "minute_202611151060"),
        *("day_20260230", "week_202554", "week_202600", "month_202613", "year_2026"),
        *("hour_２０２６111510", "1h"),
    ],
)
def test_what_is_no_window_is_refused(key):
    with pytest.raises(ValueError, match="is no window"):
        parse_window(key)


@given(moments, st.sampled_from(KINDS))
def test_a_name_stands_for_the_window_it_came_from(moment, kind):
    window = window_of(kind, moment)

    assert window.start_ms <= moment < window.end_ms
    assert parse_window(window.key) == window


@given(moments, st.sampled_from(KINDS[:-1]))
def test_neighbours_touch(moment, kind):
    window = window_of(kind, moment)

    if window.end_ms < END:
        after = window_of(kind, window.end_ms)
        assert after.start_ms == window.end_ms
        assert after.previous() == window


@given(moments, moments, st.sampled_from(KINDS[:-1]))
def test_names_sort_like_time(one, other, kind):
    first, second = sorted((window_of(kind, one), window_of(kind, other)))

    assert first.key <= second.key
