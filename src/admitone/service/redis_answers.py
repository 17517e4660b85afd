"""Top-K answers from Redis, where the pipeline keeps them for whoever reads; the store answers when it cannot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson
import redis.asyncio as redis
from redis.exceptions import RedisError

from admitone.core.items import list_name
from admitone.core.windows import ALIASES, window_of
from admitone.results.open import redis_access
from admitone.results.port import TopAnswer
from admitone.results.redis import WRITTEN, list_keys
from admitone.settings import Settings

KEPT_IN: Final = "redis"
_SECONDS_TO_ANSWER: Final = 0.25
_LEFT_ALONE_S: Final = 2.0
"""How long Redis is not asked after it did not answer: waiting for it every time would slow everybody down."""
_CONNECTIONS: Final = 50


class RedisAnswers:
    """Answers what it can from Redis, quickly or not at all."""

    def __init__(self, settings: Settings) -> None:
        url, password, ssl_ca = redis_access(settings)
        options: dict[str, Any] = {"password": password} if password else {}
        if ssl_ca:
            options["ssl_ca_certs"] = ssl_ca
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=_SECONDS_TO_ANSWER,
            socket_connect_timeout=_SECONDS_TO_ANSWER,
            max_connections=_CONNECTIONS,
            client_name="admitone-service",
            decode_responses=True,
            **options,
        )
        self._not_before = 0.0

    async def top(
        self, dimension: str, window: str, where: str | None, k: int | None
    ) -> TopAnswer | None:
        """Return the heaviest items of a list; None where Redis does not answer or does not have it."""
        if time.monotonic() < self._not_before:
            return None
        try:
            key = await self._window(window)
            if key is None:
                return None
            _, meta = list_keys(key, _list(dimension, where))
            found = await self._redis.hgetall(meta)
        except (RedisError, OSError, TimeoutError):
            self._not_before = time.monotonic() + _LEFT_ALONE_S
            return None
        return _answer(cast(dict[str, str], found), key, dimension, where, k)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _window(self, name: str) -> str | None:
        """Return a window's key; an alias names the newest of its size."""
        if name not in ALIASES:
            return name
        newest = await self._redis.hget(WRITTEN, "newest")
        return None if newest is None else window_of(ALIASES[name], int(newest)).key


def _answer(
    found: Mapping[str, str], window: str, dimension: str, where: str | None, k: int | None
) -> TopAnswer | None:
    if "items" not in found:
        return None
    kept = int(found["k"])
    size = kept if k is None else k
    if size > kept:
        return None
    items = orjson.loads(found["items"])[:size]
    total = int(found["totalEvents"])
    widest = max((upper - lower for _, _, lower, upper in items), default=0)
    return {
        "window": window,
        "dimension": dimension,
        "where": where,
        "item_type": found["itemType"] or None,
        "k": size,
        "total": total,
        "distinct": int(found["uniqueItems"]),
        "complete": found["complete"] == "1",
        "late": int(found["late"]),
        "updated_at": found["lastUpdated"] or None,
        "error_bound": round(widest / total * 100, 4) if total else 0.0,
        "parameters": orjson.loads(found["parameters"]),
        "source": {"kept_in": KEPT_IN, "revision": int(found["revision"].rpartition("-")[2])},
        "items": [
            {"rank": rank, "item": item, "estimate": estimate, "lower": lower, "upper": upper}
            for rank, (item, estimate, lower, upper) in enumerate(items, 1)
        ],
    }


def _list(dimension: str, where: str | None) -> str:
    if where is None:
        return dimension
    attribute, _, value = where.partition("=")
    return list_name(dimension, attribute, value)
