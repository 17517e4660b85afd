"""Makers for the five event types: what a payload holds, which item it counts, in which lists.

Everything about one item that never changes is rendered once, as a piece of JSON text; making
an event is then one f-string around a handful of drawn numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from json.encoder import encode_basestring as quoted
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from admitone.traffic.values import (
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


class EventType(NamedTuple):
    """An event type and how its payloads are made."""

    name: str
    source: str
    item_field: str
    share: float
    make: Maker


def event_types(zipf: float) -> list[EventType]:
    """Return the five types, their items distributed by Zipf's law with this exponent."""
    return [
        EventType("page_view", "web_application", "url", 0.40, _page_views(zipf)),
        EventType("product_view", "mobile_application", "productId", 0.25, _product_views(zipf)),
        EventType("api_request", "api_gateway", "endpoint", 0.20, _api_requests(zipf)),
        EventType("search", "search_service", "searchQuery", 0.10, _searches(zipf)),
        EventType("purchase", "order_service", "productId", 0.05, _purchases(zipf)),
    ]


def _page_views(zipf: float) -> Maker:
    urls = [quoted(url) for url in URLS]
    fixed = [
        f'"pageId":"page_{i}","pageCategory":"{_at(PAGE_CATEGORIES, i)}","url":{url}'
        for i, url in enumerate(urls)
    ]
    lists = [
        [
            ("url", f"url|deviceType={device}", f"url|pageCategory={_at(PAGE_CATEGORIES, i)}")
            for device in DEVICES
        ]
        for i in range(len(URLS))
    ]
    ranks = _zipf(len(URLS), zipf)

    def make(rng: Generator, count: int) -> Iterator[Made]:
        columns = zip(
            ranks(rng, count),
            ranks(rng, count),
            _integers(rng, count, 50_000),
            _integers(rng, count, 1 << 24),
            _integers(rng, count, len(DEVICES)),
            _integers(rng, count, len(AGENTS)),
            _integers(rng, count, 4_000),
            strict=True,
        )
        for page, referrer, user, number, device, agent, load in columns:
            yield Made(
                f'{{"userId":"user_{user}","sessionId":"s-{number:06x}",{fixed[page]},'
                f'"referrer":{urls[referrer]},"userAgent":"{AGENTS[agent]}",'
                f'"deviceType":"{DEVICES[device]}","ipAddress":"{_address(number)}",'
                f'"loadTimeMs":{load}}}',
                f'"user_{user}"',
                URLS[page],
                lists[page][device],
            )

    return make


def _product_views(zipf: float) -> Maker:
    fixed = [
        f'"productId":{quoted(product)},"productSku":"SKU-{i:06d}",'
        f'"productCategory":"{_at(PRODUCT_CATEGORIES, i)}",'
        f'"productSubcategory":"{_at(PRODUCT_CATEGORIES, i)}-{i % 4}",'
        f'"productPrice":"{_price(_cents(i))}","productBrand":"{_at(BRANDS, i)}"'
        for i, product in enumerate(PRODUCTS)
    ]
    keys = [quoted(f"product_{product}") for product in PRODUCTS]
    lists = [
        (
            "productId",
            f"productId|productCategory={_at(PRODUCT_CATEGORIES, i)}",
            f"productId|productBrand={_at(BRANDS, i)}",
        )
        for i in range(len(PRODUCTS))
    ]
    ranks = _zipf(len(PRODUCTS), zipf)

    def make(rng: Generator, count: int) -> Iterator[Made]:
        columns = zip(
            ranks(rng, count),
            _integers(rng, count, 50_000),
            _integers(rng, count, 1 << 24),
            _integers(rng, count, 120_000),
            strict=True,
        )
        for product, user, number, duration in columns:
            yield Made(
                f'{{"userId":"user_{user}","sessionId":"s-{number:06x}",{fixed[product]},'
                f'"viewDurationMs":{duration},'
                f'"referrerPage":"https://shop.example/list/{number % 97}"}}',
                keys[product],
                PRODUCTS[product],
                lists[product],
            )

    return make


