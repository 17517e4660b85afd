"""TOP-2, TOP-3: from an event to the items it is counted under."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admitone.analytics.item_reader import ItemReader
from admitone.core.items import (
    MAX_CHARACTERS,
    MAX_WEIGHT,
    ItemRule,
    field_of,
    list_name,
    spelled,
    split_list,
    weighed,
)

PAGES = ItemRule("page_view", "url", "url", "url", ("deviceType", "pageCategory"))
CALLS = ItemRule("api_request", "apiEndpoint", "endpoint", "api", ("statusCode",))
BASKET = ItemRule("purchase", "purchase", "basket.productId", "purchase", (), "quantity")


class Item(NamedTuple):
    """One count an event adds: the list, what is counted in it, how much."""

    dimension_list: str
    key: str
    weight: int


def lists(rule: ItemRule, values: Iterable[str | None]) -> list[str]:
    grouped = zip(rule.group_by, values, strict=True)
    return [
        rule.dimension,
        *(list_name(rule.dimension, name, value) for name, value in grouped if value is not None),
    ]


def counted(rules: list[ItemRule], lines: list[bytes]) -> list[tuple[int, Item]]:
    """Return what the reader finds in events, by the row of the event."""
    understood, found = ItemReader(rules).read(lines)
    assert understood.all()
    return [
        (row, Item(name, key, weight))
        for items in found
        for row, key, weight, *values in zip(
            items.rows.tolist(), items.keys.to_pylist(), items.weights.tolist(),
            *(column.to_pylist() for column in items.values), strict=True,
        )
        for name in lists(rules[items.rule], values)
    ]  # fmt: skip


def items_of(rules: list[ItemRule], event_type: str, payload: dict[str, Any]) -> list[Item]:
    line = orjson.dumps({"metadata": {"eventType": event_type}, "payload": payload})
    return [item for _, item in counted(rules, [line])]


def by_itself(rules: list[ItemRule], event_type: str, payload: dict[str, Any]) -> Iterator[Item]:
    """Yield the items of one event, field by field: what the reader must find by the column."""
    for rule in rules:
        key = spelled(field_of(rule.item)(payload))
        if rule.event_type == event_type and key is not None:
            weight = weighed(field_of(rule.weight)(payload)) if rule.weight else 1
            values = [spelled(field_of(attribute)(payload)) for attribute in rule.group_by]
            yield from (Item(name, key, weight) for name in lists(rule, values))


def test_an_event_feeds_its_list_and_one_list_for_each_attribute_it_carries():
    payload = {"url": "/shoes", "deviceType": "mobile", "pageCategory": "sale"}

    assert items_of([PAGES], "page_view", payload) == [
        Item("url", "/shoes", 1),
        Item("url|deviceType=mobile", "/shoes", 1),
        Item("url|pageCategory=sale", "/shoes", 1),
    ]


@pytest.mark.parametrize(
    "absent", [{}, {"deviceType": None}, {"deviceType": ""}, {"deviceType": []}]
)
def test_an_attribute_without_a_value_has_no_list(absent):
    assert items_of([PAGES], "page_view", {"url": "/", **absent}) == [Item("url", "/", 1)]


def test_a_number_is_spelled_in_decimal():
    items = items_of([CALLS], "api_request", {"endpoint": "/v1", "statusCode": 404})

    assert items[1].dimension_list == "apiEndpoint|statusCode=404"
    assert spelled(10**20) == "100000000000000000000"
    assert spelled(1.5) == "1.5"
    assert spelled(True) == "true"


@pytest.mark.parametrize("payload", [{}, {"url": None}, {"url": ""}, {"url": {"a": 1}}])
def test_an_event_without_its_item_field_counts_nothing(payload):
    assert items_of([PAGES], "page_view", payload) == []


def test_an_unknown_event_type_counts_nothing():
    assert items_of([PAGES], "heartbeat", {"url": "/"}) == []


@pytest.mark.parametrize(
    ("weight", "counted"),
    [(3, 3), (None, 1), (0, 1), (-2, 1), ("3", 1), (2.0, 1), (True, 1), (1 << 40, MAX_WEIGHT)],
)
def test_a_weight_is_a_positive_integer_or_one(weight, counted):
    payload = {"basket": {"productId": "p1"}, "quantity": weight}

    assert items_of([BASKET], "purchase", payload) == [Item("purchase", "p1", counted)]


def test_a_field_can_lie_deeper():
    assert items_of([BASKET], "purchase", {"basket": "p1"}) == []


def test_two_rules_count_one_event_twice_under_two_dimensions():
    agents = ItemRule("page_view", "userAgent", "userAgent", "agent")
    items = items_of([PAGES, agents], "page_view", {"url": "/", "userAgent": "curl"})

    assert [item.dimension_list for item in items] == ["url", "userAgent"]


def test_a_long_item_is_shortened_and_stays_itself():
    one, other = "x" * 10_000 + "1", "x" * 10_000 + "2"

    assert len(spelled(one) or "") == MAX_CHARACTERS
    assert spelled(one) != spelled(other)
    assert spelled("x" * MAX_CHARACTERS) == "x" * MAX_CHARACTERS


def test_a_list_name_is_read_back_whatever_the_value_contains():
    assert split_list("url|pageCategory=a|b=c:d") == ("url", "pageCategory", "a|b=c:d")
    assert split_list("url") == ("url", None, None)


fields = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 10**20), st.floats(allow_nan=False),
    st.text(max_size=3), st.just("x" * 600), st.just([1]), st.just({"productId": "p"}),
)  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["page_view", "api_request", "purchase", "heartbeat"]),
            st.dictionaries(
                st.sampled_from(
                    [
                        "url",
                        "deviceType",
                        "pageCategory",
                        "endpoint",
                        "statusCode",
                        "basket",
                        "quantity",
                    ]
                ),
                fields,
            ),
        ),
        max_size=12,
    )
)
@settings(max_examples=200, deadline=None)
def test_by_the_column_the_same_is_found_as_event_by_event(events):
    rules = [PAGES, CALLS, BASKET]
    lines = [
        orjson.dumps({"metadata": {"eventType": kind}, "payload": payload}, default=str)
        if all(not isinstance(v, int) or abs(v) < 2**63 for v in payload.values())
        else json.dumps({"metadata": {"eventType": kind}, "payload": payload}).encode()
        for kind, payload in events
    ]
    parsed = [orjson.loads(line)["payload"] for line in lines]
    expected = Counter(
        (row, item)
        for row, ((kind, _), payload) in enumerate(zip(events, parsed, strict=True))
        for item in by_itself(rules, kind, payload)
    )

    assert Counter(counted(rules, lines)) == expected
