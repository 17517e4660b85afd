"""Makers for the five event types: what a payload holds, which item it counts, in which lists.

What never changes about an item is rendered once, as a piece of JSON text; making an event is then one f-string around
a handful of drawn numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from json.encoder import encode_basestring as quoted
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from admitone.demo.traffic.values import (
    AGENTS,
    BRANDS,
    CUSTOMER_TYPES,
    DEVICES,
    ENDPOINTS,
    METHODS,
    PAGE_CATEGORIES,
    PAYMENTS,
    PRODUCT_CATEGORIES,
    PRODUCTS,
    QUERIES,
    REGIONS,
    RESULT_COUNTS,
    SEARCH_CATEGORIES,
    STATUS_CODES,
    URLS,
)


class Made(NamedTuple):
    """A payload and its partition key as JSON text, and where the event has to be counted."""

    payload: str
    partition_key: str
    item: str
    lists: tuple[str, ...]


Maker = Callable[[Generator, int], Iterator[Made]]
Draw = Callable[[Generator, int], list[int]]


class EventType(NamedTuple):
    """An event type and how its payloads are made."""

    name: str
    source: str
    item_field: str
    share: float
    make: Maker


def event_types(zipf: float) -> list[EventType]:
    """Return the five types, their items distributed by Zipf's law with this exponent."""
    url, product, endpoint, query = (
        _ranks(len(items), zipf) for items in (URLS, PRODUCTS, ENDPOINTS, QUERIES)
    )
    user, session, number = _below(50_000), _below(1 << 24), _below(1 << 40)
    return [
        EventType(
            "page_view", "web_application", "url", 0.40,
            _maker(_page_view, url, url, user, session, _index(DEVICES), _index(AGENTS), _below(4_000)),
        ),
        EventType(
            "product_view", "mobile_application", "productId", 0.25,
            _maker(_product_view, product, user, session, _below(120_000)),
        ),
        EventType(
            "api_request", "api_gateway", "endpoint", 0.20,
            _maker(
                _api_request, endpoint, number, _index(METHODS), _index(STATUS_CODES), _index(REGIONS),
                _below(3_000), _below(1_000_000),
            ),
        ),
        EventType(
            "search", "search_service", "searchQuery", 0.10,
            _maker(
                _search, query, user, session, _index(SEARCH_CATEGORIES), _index(RESULT_COUNTS), _below(900)
            ),
        ),
        EventType(
            "purchase", "order_service", "productId", 0.05,
            _maker(_purchase, product, user, number, _index(CUSTOMER_TYPES), _below(5)),
        ),
    ]  # fmt: skip


def _maker(made: Callable[..., Made], *draws: Draw) -> Maker:
    """Return a maker that draws a column of numbers for each argument and makes an event of each row."""

    def make(rng: Generator, count: int) -> Iterator[Made]:
        # Drawn when the first event is asked for: the order of the draws decides the bytes of a seed.
        yield from map(made, *(draw(rng, count) for draw in draws))

    return make


def _page_view(
    page: int, referrer: int, user: int, session: int, device: int, agent: int, load: int
) -> Made:
    return Made(
        f'{{"userId":"user_{user}","sessionId":"s-{session:06x}",{_PAGES[page]},'
        f'"referrer":{_URL_TEXTS[referrer]},"userAgent":"{AGENTS[agent]}",'
        f'"deviceType":"{DEVICES[device]}","ipAddress":"{_address(session)}",'
        f'"loadTimeMs":{load}}}',
        f'"user_{user}"',
        URLS[page],
        _lists("url", deviceType=DEVICES[device], pageCategory=_at(PAGE_CATEGORIES, page)),
    )


def _product_view(product: int, user: int, session: int, duration: int) -> Made:
    return Made(
        f'{{"userId":"user_{user}","sessionId":"s-{session:06x}",{_PRODUCT_VIEWS[product]},'
        f'"viewDurationMs":{duration},"referrerPage":"https://shop.example/list/{session % 97}"}}',
        quoted(f"product_{PRODUCTS[product]}"),
        PRODUCTS[product],
        _lists(
            "productId",
            productCategory=_at(PRODUCT_CATEGORIES, product),
            productBrand=_at(BRANDS, product),
        ),
    )


