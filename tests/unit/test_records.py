"""Who a record of a dedup pipeline is, when, and how its evidence says so."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admitone.core.keys import Key, KeyRule
from admitone.core.records import labelled, moment_of
from admitone.transport.headers import after_headers, pairs_of
from admitone.transport.port import HEADERS_TYPE, OUTGOING_SCHEMA

RULES = [
    KeyRule.of("field", ["order.id"]),
    KeyRule.of("field", ['a "quoted" name.b,c']),
    KeyRule.of("business", ["order.id", "shop"]),
    KeyRule.of("content"),
    KeyRule.of("content", ["order"]),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_a_label_names_its_rule(rule: KeyRule) -> None:
    assert labelled(rule.label) == (rule, "")


@given(run=st.text())
def test_the_label_of_the_canonical_identity_names_the_default_run(run: str) -> None:
    assert labelled(f"identity@{run}") == (KeyRule.of("identity"), run)


@pytest.mark.parametrize(
    "label", ["", "fields", "field", "field[", 'field["a","b"]', 'content[""]']
)
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        labelled(label)


@given(
    rule=st.sampled_from(RULES[::2]),
    value=st.one_of(st.text(min_size=1), st.integers(-(2**50), 2**50), st.booleans()),
)
def test_a_keys_text_gives_its_identity_unless_it_was_shortened(
    rule: KeyRule, value: str | int | bool
) -> None:
    key = rule.key_of({"order": {"id": value}, "shop": 1})
    assert isinstance(key, Key)
    found = rule.identity_of_text(key.text)

    shortened = key.text.startswith("sha256:") and rule.strategy != "content"
    assert found == (None if shortened else key.identity)


def test_the_canonical_identity_is_given_back_by_its_text() -> None:
    rule = KeyRule.of("identity")
    for event_id in ("e1", "x" * 64):
        metadata = {"eventId": event_id, "eventType": "t"}
        key = rule.key_of({"metadata": metadata}, {"runId": "r"})
        assert isinstance(key, Key)
        expected = key.identity if event_id == "e1" else None
        assert rule.identity_of_text(key.text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_767_607_200_123, 1_767_607_200_123),
        (-1, -1),
        ("2026-01-05T10:00:00.123Z", 1_767_607_200_123),
        ("2026-01-05T11:00:00.123+01:00", 1_767_607_200_123),
        ("2026-01-05T10:00:00", None),
        (1_767_607_200.5, None),
        (True, None),
        (None, None),
        (10**15, None),
    ],
)
def test_a_moment_is_a_timestamp_with_a_zone_or_whole_milliseconds(
    value: object, expected: int | None
) -> None:
    assert moment_of(json.loads(json.dumps({"a": {"b": value}})), "a.b") == expected


pairs = st.lists(
    st.tuples(st.sampled_from(["x", "y", "origin"]), st.binary(max_size=3)), max_size=4
)


@given(rows=st.lists(pairs, min_size=1, max_size=6))
def test_headers_of_ours_follow_those_a_record_came_with(
    rows: list[list[tuple[str, bytes]]],
) -> None:
    """An origin is ours too: what a released record says of an earlier one is replaced."""
    came = pa.chunked_array(
        [pa.array([[{"key": k, "value": v} for k, v in row] for row in rows], HEADERS_TYPE)]
    )
    size = len(rows)
    ours = pa.StructArray.from_arrays([pa.array([b"%d" % n for n in range(size)])], ["mine"])
    columns = [pa.array([0] * size, pa.int32()), *[pa.nulls(size, pa.binary())] * 2, ours]
    leaving = after_headers(came, pa.table(columns, names=OUTGOING_SCHEMA.names))

    assert list(pairs_of(leaving)) == [
        [*((k, v) for k, v in row if k != "origin"), ("mine", b"%d" % number)]
        for number, row in enumerate(rows)
    ]
