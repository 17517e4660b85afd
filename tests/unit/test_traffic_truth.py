"""What is true about a stream: exact counts, and the comparison of decisions, books and answers with them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime

import pytest

from admitone.demo.traffic import Truth
from admitone.demo.traffic.malformed import NAMELESS_REASONS
from admitone.demo.traffic.window_keys import window_key, window_span
from tests.support.recorded_traffic import OPTIONS, oracle, stream

# Windows and exact counts


@pytest.mark.parametrize(
    ("moment", "size", "key"),
    [
        ("2025-06-01T05:32:10.456Z", "minute", "minute_202506010532"),
        ("2025-06-01T05:59:59.999Z", "hour", "hour_2025060105"),
        ("2025-06-01T06:00:00.000Z", "hour", "hour_2025060106"),
        ("2024-02-29T23:59:59.999Z", "day", "day_20240229"),
        ("2024-02-29T23:59:59.999Z", "month", "month_202402"),
        ("2024-12-30T00:00:00.000Z", "week", "week_202501"),
        ("2025-12-29T00:00:00.000Z", "week", "week_202601"),
        ("2027-01-03T23:59:59.999Z", "week", "week_202653"),
        ("1969-12-31T23:59:59.999Z", "month", "month_196912"),
        ("2025-12-31T23:59:59.999Z", "global", "global"),
    ],
)
def test_a_window_holds_the_moments_that_have_its_key(moment, size, key):
    at = round(datetime.fromisoformat(moment).timestamp() * 1000)
    start, end = window_span(key)

    assert window_key(at, size) == key
    assert start <= at < end


@pytest.mark.parametrize("size", ["minute", "hour", "day", "week", "month"])
def test_windows_meet_without_gap_or_overlap(size):
    key = "minute_202412290000"
    at = window_span(key)[0]
    for _ in range(60):
        start, end = window_span(window_key(at, size))
        assert start <= at
        assert window_key(end - 1, size) == window_key(start, size) != window_key(end, size)
        at = end


@pytest.mark.parametrize("key", ["hour_20250601", "minute", "year_2025", "day_2025060x", ""])
def test_what_is_no_window_key_is_refused(key):
    with pytest.raises(ValueError, match="not a window key"):
        window_span(key)


def test_every_size_of_window_sums_up_to_the_same_total():
    truth = oracle()
    expected: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for delivery in stream():
        for name in delivery.lists:
            expected[name][delivery.late] += 1
    for name in truth.lists:
        for size in ("minute", "hour", "day", "week", "month", "global"):
            parts = [truth.exact(key, name)[1:] for key in truth.windows(name, size)]
            assert [sum(column) for column in zip(*parts, strict=True)] == expected[name]


def test_grouped_lists_partition_their_dimension():
    truth = oracle()
    whole, total, late = truth.exact("global", "apiEndpoint")
    parts: Counter[str] = Counter()
    grouped = [name for name in truth.lists if name.startswith("apiEndpoint|statusCode=")]
    for name in grouped:
        parts.update(truth.exact("global", name)[0])

    assert len(grouped) == 8
    assert parts == whole
    assert total == sum(whole.values())
    assert late > 0


def test_a_window_nobody_was_in_is_empty():
    assert oracle().exact("day_19990101", "url") == ({}, 0, 0)


def test_truth_survives_its_file(tmp_path):
    path = tmp_path / "truth.json"
    oracle().write(path)
    loaded = Truth.load(path)
    document = json.loads(path.read_bytes())

    assert vars(loaded) == vars(oracle())
    assert document["run_id"] == "r1"
    assert document["deliveries"] == len(document["decisions"]) == 20_000
    assert document["verdicts"]["DUPLICATE"] == 4_000
    assert document["options"]["end_ms"] == OPTIONS.last_ms


def test_truth_of_another_version_is_refused(tmp_path):
    (tmp_path / "truth.json").write_text('{"version": 2}')

    with pytest.raises(ValueError, match="version 2"):
        Truth.load(tmp_path / "truth.json")


# Comparing decisions


def right_rows():
    return [
        {
            "run_id": "r1",
            "event_class": delivery.event_class,
            "event_id": None if delivery.reason in NAMELESS_REASONS else delivery.event_id,
            "verdict": delivery.verdict,
            "reason": delivery.reason,
            "source": {"producer_id": 1, "partition": 0, "offset": offset},
        }
        for offset, delivery in enumerate(stream())
    ]


def index_of(verdict, reason=None):
    return next(
        i for i, d in enumerate(stream()) if d.verdict == verdict and reason in (None, d.reason)
    )


def test_right_decisions_in_any_order_agree():
    assert oracle().check_decisions(reversed(right_rows())) == []


def test_a_malformed_event_may_have_lost_its_id():
    rows = right_rows()
    rows[index_of("QUARANTINED", "SCHEMA_VIOLATION")]["event_id"] = None

    assert oracle().check_decisions(rows) == []


def test_a_nameless_reason_may_come_with_an_id():
    rows = right_rows()
    rows[index_of("QUARANTINED", "DUPLICATE_KEY")]["event_id"] = "guessed"

    assert oracle().check_decisions(rows) == []


@pytest.mark.parametrize("verdict", ["ADMITTED", "DUPLICATE", "QUARANTINED"])
def test_a_missing_decision_is_found(verdict):
    rows = right_rows()
    del rows[index_of(verdict)]

    assert oracle().check_decisions(rows)


def test_an_extra_decision_is_found():
    rows = right_rows()
    extra = dict(rows[index_of("DUPLICATE")], source=None)

    assert oracle().check_decisions([*rows, extra])


def test_a_wrong_verdict_is_found_and_names_the_event():
    rows = right_rows()
    row = rows[index_of("DUPLICATE")]
    row["verdict"] = "ADMITTED"
    found = oracle().check_decisions(rows)

    assert f"event {row['event_id']} of {row['event_class']} admitted 2 times, not once" in found


def test_a_wrong_reason_is_found():
    rows = right_rows()
    rows[index_of("QUARANTINED", "TOO_OLD")]["reason"] = "TIMESTAMP_INVALID"

    assert oracle().check_decisions(rows)


def test_swapped_verdicts_of_two_events_are_found():
    rows = right_rows()
    one, other = rows[0], next(r for r in rows[1:] if r["verdict"] == "DUPLICATE")
    one["verdict"], other["verdict"] = other["verdict"], one["verdict"]

    assert oracle().check_decisions(rows)


def test_an_admission_that_lost_its_id_is_found():
    rows = right_rows()
    rows[0]["event_id"] = None

    assert oracle().check_decisions(rows)


def test_an_admission_in_another_run_is_found():
    rows = right_rows()
    rows[0]["run_id"] = "r2"

    assert any("'r2'" in problem for problem in oracle().check_decisions(rows))


def test_an_admission_of_a_later_delivery_is_found():
    rows = right_rows()
    duplicate = rows[index_of("DUPLICATE")]
    first = next(row for row in rows if row["event_id"] == duplicate["event_id"])
    first["source"], duplicate["source"] = duplicate["source"], first["source"]

    assert any("earlier" in problem for problem in oracle().check_decisions(rows))


# Comparing books


def right_books():
    sums = {
        "deliveries": 20_000,
        "admitted": oracle().verdicts["ADMITTED"],
        "duplicates": 4_000,
        "replayed": 0,
        "quarantined": 500,
        "ambiguous": 0,
        "in_flight": 0,
        "re_read": 3,
    }
    none = dict.fromkeys(sums, 0)
    return {"runs": [{"run_id": "r1", **sums, "balanced": True, "partitions": [dict(sums), none]}]}


def test_right_books_agree():
    assert oracle().check_books(right_books()) == []


@pytest.mark.parametrize("wrong", [{"admitted": 1}, {"in_flight": 2}, {"balanced": False}])
def test_wrong_books_are_found(wrong):
    books = right_books()
    books["runs"][0].update(wrong)

    assert len(oracle().check_books(books)) == 1


def test_partitions_that_do_not_sum_up_are_found():
    books = right_books()
    books["runs"][0]["partitions"][1]["duplicates"] = 1

    assert oracle().check_books(books) == [
        "books: duplicates over all partitions is 4001, expected 4000"
    ]


def test_books_without_the_run_are_found():
    assert oracle().check_books({"runs": []})


# Comparing top-K answers


def right_answer(k=10, dimension="url", where=None, window="global"):
    name = dimension + (f"|{where}" if where else "")
    counts, total, late = oracle().exact(window, name)
    heaviest = sorted(counts.items(), key=lambda pair: -pair[1])[:k]
    return {
        "window": window,
        "dimension": dimension,
        "where": where,
        "k": k,
        "total": total,
        "late": late,
        "distinct": len(counts),
        "items": [
            {"rank": rank, "item": item, "estimate": n, "lower": n - 1, "upper": n + 1}
            for rank, (item, n) in enumerate(heaviest, 1)
        ],
    }


@pytest.mark.parametrize("where", [None, "deviceType=mobile"])
def test_right_answers_agree(where):
    assert oracle().check_top(right_answer(where=where)) == []


def test_a_condition_may_be_spelled_as_a_mapping():
    answer = right_answer(dimension="apiEndpoint", where="statusCode=200")
    answer["where"] = {"statusCode": 200}

    assert oracle().check_top(answer) == []


@pytest.mark.parametrize("window", ["hour_2026010100", "week_202601", "month_202512"])
def test_answers_for_every_size_of_window_agree(window):
    assert oracle().check_top(right_answer(window=window)) == []


@pytest.mark.parametrize("field", ["total", "late"])
def test_sums_must_be_exact(field):
    answer = right_answer()
    answer[field] += 1

    assert len(oracle().check_top(answer)) == 1


def test_distinct_may_be_a_little_off_but_not_far():
    answer = right_answer()
    answer["distinct"] = round(answer["distinct"] * 1.05)
    assert oracle().check_top(answer) == []

    answer["distinct"] *= 2
    assert len(oracle().check_top(answer)) == 1


def test_a_count_outside_its_bounds_is_found():
    answer = right_answer()
    answer["items"][3]["lower"] = answer["items"][3]["estimate"] = answer["items"][3]["upper"]

    assert any("outside [" in problem for problem in oracle().check_top(answer))


def test_a_missing_heavy_item_is_found():
    answer = right_answer()
    gone = answer["items"].pop(0)["item"]
    answer["k"] = 9
    for rank, item in enumerate(answer["items"], 1):
        item["rank"] = rank

    (problem,) = oracle().check_top(answer)
    assert repr(gone) in problem


def test_a_list_that_is_not_full_must_hold_everything():
    answer = right_answer(k=1_000, dimension="apiEndpoint")
    assert oracle().check_top(answer) == []

    answer["items"].pop()
    assert len(oracle().check_top(answer)) == 1


def test_an_item_that_never_occurred_is_found():
    answer = right_answer()
    answer["items"][-1] |= {"item": "nowhere", "lower": 0}

    assert any("never occurred" in problem for problem in oracle().check_top(answer))


@pytest.mark.parametrize("rank", [0, 3])
def test_wrong_ranks_are_found(rank):
    answer = right_answer()
    answer["items"][0]["rank"] = rank

    assert len(oracle().check_top(answer)) == 1


def test_unsorted_items_are_found():
    answer = right_answer()
    answer["items"].reverse()

    assert any("sorted" in problem for problem in oracle().check_top(answer))
