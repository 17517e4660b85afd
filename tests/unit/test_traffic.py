from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from datetime import datetime
from functools import cache

import pytest

from admitone.traffic import Delivery, GeneratorOptions, Truth, TruthRecorder, generate
from admitone.traffic.malformed import MALFORMED_REASONS, NAMELESS_REASONS
from admitone.traffic.windows import window_key, window_span

OPTIONS = GeneratorOptions(20_000, malformed=0.02, run="r1")
MINUTE_MS, DAY_MS = 60_000, 86_400_000


@cache
def stream() -> list[Delivery]:
    return list(generate(OPTIONS))


@cache
def oracle() -> Truth:
    recorder = TruthRecorder(OPTIONS)
    for delivery in stream():
        recorder.record(delivery)
    return recorder.truth()


def refused_for(reason):
    return [delivery.line for delivery in stream() if delivery.reason == reason]


def milliseconds(delivery):
    text = json.loads(delivery.line)["metadata"]["timestamp"]
    return round(datetime.fromisoformat(text).timestamp() * 1000)


# The stream


def test_the_same_options_make_the_same_bytes():
    assert list(generate(OPTIONS)) == stream()


def test_another_seed_makes_other_events():
    ours = {delivery.event_id for delivery in stream()}
    theirs = {delivery.event_id for delivery in generate(GeneratorOptions(5_000, seed=8))}

    assert ours & theirs == {None}


def test_shares_are_honoured_exactly():
    verdicts = Counter(delivery.verdict for delivery in stream())
    reasons = Counter(delivery.reason for delivery in stream())

    assert len(stream()) == 20_000
    assert verdicts["DUPLICATE"] == 4_000
    assert reasons["PAYLOAD_MISMATCH"] == 100
    assert verdicts["QUARANTINED"] == 100 + 400
    assert sum(delivery.late for delivery in stream()) == 200


@pytest.mark.parametrize("events", [0, 1, 2, 10, 100])
def test_small_streams_have_their_size_and_start_with_an_admission(events):
    deliveries = list(generate(GeneratorOptions(events, malformed=0.1, late=0.1)))

    assert len(deliveries) == events
    assert all(delivery.verdict == "ADMITTED" for delivery in deliveries[:1])


@pytest.mark.parametrize(
    "wrong", [{"duplicates": 0.99}, {"late": -0.1}, {"rate": 0.0}, {"zipf": -1.0}]
)
def test_impossible_options_are_refused(wrong):
    with pytest.raises(ValueError, match="must"):
        GeneratorOptions(10, **wrong)


def test_lines_are_never_broken_by_a_newline():
    assert not any(set(delivery.line) & set(b"\n\r") for delivery in stream())


def test_an_event_weighs_about_460_bytes():
    sizes = [len(delivery.line) for delivery in stream() if delivery.verdict == "ADMITTED"]

    assert 420 < sum(sizes) / len(sizes) < 500


def test_every_admitted_event_is_an_envelope_with_its_run_and_its_item():
    fields = {"url": "url", "apiEndpoint": "endpoint", "searchQuery": "searchQuery"}
    for delivery in stream():
        if delivery.verdict != "ADMITTED":
            continue
        envelope = json.loads(delivery.line)
        dimension, *grouped = delivery.lists
        assert envelope["metadata"]["eventId"] == delivery.event_id
        assert envelope["metadata"]["eventType"] == delivery.event_class
        assert envelope["metadata"]["runId"] == "r1"
        assert envelope["payload"][fields.get(dimension, "productId")] == delivery.item
        for name in grouped:
            attribute, value = name.removeprefix(f"{dimension}|").split("=")
            assert str(envelope["payload"][attribute]) == value


def test_without_a_run_the_envelope_names_none():
    (delivery,) = generate(GeneratorOptions(1))

    assert "runId" not in json.loads(delivery.line)["metadata"]


