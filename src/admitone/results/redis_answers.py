"""Top-K answers from Redis, where the pipeline keeps them; the store answers what Redis cannot."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final, cast

import redis.asyncio as redis
from redis.exceptions import RedisError

from admitone.analytics.store_state import revision_of
from admitone.core.items import list_name
from admitone.core.windows import ALIASES, window_of
from admitone.results import redis_access
from admitone.results.documents import AnswerSource, TopAnswer, top_answer
from admitone.results.list_view import error_bound
from admitone.results.redis_codec import WRITTEN, list_from, list_keys
from admitone.settings import Settings

KEPT_IN: Final = "redis"
_SECONDS_TO_ANSWER: Final = 0.25
_LEFT_ALONE_S: Final = 2.0
"""How long Redis is not asked after it did not answer: waiting for it would slow down every client."""
_CONNECTIONS: Final = 50


class RedisAnswers:
    """Answers what it can from Redis, quickly or not at all."""

    def __init__(self, settings: Settings) -> None:
        self._redis = redis.Redis.from_url(
            **redis_access(settings),
            socket_timeout=_SECONDS_TO_ANSWER,
            socket_connect_timeout=_SECONDS_TO_ANSWER,
            max_connections=_CONNECTIONS,
            client_name="admitone-service",
            decode_responses=True,
        )
        self._not_before = 0.0

    async def top(
        self, dimension: str, window: str, where: str | None, k: int | None
    ) -> TopAnswer | None:
        """Return the heaviest items of a list; None where Redis does not answer or does not have it."""
        attribute, _, value = (where or "").partition("=")
        name = dimension if where is None else list_name(dimension, attribute, value)
        if time.monotonic() < self._not_before:
            return None
        try:
            key = await self._window(window)
            if key is None:
                return None
            found = await self._redis.hgetall(list_keys(key, name)[1])
        except (RedisError, OSError, TimeoutError):
            self._not_before = time.monotonic() + _LEFT_ALONE_S
            return None
        result = list_from(key, name, cast(dict[str, str], found))
        if result is None:
            return None
        size = result.parameters["k"] if k is None else k
        if size > result.parameters["k"]:
            return None
        items = result.items[:size]
        shown = replace(result, items=items, error_bound=error_bound(items, result.total))
        source: AnswerSource = {"kept_in": KEPT_IN, "revision": revision_of(result.fence)}
        return top_answer(shown, dimension, where, size, source)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def _window(self, name: str) -> str | None:
        """Return a window's key; an alias names the newest of its size."""
        if name not in ALIASES:
            return name
        newest = await self._redis.hget(WRITTEN, "newest")
        return None if newest is None else window_of(ALIASES[name], int(newest)).key
