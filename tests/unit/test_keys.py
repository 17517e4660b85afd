"""Keys of a dedup pipeline: one for each value whatever its spelling, none for a record without its field."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from admitone.core.decisions import Reason
from admitone.core.errors import ConfigurationError
from admitone.core.identity import identity_of
from admitone.core.keys import Key, KeyRule, shortened, spelled
from admitone.settings import load_settings

FIELD = KeyRule.of("field", ["payload.orderId"])
BUSINESS = KeyRule.of("business", ["payload.merchant", "payload.order.id"])
CONTENT = KeyRule.of("content")
IDENTITY = KeyRule.of("identity")

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)
tricky = st.sampled_from(
    [
        "json:7",
        "json:",
        "sha256:x",
        'json:"a"',
        "7",
        "7.0",
        "true",
        "null",
        "[1]",
        "a" * 64,
        "a" * 65,
    ]
) | st.text(st.sampled_from('json:sha256"[],7\\'), max_size=12)
scalars = (
    text.filter(bool)
    | tricky
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
names = st.text(st.sampled_from("ab:1é"), min_size=1, max_size=3)
paths = st.lists(
    st.lists(names, min_size=1, max_size=3).map(".".join), min_size=1, max_size=3, unique=True
)


def typed(value: Any) -> Any:
    """Return what a JSON value is, apart from its spelling: Python takes True, 1 and 1.0 for the same."""
    if isinstance(value, list):
        return [typed(member) for member in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return type(value).__name__, value


def document(fields: list[str], values: list[Any]) -> Any:
    """Return a document that holds a value at each path, or None where one path leads through another."""
    made: dict[str, Any] = {}
    for field, value in zip(fields, values, strict=True):
        *parents, name = field.split(".")
        inner: Any = made
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                return None
        if name in inner:
            return None
        inner[name] = value
    return made


def key(rule: KeyRule, value: Any, **outside: str) -> Key:
    found = rule.read(json.dumps(value).encode(), outside)
    assert isinstance(found, Key), found
    return found


@pytest.mark.parametrize(
    ("rule", "raw", "shown", "identity"),
    [
        (FIELD, '{"payload": {"orderId": "order-7"}}', "order-7",
         "65746cac7638cde9c7385f3a89328550613cfe2cfce63afe8245315c953c837f"),
        (FIELD, '{"payload": {"orderId": 7.0}}', "json:7",
         "7b7e5d234936d2d5fad572262d49d4b60818f4ecdbb59c0abe57020d807083b1"),
        (FIELD, '{"payload": {"orderId": "json:7"}}', 'json:"json:7"',
         "b9221eb421d3a4e05501ce4a1f1761f499de9d58e36e439e889248820e960401"),
        (FIELD, '{"payload": {"orderId": "' + "x" * 64 + '"}}', "x" * 64,
         "16fbc58252c56667fe153c76c67933c8b5cf16b161c905bf004ddbf10a3b0851"),
        (FIELD, '{"payload": {"orderId": "' + "x" * 65 + '"}}',
         "sha256:lTfF_fEgSC99WNJentWD9SwCtOME6oFNsWM61WWu1-k",
         "4735867b6e69d68557258113d0c1a22f56e35cc79a87ca2ed1560389c885cc7b"),
        (BUSINESS, '{"payload": {"merchant": "m1", "order": {"id": 7}}}', 'json:["m1",7]',
         "b9da867f8079c6e060056f24ab144fbcc04e643f8a0974a117599f3330c9b8ed"),
        (CONTENT, '{"payload": {"b": 1, "a": "x"}}',
         "sha256:zasGfp876zLRJSz9Y-SSWS_sv1kbDQjK2yS7F_OGQkY",
         "84a4ba0f6d0bc215fe32addc278aa872d4e4fcb9d3d789c79e03000e8b085e15"),
        (IDENTITY, '{"metadata": {"runId": "run", "eventType": "page_view", "eventId": "e1"}}',
         'json:["run","page_view","e1"]',
         "1ec17180eee73daf2909276a295f282644940932e672c4a4b724d319da27ba8b"),
    ],
)  # fmt: skip
def test_keys_are_pinned(rule: KeyRule, raw: str, shown: str, identity: str) -> None:
    found = rule.read(raw.encode())
    assert isinstance(found, Key)
    assert (found.text, found.identity.hex()) == (shown, identity)


def test_the_encoding_behind_an_identity_is_the_documented_one() -> None:
    """Written out by hand: the strategy, its paths with their counts, the text; each after its length."""
    encoded = (
        "admitone/key/1\0"
        "8:business" "1:2" "1:2" "7:payload" "8:merchant" "1:3" "7:payload" "5:order" "2:id"
        '13:json:["m1",7]'
    )  # fmt: skip
    found = key(BUSINESS, {"payload": {"merchant": "m1", "order": {"id": 7}}})
    assert found.identity == hashlib.sha256(encoded.encode()).digest()


def test_a_content_key_is_the_hash_over_canonical_json() -> None:
    digest = hashlib.sha256(b'{"a":"x","b":1}').digest()
    found = key(CONTENT, {"payload": {"b": 1.0, "a": "x"}, "metadata": {"eventId": "any"}})
    assert found.text == "sha256:" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
    part = KeyRule.of("content", ["payload.body"])
    assert key(part, {"payload": {"body": {"b": 1, "a": "x"}, "seen": 2}}).text == found.text


def test_the_canonical_identity_is_the_boundarys() -> None:
    envelope = {"metadata": {"eventType": "page_view", "eventId": "e1"}, "payload": {}}
    assert key(IDENTITY, envelope, runId="r").identity == identity_of("r", "page_view", "e1")
    assert (
        key(IDENTITY, envelope, runId="r", eventClass="c").identity == identity_of("r", "c", "e1")
    )  # fmt: skip
    envelope["metadata"] |= {"runId": "own", "eventClass": "web"}
    found = key(IDENTITY, envelope, runId="r", eventClass="c")
    assert found.identity == identity_of("own", "web", "e1")


@settings(max_examples=1_000, deadline=None)
@given(scalars, scalars)
@example(True, 1)
@example(7, "7")
@example("json:7", 7)
@example("7", 7.0)
@example(-0.0, 0)
@example("sha256:lTfF_fEgSC99WNJentWD9SwCtOME6oFNsWM61WWu1-k", "x" * 65)
def test_two_values_share_a_key_only_if_they_are_the_same(one: Any, two: Any) -> None:
    keys = [FIELD.key_of({"payload": {"orderId": value}}) for value in (one, two)]
    if "" in (one, two):
        assert Reason.IDENTITY_INVALID in keys
        return
    same = typed(one) == typed(two)
    assert (keys[0].text == keys[1].text) is same
    assert (keys[0].identity == keys[1].identity) is same
    assert all(len(found.text) <= 64 and len(found.identity) == 32 for found in keys)


@settings(max_examples=1_000, deadline=None)
@given(paths, paths, st.data())
def test_two_rules_or_two_lists_of_values_never_share_an_identity(
    one: list[str], two: list[str], data: st.DataObject
) -> None:
    first = [data.draw(scalars.filter(lambda value: value != "")) for _ in one]
    second = first if one == two and data.draw(st.booleans()) else [
        data.draw(scalars.filter(lambda value: value != "")) for _ in two
    ]  # fmt: skip
    documents = document(one, first), document(two, second)
    if None in documents:
        return
    strategies = [
        data.draw(st.sampled_from(["business", "field"] if len(fields) == 1 else ["business"]))
        for fields in (one, two)
    ]
    identities = [
        KeyRule.of(strategy, fields).key_of(found).identity
        for strategy, fields, found in zip(strategies, (one, two), documents, strict=True)
    ]
    same = (strategies[0], one, typed(first)) == (strategies[1], two, typed(second))
    assert (identities[0] == identities[1]) is same


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(text, scalars, min_size=1, max_size=6), st.randoms())
def test_another_spelling_of_the_same_json_has_the_same_key(
    payload: dict[str, Any], rng: Any
) -> None:
    payload["orderId"] = payload.get("orderId") or "x"
    pairs = list(payload.items())
    rng.shuffle(pairs)
    plain = json.dumps({"payload": payload}, ensure_ascii=False).encode()
    other = json.dumps({"other": [1], "payload": dict(pairs)}, indent=3).encode()
    for rule in (FIELD, CONTENT):
        assert rule.read(plain) == rule.read(other)


@pytest.mark.parametrize(
    "spelling", ["100", "1e2", "100.0", "1.00E+2", " 100 ", "0.1e3"]
)  # fmt: skip
def test_a_numbers_spelling_does_not_matter(spelling: str) -> None:
    found = FIELD.read(b'{"payload": {"orderId": %s}}' % spelling.encode())
    assert isinstance(found, Key)
    assert found.text == "json:100"


@given(text | tricky)
def test_a_hashed_text_is_never_that_of_something_shorter(value: str) -> None:
    shown = shortened(spelled(value))
    assert len(shown) <= 64
    assert shown.startswith("sha256:") is (len(spelled(value)) > 64)


@pytest.mark.parametrize(
    ("rule", "raw", "reason"),
    [
        (FIELD, b'{"payload": {}}', Reason.IDENTITY_INVALID),
        (FIELD, b'{"payload": {"orderId": null}}', Reason.IDENTITY_INVALID),
        (FIELD, b'{"payload": {"orderId": ""}}', Reason.IDENTITY_INVALID),
        (FIELD, b'{"payload": {"orderId": []}}', Reason.IDENTITY_INVALID),
        (FIELD, b'{"payload": {"orderId": {"a": 1}}}', Reason.IDENTITY_INVALID),
        (FIELD, b'{"payload": "text"}', Reason.IDENTITY_INVALID),
        (FIELD, b'{"payload.orderId": "7"}', Reason.IDENTITY_INVALID),
        (FIELD, b"[]", Reason.NOT_AN_ENVELOPE),
        (FIELD, b"7", Reason.NOT_AN_ENVELOPE),
        (FIELD, None, Reason.NOT_JSON),
        (FIELD, b"", Reason.NOT_JSON),
        (FIELD, b"{", Reason.NOT_JSON),
        (FIELD, b'{"payload": {"orderId": NaN}}', Reason.NOT_JSON),
        (FIELD, b'{"payload": {"orderId": "\xff"}}', Reason.INVALID_UNICODE),
        (FIELD, b'{"payload": {"orderId": "\\ud800"}}', Reason.INVALID_UNICODE),
        (FIELD, b'{"payload": {"orderId": 1, "orderId": 2}}', Reason.DUPLICATE_KEY),
        (FIELD, b'{"payload": {"orderId": 9007199254740993}}', Reason.NUMBER_NOT_REPRESENTABLE),
        (FIELD, b"[" * 100 + b"]" * 100, Reason.TOO_DEEP),
        (BUSINESS, b'{"payload": {"merchant": "m1"}}', Reason.IDENTITY_INVALID),
        (BUSINESS, b'{"payload": {"order": {"id": 1}}}', Reason.IDENTITY_INVALID),
        (CONTENT, b'{"metadata": {}}', Reason.IDENTITY_INVALID),
        (CONTENT, b'{"payload": null}', Reason.IDENTITY_INVALID),
        (IDENTITY, b'{"payload": {}}', Reason.NOT_AN_ENVELOPE),
        (IDENTITY, b'{"metadata": {"eventType": "a", "eventId": "e"}}', Reason.IDENTITY_INVALID),
        (IDENTITY, b'{"metadata": {"runId": "r", "eventType": "a"}}', Reason.IDENTITY_INVALID),
        (
            IDENTITY,
            b'{"metadata": {"runId": "r", "eventType": "a", "eventId": 7}}',
            Reason.IDENTITY_INVALID,
        ),
    ],
)
def test_a_record_without_its_field_has_a_reason_instead_of_a_key(
    rule: KeyRule, raw: bytes | None, reason: Reason
) -> None:
    assert rule.read(raw) is reason


@pytest.mark.parametrize(
    ("strategy", "fields", "said"),
    [
        ("identity", ["payload.a"], "takes no key_fields, got 1"),
        ("field", [], "takes one of key_fields, got 0"),
        ("field", ["a", "b"], "takes one of key_fields, got 2"),
        ("business", [], "takes 1 to 32 key_fields"),
        ("content", ["a", "b"], "one of key_fields at most"),
        ("field", ["payload..a"], "a path such as payload.orderId, got 'payload..a'"),
        ("field", [""], "got ''"),
        ("business", ["a", "a"], "names a field twice"),
        ("random", [], "'random' is not a valid KeyStrategy"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(strategy: str, fields: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace(".", r"\.")):
        KeyRule.of(strategy, fields)


def test_a_configured_key_without_its_fields_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="key 'field' takes one of key_fields, got 0"):
        load_settings(tmp_path, dedup={"key": "field"})
    dedup = load_settings(tmp_path, dedup={"key": "business", "key_fields": ["a", "b.c"]}).dedup
    assert KeyRule.of(dedup.key, dedup.key_fields).paths == (("a",), ("b", "c"))
