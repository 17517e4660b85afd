"""Canonical JSON: one spelling for each value, and a reason for everything that has none."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admitone.core.canonical import MAX_DEPTH, Refused, canonical_json, parse_strict
from admitone.core.decisions import Reason

exact_integers = st.integers(-(2**53) + 1, 2**53 - 1)
finite_floats = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=("Cs",)))
values = st.recursive(
    st.none() | st.booleans() | exact_integers | finite_floats | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=20,
)


def whole_where_possible(value: Any) -> Any:
    """Return the value as RFC 8785 sees it, where 1.0 and 1 are the same number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: whole_where_possible(member) for key, member in value.items()}
    if isinstance(value, list):
        return [whole_where_possible(member) for member in value]
    return value


@settings(max_examples=600, deadline=None)
@given(values)
@example({"b": 1, "a": [1.5, "é", {"\ud7ff": 1, "": 2, "\U0001f600": 3}]})
@example({"x": -0.0, "y": 1e21, "z": 1e-7, "w": 5e-324})
def test_the_fast_path_spells_as_the_reference_does(value: Any) -> None:
    parsed = parse_strict(json.dumps(value).encode())
    assert canonical_json(parsed) == rfc8785.dumps(whole_where_possible(value))


@settings(max_examples=300, deadline=None)
@given(values, st.randoms())
def test_order_space_and_escapes_do_not_change_the_spelling(value: Any, rng: Any) -> None:
    def shuffled(node: Any) -> Any:
        if isinstance(node, dict):
            pairs = list(node.items())
            rng.shuffle(pairs)
            return {key: shuffled(member) for key, member in pairs}
        return [shuffled(member) for member in node] if isinstance(node, list) else node

    plain = json.dumps(value, ensure_ascii=False).encode()
    other = json.dumps(shuffled(value), indent=3, ensure_ascii=True).encode()
    assert canonical_json(parse_strict(plain)) == canonical_json(parse_strict(other))


@given(values, values)
@settings(max_examples=300, deadline=None)
def test_different_values_have_different_spellings(one: Any, two: Any) -> None:
    spelled = [canonical_json(parse_strict(json.dumps(value).encode())) for value in (one, two)]
    same = rfc8785.dumps(whole_where_possible(one)) == rfc8785.dumps(whole_where_possible(two))
    assert (spelled[0] == spelled[1]) is same


@pytest.mark.parametrize(
    "spellings",
    [
        ["1", "1.0", "1e0", "10e-1", "1.000", "1" + "0" * 5_000 + "e-5000", "1." + "0" * 5_000],
        ["100", "1e2", "1.0E+2"],
        ["0", "-0", "0.0", "-0.0", "0e5"],
        ["0.1", "1e-1", "0.10"],
        ["100000000000000000000", "1e20", "1E20"],
    ],
)
def test_the_spelling_of_a_number_does_not_matter(spellings: list[str]) -> None:
    assert len({canonical_json(parse_strict(spelling.encode())) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", Reason.NOT_JSON),
        (b"{", Reason.NOT_JSON),
        (b'{"a": NaN}', Reason.NOT_JSON),
        (b"Infinity", Reason.NOT_JSON),
        (b'{"a": 01}', Reason.NOT_JSON),
        (b'{"a": 1.}', Reason.NOT_JSON),
        (b'{"a": 1} x', Reason.NOT_JSON),
        (b"{'a': 1}", Reason.NOT_JSON),
        (b'{"a": "\x01"}', Reason.NOT_JSON),
        (b'\xef\xbb\xbf{"a": 1}', Reason.NOT_JSON),
        (b'{"a": 1, "a": 2, }', Reason.NOT_JSON),
        (b'{"a": "\xff"}', Reason.INVALID_UNICODE),
        (b'{"a": "\\ud800"}', Reason.INVALID_UNICODE),
        (b'{"\\udfff": 1}', Reason.INVALID_UNICODE),
        (b'{"a": "\\ud83d\\u0041"}', Reason.INVALID_UNICODE),
        (b'{"a": "\\ud800", "a": 1}', Reason.INVALID_UNICODE),
        (b'{"a": 1, "a": "\\ud800"}', Reason.INVALID_UNICODE),
        (b'{"a": 1, "a": 1}', Reason.DUPLICATE_KEY),
        (b'{"a": {"b": 1, "\\u0062": 2}}', Reason.DUPLICATE_KEY),
        (b"[" * 65 + b"]" * 65, Reason.TOO_DEEP),
        (b"[" * 10_000 + b"]" * 10_000, Reason.TOO_DEEP),
        (b'{"a":' * 500 + b"1" + b"}" * 500, Reason.TOO_DEEP),
        (b"9007199254740993", Reason.NUMBER_NOT_REPRESENTABLE),
        (b"1152921504606846976", Reason.NUMBER_NOT_REPRESENTABLE),
        (b"1e400", Reason.NUMBER_NOT_REPRESENTABLE),
        (b"1e-400", Reason.NUMBER_NOT_REPRESENTABLE),
        (b"-1e999999999", Reason.NUMBER_NOT_REPRESENTABLE),
        (b"0.1000000000000000055511151231257827", Reason.NUMBER_NOT_REPRESENTABLE),
        (b"1" * 5_000, Reason.NUMBER_NOT_REPRESENTABLE),
        (b"0." + b"1" * 5_000, Reason.NUMBER_NOT_REPRESENTABLE),
    ],
)
def test_what_json_leaves_open_is_refused_by_its_own_reason(raw: bytes, reason: Reason) -> None:
    with pytest.raises(Refused) as refused:
        parse_strict(raw)
    assert refused.value.reason is reason


def test_the_deepest_allowed_nesting_is_allowed() -> None:
    parse_strict(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    try:
        parsed = parse_strict(raw)
    except Refused as refused:
        assert refused.reason in Reason
    else:
        assert json.loads(raw) == parsed


@settings(max_examples=400, deadline=None)
@given(st.text(st.sampled_from('{}[]",:0123456789.eE+-\\udaftrnl '), max_size=40))
def test_what_the_reference_parser_accepts_is_accepted_or_refused_for_a_reason(source: str) -> None:
    raw = source.encode()
    try:
        expected = json.loads(source, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        with pytest.raises(Refused):
            parse_strict(raw)
        return
    try:
        assert parse_strict(raw) == expected
    except Refused as refused:
        assert refused.reason in {
            Reason.DUPLICATE_KEY, Reason.NUMBER_NOT_REPRESENTABLE, Reason.INVALID_UNICODE
        }  # fmt: skip