def _api_request(
    endpoint: int, number: int, method: int, status: int, region: int, latency: int, size: int
) -> Made:
    return Made(
        f'{{"requestId":"req-{number:010x}","clientId":"client_{number % 500}",'
        f'"endpoint":{_ENDPOINT_TEXTS[endpoint]},"method":"{METHODS[method]}",'
        f'"statusCode":{STATUS_CODES[status]},"latencyMs":{latency},'
        f'"userIp":"{_address(number)}","userAgent":"{_at(AGENTS, number)}",'
        f'"region":"{REGIONS[region]}","bytesTransferred":{size}}}',
        f'"endpoint_{endpoint}"',
        ENDPOINTS[endpoint],
        _lists(
            "apiEndpoint",
            method=METHODS[method],
            statusCode=STATUS_CODES[status],
            region=REGIONS[region],
        ),
    )


def _search(query: int, user: int, session: int, category: int, found: int, latency: int) -> Made:
    return Made(
        f'{{"userId":"user_{user}","sessionId":"s-{session:06x}",'
        f'"searchQuery":{_QUERY_TEXTS[query]},"category":"{SEARCH_CATEGORIES[category]}",'
        f'"resultCount":{RESULT_COUNTS[found]},"page":{1 + session % 3},'
        f'"latencyMs":{latency},"userAgent":"{_at(AGENTS, session)}"}}',
        f'"user_{user}"',
        QUERIES[query],
        _lists(
            "searchQuery", category=SEARCH_CATEGORIES[category], resultCount=RESULT_COUNTS[found]
        ),
    )


def _purchase(product: int, user: int, number: int, customer: int, more: int) -> Made:
    return Made(
        f'{{"orderId":"order-{number:010x}","userId":"user_{user}",'
        f'"sessionId":"s-{number & 0xFFFFFF:06x}",{_PURCHASES[product]},'
        f'"quantity":{1 + more},"totalPrice":"{_price(_cents(product) * (1 + more))}",'
        f'"currency":"EUR","customerType":"{CUSTOMER_TYPES[customer]}",'
        f'"paymentMethod":"{_at(PAYMENTS, number)}"}}',
        f'"user_{user}"',
        PRODUCTS[product],
        _lists(
            "purchase",
            productCategory=_at(PRODUCT_CATEGORIES, product),
            customerType=CUSTOMER_TYPES[customer],
        ),
    )


@cache
def _lists(dimension: str, **attributes: str | int) -> tuple[str, ...]:
    """Return the lists an event belongs to: its dimension's, and one for each grouping attribute."""
    return (dimension, *(f"{dimension}|{name}={value}" for name, value in attributes.items()))


def _ranks(count: int, exponent: float) -> Draw:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    cumulative: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    cumulative[-1] = 1.0

    def draw(rng: Generator, size: int) -> list[int]:
        ranks: list[int] = np.searchsorted(cumulative, rng.random(size), side="right").tolist()
        return ranks

    return draw


def _below(bound: int) -> Draw:
    def draw(rng: Generator, size: int) -> list[int]:
        drawn: list[int] = rng.integers(0, bound, size).tolist()
        return drawn

    return draw


def _index(values: Sequence[object]) -> Draw:
    return _below(len(values))


def _at(values: Sequence[str], rank: int) -> str:
    return values[rank % len(values)]


def _cents(rank: int) -> int:
    return 100 + rank * 7919 % 49_900


def _price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


_URL_TEXTS, _ENDPOINT_TEXTS, _QUERY_TEXTS = (
    [quoted(item) for item in items] for items in (URLS, ENDPOINTS, QUERIES)
)
_PAGES = [
    f'"pageId":"page_{i}","pageCategory":"{_at(PAGE_CATEGORIES, i)}","url":{url}'
    for i, url in enumerate(_URL_TEXTS)
]
_PRODUCT_VIEWS = [
    f'"productId":{quoted(product)},"productSku":"SKU-{i:06d}",'
    f'"productCategory":"{_at(PRODUCT_CATEGORIES, i)}",'
    f'"productSubcategory":"{_at(PRODUCT_CATEGORIES, i)}-{i % 4}",'
    f'"productPrice":"{_price(_cents(i))}","productBrand":"{_at(BRANDS, i)}"'
    for i, product in enumerate(PRODUCTS)
]
_PURCHASES = [
    f'"productId":{quoted(product)},"productCategory":"{_at(PRODUCT_CATEGORIES, i)}",'
    f'"unitPrice":"{_price(_cents(i))}"'
    for i, product in enumerate(PRODUCTS)
]