def test_regular_events_are_in_the_past_and_less_than_a_minute_out_of_order():
    newest = 0
    for delivery in stream():
        if delivery.verdict == "ADMITTED" and not delivery.late:
            moment = milliseconds(delivery)
            assert newest - MINUTE_MS < moment <= OPTIONS.last_ms
            assert delivery.minute_ms == moment // MINUTE_MS * MINUTE_MS
            newest = max(newest, moment)
    assert newest > OPTIONS.last_ms - MINUTE_MS


def test_a_rate_spaces_the_events():
    options = GeneratorOptions(1_000, rate=2.0, late=0.0, end_ms=DAY_MS)
    first, *_, last = [d for d in generate(options) if d.verdict == "ADMITTED"]

    assert last.minute_ms - first.minute_ms == pytest.approx(500_000, abs=2 * MINUTE_MS)


def test_late_events_are_days_behind_the_newest_and_never_early_in_the_stream():
    newest = 0
    for position, delivery in enumerate(stream()):
        if delivery.late:
            assert position >= len(stream()) // 5
            assert 2 * DAY_MS <= newest - milliseconds(delivery) <= 30 * DAY_MS
        elif delivery.verdict == "ADMITTED":
            newest = max(newest, milliseconds(delivery))


def test_duplicates_repeat_the_value_of_an_earlier_event_half_of_them_respelled():
    first, identical, respelled = {}, 0, 0
    for delivery in stream():
        if delivery.verdict == "ADMITTED":
            first[delivery.event_id] = delivery.line
        elif delivery.verdict == "DUPLICATE":
            line = first[delivery.event_id]
            assert json.loads(delivery.line) == json.loads(line)
            identical += delivery.line == line
            respelled += delivery.line != line
    assert respelled == pytest.approx(identical, rel=0.15)


def test_contradictions_change_the_payload_of_an_earlier_event_and_some_come_twice():
    first, contradictions = {}, []
    for delivery in stream():
        if delivery.verdict == "ADMITTED":
            first[delivery.event_id] = json.loads(delivery.line)
        elif delivery.reason == "PAYLOAD_MISMATCH":
            contradiction = json.loads(delivery.line)
            assert contradiction["metadata"] == first[delivery.event_id]["metadata"]
            assert contradiction["payload"] != first[delivery.event_id]["payload"]
            contradictions.append(delivery.line)
    assert len(set(contradictions)) < len(contradictions)


def test_items_follow_the_exponent():
    flat = TruthRecorder(GeneratorOptions(5_000, zipf=0.0))
    steep = TruthRecorder(GeneratorOptions(5_000, zipf=2.0))
    for recorder in (flat, steep):
        list(recorder.watch(generate(recorder._options)))
    low, high = (max(r.truth().exact("global", "url")[0].values()) for r in (flat, steep))

    assert low < 20
    assert high > 500


# Malformed deliveries


def test_every_reason_has_its_turn_and_large_lines_are_rare():
    reasons = Counter(delivery.reason for delivery in stream())

    assert all(reasons[reason] > 0 for reason in MALFORMED_REASONS)
    assert reasons["PAYLOAD_TOO_LARGE"] == 1


def test_malformed_deliveries_use_ids_of_their_own():
    good = {d.event_id for d in stream() if d.verdict == "ADMITTED"}
    ids = [d.event_id for d in stream() if d.reason in MALFORMED_REASONS and d.event_id]

    assert len(ids) == len(set(ids))
    assert not good & set(ids)


def test_not_json_lines_do_not_parse_strictly():
    def refuse(constant):
        raise ValueError(constant)

    for line in refused_for("NOT_JSON"):
        text = line.decode()
        with pytest.raises(ValueError, match=r".+"):
            json.loads(text, parse_constant=refuse)


def test_invalid_unicode_is_in_the_bytes_or_in_an_escape():
    for line in refused_for("INVALID_UNICODE"):
        with pytest.raises(UnicodeError):
            json.dumps(json.loads(line.decode()), ensure_ascii=False).encode()


