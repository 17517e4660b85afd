"""Malformed deliveries break the rule they are refused for, and no other."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from admitone.demo.traffic.malformed import MALFORMED_REASONS
from tests.support.recorded_traffic import DAY_MS, OPTIONS, milliseconds, refused_for, stream


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
    far = [milliseconds(d) for d in stream() if d.reason == "TOO_FAR_IN_FUTURE"]
    old = [milliseconds(d) for d in stream() if d.reason == "TOO_OLD"]

    assert min(far) > OPTIONS.last_ms + 9 * 365 * DAY_MS
    assert max(old) < OPTIONS.last_ms - 199 * DAY_MS


def test_the_large_line_is_large():
    assert all(len(line) > 900_000 for line in refused_for("PAYLOAD_TOO_LARGE"))


def test_lines_that_are_no_envelope_are_still_json():
    for line in refused_for("NOT_AN_ENVELOPE"):
        value = json.loads(line)
        metadata = value.get("metadata") if isinstance(value, dict) else None
        whole = isinstance(metadata, dict) and "source" in metadata and "payload" in value
        assert not whole
