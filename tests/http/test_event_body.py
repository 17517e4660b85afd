"""An event's bytes leave a request as they came in."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admitone.service.http.event_body import NotAnArray, events_in

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(_VALUES, max_size=8), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_every_element_of_an_array_comes_out_with_its_own_bytes(values, indent, ascii_only):
    body = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode(
        "utf-8", "surrogatepass"
    )

    cut = events_in(body, lines=False)

    assert [json.loads(piece) for piece in cut] == values
    assert all(piece in body for piece in cut)


def test_what_a_parser_would_mend_is_kept_as_it_is():
    twice, large, nothing = b'{"a": 1, "a": 2}', b"1e999", b"nonsense"

    assert events_in(b"[%s, %s ,%s]" % (twice, large, nothing), lines=False) == [
        twice,
        large,
        nothing,
    ]


def test_lines_are_events_and_blank_ones_are_not():
    assert events_in(b'{"a": 1}\r\n\n  \n{"b"\n', lines=True) == [b'{"a": 1}', b'{"b"']


def test_one_object_is_one_event():
    assert events_in(b' {"a": [1, 2]}\n', lines=False) == [b'{"a": [1, 2]}']


def test_an_empty_array_holds_no_event():
    assert events_in(b"[ ]", lines=False) == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"7", b'"[]"', b"[", b"[1", b"[1,]", b"[,1]", b"[1,,2]", b"[1] 2", b"[1]]", b"[[1]",
        b'["never closed]', b'["\\"]', b"[{]", b"]",
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_cut_is_refused(body):
    with pytest.raises(NotAnArray):
        events_in(body, lines=False)


def test_cutting_takes_time_in_proportion_to_the_body():
    body = b'["' + b'\\"' * 1_000_000
    began = time.process_time()

    with pytest.raises(NotAnArray):
        events_in(body, lines=False)

    assert time.process_time() - began < 1.0