def test_duplicate_keys_are_duplicate_after_unescaping():
    def unique(pairs):
        names = [name for name, _ in pairs]
        if len(names) != len(set(names)):
            raise KeyError(names)
        return dict(pairs)

    for line in refused_for("DUPLICATE_KEY"):
        with pytest.raises(KeyError):
            json.loads(line, object_pairs_hook=unique)


def test_deep_lines_nest_more_than_200_levels():
    for line in refused_for("TOO_DEEP"):
        depth, value = 0, json.loads(line)
        value = value["payload"]["reading"]
        while isinstance(value, list | dict):
            value = value[0] if isinstance(value, list) else value["a"]
            depth += 1
        assert depth >= 200


def test_numbers_do_not_survive_a_double():
    for line in refused_for("NUMBER_NOT_REPRESENTABLE"):
        spelled = json.loads(line, parse_float=str, parse_int=str)["payload"]["reading"]
        assert repr(float(spelled)).removesuffix(".0") != spelled


@pytest.mark.parametrize(
    ("reason", "section", "field"),
    [
        ("IDENTITY_INVALID", "metadata", "eventId"),
        ("TIMESTAMP_INVALID", "metadata", "timestamp"),
        ("NO_PARTITION_FIELD", "metadata", "partitionKey"),
        ("UNKNOWN_SCHEMA_VERSION", "metadata", "schemaVersion"),
        ("UNKNOWN_EVENT_TYPE", "metadata", "eventType"),
    ],
)
def test_one_field_is_wrong_and_the_others_are_right(reason, section, field):
    good = json.loads(stream()[0].line)[section]
    assert refused_for(reason)
    for line in refused_for(reason):
        found = json.loads(line)[section]
        assert good.keys() - found.keys() <= {field}
        assert all(type(found[name]) is type(good[name]) for name in found if name != field)


def test_schema_violations_are_in_the_item_field():
    for line in refused_for("SCHEMA_VIOLATION"):
        payload = json.loads(line)["payload"]
        items = [payload.get(f) for f in ("url", "productId", "endpoint", "searchQuery")]
        assert not any(isinstance(item, str) for item in items)


def test_far_timestamps_are_on_the_right_side_of_the_stream():
    for delivery in stream():
        if delivery.reason == "TOO_FAR_IN_FUTURE":
            assert milliseconds(delivery) > OPTIONS.last_ms + 9 * 365 * DAY_MS
        elif delivery.reason == "TOO_OLD":
            assert milliseconds(delivery) < OPTIONS.last_ms - 199 * DAY_MS


def test_the_large_line_is_large():
    assert all(len(line) > 900_000 for line in refused_for("PAYLOAD_TOO_LARGE"))


def test_lines_that_are_no_envelope_are_still_json():
    for line in refused_for("NOT_AN_ENVELOPE"):
        value = json.loads(line)
        metadata = value.get("metadata") if isinstance(value, dict) else None
        whole = isinstance(metadata, dict) and "source" in metadata and "payload" in value
        assert not whole


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


# The command


COMMAND = "import typer; from admitone.cli.generate import generate; typer.run(generate)"


def run_command(*arguments):
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, check=False, timeout=60
    )


def test_the_command_writes_lines_to_stdout_and_the_truth_to_its_file(tmp_path):
    path = tmp_path / "truth.json"
    done = run_command("--events", "1000", "--run", "r9", "--truth", str(path))
    lines = done.stdout.split(b"\n")[:-1]
    truth = Truth.load(path)

    assert done.returncode == 0
    assert len(lines) == len(truth.decisions) == 1_000
    assert truth.run_id == "r9"
    assert json.loads(lines[0])["metadata"]["eventId"] == truth.decisions[0][0]


def test_the_command_refuses_shares_that_leave_nothing():
    assert run_command("--events", "10", "--duplicates", "1").returncode == 2


def test_a_reader_that_stops_early_is_no_error():
    script = f'"{sys.executable}" -c "{COMMAND}" --events 20000 | head -n 1'
    done = subprocess.run(script, shell=True, capture_output=True, check=False, timeout=60)

    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""