def _api_requests(zipf: float) -> Maker:
    texts = [quoted(endpoint) for endpoint in ENDPOINTS]
    lists = [
        [
            (
                "apiEndpoint",
                f"apiEndpoint|method={method}",
                f"apiEndpoint|statusCode={status}",
                f"apiEndpoint|region={region}",
            )
            for status in STATUS_CODES
            for region in REGIONS
        ]
        for method in METHODS
    ]
    ranks = _zipf(len(ENDPOINTS), zipf)

    def make(rng: Generator, count: int) -> Iterator[Made]:
        columns = zip(
            ranks(rng, count),
            _integers(rng, count, 1 << 40),
            _integers(rng, count, len(METHODS)),
            _integers(rng, count, len(STATUS_CODES)),
            _integers(rng, count, len(REGIONS)),
            _integers(rng, count, 3_000),
            _integers(rng, count, 1_000_000),
            strict=True,
        )
        for endpoint, number, method, status, region, latency, size in columns:
            yield Made(
                f'{{"requestId":"req-{number:010x}","clientId":"client_{number % 500}",'
                f'"endpoint":{texts[endpoint]},"method":"{METHODS[method]}",'
                f'"statusCode":{STATUS_CODES[status]},"latencyMs":{latency},'
                f'"userIp":"{_address(number)}","userAgent":"{AGENTS[number % len(AGENTS)]}",'
                f'"region":"{REGIONS[region]}","bytesTransferred":{size}}}',
                f'"endpoint_{endpoint}"',
                ENDPOINTS[endpoint],
                lists[method][status * len(REGIONS) + region],
            )

    return make


def _searches(zipf: float) -> Maker:
    texts = [quoted(query) for query in QUERIES]
    lists = [
        [
            ("searchQuery", f"searchQuery|category={category}", f"searchQuery|resultCount={found}")
            for found in RESULT_COUNTS
        ]
        for category in SEARCH_CATEGORIES
    ]
    ranks = _zipf(len(QUERIES), zipf)

    def make(rng: Generator, count: int) -> Iterator[Made]:
        columns = zip(
            ranks(rng, count),
            _integers(rng, count, 50_000),
            _integers(rng, count, 1 << 24),
            _integers(rng, count, len(SEARCH_CATEGORIES)),
            _integers(rng, count, len(RESULT_COUNTS)),
            _integers(rng, count, 900),
            strict=True,
        )
        for query, user, number, category, found, latency in columns:
            yield Made(
                f'{{"userId":"user_{user}","sessionId":"s-{number:06x}",'
                f'"searchQuery":{texts[query]},"category":"{SEARCH_CATEGORIES[category]}",'
                f'"resultCount":{RESULT_COUNTS[found]},"page":{1 + number % 3},'
                f'"latencyMs":{latency},"userAgent":"{AGENTS[number % len(AGENTS)]}"}}',
                f'"user_{user}"',
                QUERIES[query],
                lists[category][found],
            )

    return make


def _purchases(zipf: float) -> Maker:
    fixed = [
        f'"productId":{quoted(product)},"productCategory":"{_at(PRODUCT_CATEGORIES, i)}",'
        f'"unitPrice":"{_price(_cents(i))}"'
        for i, product in enumerate(PRODUCTS)
    ]
    lists = [
        [
            (
                "purchase",
                f"purchase|productCategory={_at(PRODUCT_CATEGORIES, i)}",
                f"purchase|customerType={customer}",
            )
            for customer in CUSTOMER_TYPES
        ]
        for i in range(len(PRODUCTS))
    ]
    ranks = _zipf(len(PRODUCTS), zipf)

    def make(rng: Generator, count: int) -> Iterator[Made]:
        columns = zip(
            ranks(rng, count),
            _integers(rng, count, 50_000),
            _integers(rng, count, 1 << 40),
            _integers(rng, count, len(CUSTOMER_TYPES)),
            _integers(rng, count, 5),
            strict=True,
        )
        for product, user, number, customer, more in columns:
            yield Made(
                f'{{"orderId":"order-{number:010x}","userId":"user_{user}",'
                f'"sessionId":"s-{number & 0xFFFFFF:06x}",{fixed[product]},'
                f'"quantity":{1 + more},"totalPrice":"{_price(_cents(product) * (1 + more))}",'
                f'"currency":"EUR","customerType":"{CUSTOMER_TYPES[customer]}",'
                f'"paymentMethod":"{PAYMENTS[number % len(PAYMENTS)]}"}}',
                f'"user_{user}"',
                PRODUCTS[product],
                lists[product][customer],
            )

    return make


def _zipf(count: int, exponent: float) -> Callable[[Generator, int], list[int]]:
    weights = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    cumulative: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    cumulative[-1] = 1.0

    def draw(rng: Generator, size: int) -> list[int]:
        ranks: list[int] = np.searchsorted(cumulative, rng.random(size), side="right").tolist()
        return ranks

    return draw


def _integers(rng: Generator, count: int, below: int) -> list[int]:
    drawn: list[int] = rng.integers(0, below, count).tolist()
    return drawn


def _at(values: Sequence[str], rank: int) -> str:
    return values[rank % len(values)]


def _cents(rank: int) -> int:
    return 100 + rank * 7919 % 49_900


def _price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def _address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
