"""Step 1: every kind of bad input has a reason of its own, and time is never the clock's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admitone.boundary.rules import envelope_rules
from admitone.core.decisions import Reason
from admitone.core.envelope import EnvelopeRules, Event, Refusal, read_envelope, timestamp_ms
from admitone.settings import load_settings

NOW = 1_748_755_845_123
DAY = 86_400_000


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> EnvelopeRules:
    return envelope_rules(
        load_settings(tmp_path_factory.mktemp("home"), pipeline={"run_id": "configured"})
    )


def envelope(metadata: dict[str, Any] | None = None, payload: Any = None, **other: Any) -> bytes:
    document = {
        "metadata": {
            "eventId": "e1",
            "eventType": "page_view",
            "source": "web",
            "timestamp": "2025-06-01T05:30:45.123Z",
            "partitionKey": "user_1",
            "schemaVersion": 1,
            **(metadata or {}),
        },
        "payload": {"url": "/a", "loadTimeMs": 12} if payload is None else payload,
        **other,
    }
    for name, value in list(document["metadata"].items()):
        if value is ...:
            del document["metadata"][name]
    return json.dumps(document).encode()


def read(
    rules: EnvelopeRules, raw: bytes | None, stream_time: int | None = None, **headers: bytes
) -> Event | Refusal:
    return read_envelope(raw, headers, NOW, stream_time, rules)


def test_a_good_envelope_is_an_event(rules: EnvelopeRules) -> None:
    event = read(rules, envelope())
    assert isinstance(event, Event)
    assert (event.run_id, event.event_class, event.event_id) == ("configured", "page_view", "e1")
    assert event.event_time == NOW
    assert event.business_key == "user_1"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, Reason.NOT_JSON),
        (b"no json", Reason.NOT_JSON),
        (b'{"metadata": {"a": 1, "a": 2}}', Reason.DUPLICATE_KEY),
        (b"[]", Reason.NOT_AN_ENVELOPE),
        (b'"text"', Reason.NOT_AN_ENVELOPE),
        (b"{}", Reason.NOT_AN_ENVELOPE),
        (b'{"metadata": {}, "payload": []}', Reason.NOT_AN_ENVELOPE),
        (b'{"metadata": 1, "payload": {}}', Reason.NOT_AN_ENVELOPE),
        (envelope({"source": ...}), Reason.NOT_AN_ENVELOPE),
        (envelope({"source": 3}), Reason.NOT_AN_ENVELOPE),
        (envelope({"eventId": ...}), Reason.IDENTITY_INVALID),
        (envelope({"eventId": ""}), Reason.IDENTITY_INVALID),
        (envelope({"eventId": 7}), Reason.IDENTITY_INVALID),
        (envelope({"eventType": ...}), Reason.IDENTITY_INVALID),
        (envelope({"runId": ""}), Reason.IDENTITY_INVALID),
        (envelope({"runId": None}), Reason.IDENTITY_INVALID),
        (envelope({"eventClass": 1}), Reason.IDENTITY_INVALID),
        (envelope({"eventType": "dance"}), Reason.UNKNOWN_EVENT_TYPE),
        (envelope({"eventType": 5, "eventClass": "c"}), Reason.UNKNOWN_EVENT_TYPE),
        (envelope({"schemaVersion": 99}), Reason.UNKNOWN_SCHEMA_VERSION),
        (envelope({"schemaVersion": "1"}), Reason.UNKNOWN_SCHEMA_VERSION),
        (envelope({"schemaVersion": True}), Reason.UNKNOWN_SCHEMA_VERSION),
        (envelope({"schemaVersion": ...}), Reason.UNKNOWN_SCHEMA_VERSION),
        (envelope(payload={}), Reason.SCHEMA_VIOLATION),
        (envelope(payload={"url": 5}), Reason.SCHEMA_VIOLATION),
        (envelope(payload={"url": "/a", "loadTimeMs": "12"}), Reason.SCHEMA_VIOLATION),
        (envelope({"timestamp": ...}), Reason.TIMESTAMP_INVALID),
        (envelope({"timestamp": "2025-06-01T05:30:45.123"}), Reason.TIMESTAMP_INVALID),
        (envelope({"timestamp": 1748755845123}), Reason.TIMESTAMP_INVALID),
        (envelope({"timestamp": "2025-06-01T06:30:45.124Z"}), Reason.TOO_FAR_IN_FUTURE),
        (envelope({"partitionKey": ...}), Reason.NO_PARTITION_FIELD),
        (envelope({"partitionKey": ""}), Reason.NO_PARTITION_FIELD),
        (envelope(payload={"url": "x" * 900_000}), Reason.PAYLOAD_TOO_LARGE),
    ],
)  # fmt: skip
def test_each_kind_of_bad_input_has_its_own_reason(
    rules: EnvelopeRules, raw: bytes | None, reason: Reason
) -> None:
    found = read(rules, raw)
    assert isinstance(found, Refusal)
    assert found.reason is reason


def test_exactly_the_tolerance_ahead_is_not_too_far_in_the_future(rules: EnvelopeRules) -> None:
    assert isinstance(read(rules, envelope({"timestamp": "2025-06-01T06:30:45.123Z"})), Event)


@pytest.mark.parametrize(
    ("age", "old"), [(100 * DAY - 1, False), (100 * DAY, True), (100 * DAY + 1, True)]
)
def test_too_old_is_judged_by_stream_time_to_the_millisecond(
    rules: EnvelopeRules, age: int, old: bool
) -> None:
    found = read(rules, envelope(), stream_time=NOW + age)
    assert isinstance(found, Refusal) is old
    if isinstance(found, Refusal):
        assert found.reason is Reason.TOO_OLD


def test_without_stream_time_nothing_is_too_old(rules: EnvelopeRules) -> None:
    assert isinstance(read(rules, envelope({"timestamp": "1969-07-20T20:17:40Z"})), Event)


def test_the_run_comes_from_the_envelope_then_the_header_then_the_configuration(
    rules: EnvelopeRules,
) -> None:
    assert read(rules, envelope({"runId": "own"}), runId=b"header").run_id == "own"
    assert read(rules, envelope(), runId=b"header").run_id == "header"
    assert read(rules, envelope()).run_id == "configured"


def test_a_delivery_whose_run_cannot_be_read_belongs_to_its_header_or_the_configured_run(
    rules: EnvelopeRules,
) -> None:
    assert read(rules, b"no json", runId=b"header").run_id == "header"
    assert read(rules, envelope({"runId": 5}), runId=b"header").run_id == "header"
    assert read(rules, envelope({"runId": 5})).run_id == "configured"
    assert read(rules, b"no json", runId=b"\xff").run_id == "configured"


def test_the_class_can_differ_from_the_type(rules: EnvelopeRules) -> None:
    assert read(rules, envelope({"eventClass": "c"}), eventClass=b"h").event_class == "c"
    assert read(rules, envelope(), eventClass=b"h").event_class == "h"


def test_the_payload_hash_sees_only_the_payload(rules: EnvelopeRules) -> None:
    one = read(rules, envelope())
    two = read(rules, envelope({"partitionKey": "other", "source": "other"}, extra=1))
    other = read(rules, envelope(payload={"url": "/a", "loadTimeMs": 13}))
    assert isinstance(one, Event)
    assert isinstance(two, Event)
    assert isinstance(other, Event)
    assert one.payload_hash == two.payload_hash != other.payload_hash


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1969-12-31T23:59:59.9994Z", -1),
        ("2025-06-01T05:30:45.123456Z", NOW),
        ("2025-06-01T05:30Z", NOW - 45_123),
        ("2024-02-29T00:00:00-0830", 1_709_195_400_000),
    ],
)
def test_timestamps_with_a_zone_are_floored_to_a_millisecond(text: str, moment: int) -> None:
    assert timestamp_ms(text) == moment


@pytest.mark.parametrize(
    "text",
    [
        None, 5, "", "now", "2025-06-01", "2025-06-01T05:30:45", "2025-13-01T00:00:00Z",
        "2025-02-29T00:00:00Z", "2025-06-01 05:30:45Z", "2025-06-01T05:30:60Z", "2025-W22-7T05:30:45Z",
        "٢٠٢٥-06-01T05:30:45Z", "2025-06-01T05:30:45Z\n", "0000-01-01T00:00:00Z",
        "2025-06-01T24:00:00Z", "2025-06-01T24:00:00.000Z", "2025-06-01T05:30:45+05:60", "2025-06-01T05:30:45-0599",
    ],
)  # fmt: skip
def test_other_timestamps_are_refused(text: object) -> None:
    assert timestamp_ms(text) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "eventId",
                "eventType",
                "source",
                "timestamp",
                "partitionKey",
                "schemaVersion",
                "runId",
                "eventClass",
            ]
        ),
        json_values,
    ),
    json_values,
)
def test_no_envelope_raises(rules: EnvelopeRules, metadata: dict[str, Any], payload: Any) -> None:
    raw = envelope(metadata, payload)
    found = read(rules, raw)
    assert isinstance(found, Event | Refusal)
    assert found.run_id
