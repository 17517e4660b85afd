"""The values that payload fields draw from; no attribute has more than 15."""

from __future__ import annotations

from collections.abc import Sequence

DEVICES = ("mobile", "desktop", "tablet")
PAGE_CATEGORIES = ("home", "catalog", "product", "cart", "checkout", "account", "help", "blog")
PRODUCT_CATEGORIES = (
    *("books", "garden", "toys", "music", "sports"),
    *("kitchen", "office", "beauty", "grocery", "pets"),
)
BRANDS = (
    *("Acme", "Borealis", "Cobalt", "Dunlin", "Ember", "Fjord"),
    *("Garnet", "Halcyon", "Iris", "Juniper", "Kestrel", "Müller & Søn"),
)
METHODS = ("GET", "POST", "PUT", "DELETE")
STATUS_CODES = (200, 201, 204, 301, 400, 404, 429, 500)
REGIONS = ("eu-west", "eu-north", "us-east", "us-west", "ap-south", "sa-east")
SEARCH_CATEGORIES = ("all", *PRODUCT_CATEGORIES[:9])
RESULT_COUNTS = (0, 1, 2, 3, 5, 8, 10, 12, 15, 20, 24, 48, 50, 100)
CUSTOMER_TYPES = ("new", "returning", "business")
PAYMENTS = ("card", "invoice", "wallet")
AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64)",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5)",
    "Mozilla/5.0 (Windows NT 10.0)",
    "curl/8.9.1",
)

# What a careless reader turns into something else: numbers, constants, escapes, two spellings of é.
TRICKY_PRODUCTS = (
    "12345",
    "007",
    "1e3",
    "-1",
    "12.50",
    "1.0",
    "null",
    "true",
    "ツナ缶",
    "Ünïcode-1",
)
TRICKY_PATHS = ("12345", "bücher", "книги", "日本語", "a|b=c")
TRICKY_QUERIES = (
    *('shirt "xl"', "back\\slash", "a|b=c", "🎸 strings", "<b>bold</b>", "tab\tbed", "/slash/"),
    *("12345", "007", "1e3", "null", "café", "cafe\u0301", "смартфон"),
)


def universe(count: int, plain: str, tricky: Sequence[str]) -> list[str]:
    """Return the items by rank; the tricky ones are frequent, so that every list shows some."""
    items = [plain.format(rank) for rank in range(count)]
    items[1 : 1 + 3 * len(tricky) : 3] = tricky
    return items


URLS = [
    f"https://shop.example/{PAGE_CATEGORIES[rank % len(PAGE_CATEGORIES)]}/{slug}"
    for rank, slug in enumerate(universe(2_000, "page-{}", TRICKY_PATHS))
]
PRODUCTS = universe(1_000, "prod-{:04d}", TRICKY_PRODUCTS)
ENDPOINTS = [
    f"/api/v{1 + rank % 3}/{name}"
    for rank, name in enumerate(universe(200, "resource-{}", TRICKY_PATHS))
]
QUERIES = universe(1_000, "query {}", TRICKY_QUERIES)
