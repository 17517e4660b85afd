"""The generator: deliveries of every kind, in the shares that were asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import pytest

from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from tests.support.recorded_traffic import DAY_MS, MINUTE_MS, OPTIONS, milliseconds, stream

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


# The command


COMMAND = "import typer; from admitone.cli.generate_command import generate; typer.run(generate)"


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


def test_the_same_end_gives_the_same_bytes_whenever_they_are_made():
    made = run_command("--events", "500", "--until", "2026-01-05T19:00:00Z")

    assert made.stdout == b"".join(
        delivery.line + b"\n"
        for delivery in generate(GeneratorOptions(500, end_ms=1_767_639_600_000))
    )


def test_an_end_that_is_no_moment_is_refused():
    assert run_command("--events", "10", "--until", "yesterday").returncode == 2


def test_a_reader_that_stops_early_is_no_error():
    script = f'"{sys.executable}" -c "{COMMAND}" --events 20000 | head -n 1'
    done = subprocess.run(script, shell=True, capture_output=True, check=False, timeout=60)

    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""
