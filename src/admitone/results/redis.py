"""Live answers in Redis, under the keys and fields of TOP-7: the outlet that writes them, and what the service reads.

A list and its meta are replaced by one script: no client sees half of both. So both keys of a list must be on one
node: Redis Cluster is not supported.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, cast
from uuid import uuid4

import redis
from redis import asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from admitone.analytics.store_state import Point, revision_of
from admitone.core.errors import ConfigurationError, ServiceUnreachable
from admitone.core.items import list_name
from admitone.core.windows import ALIASES, Window
from admitone.infra.crash_points import crash_point
from admitone.results import redis_access
from admitone.results import redis_codec as codec
from admitone.results.documents import AnswerSource, TopAnswer, top_answer
from admitone.results.list_view import error_bound
from admitone.results.port import ItemResult, ListResult
from admitone.settings import Settings

KEPT_IN: Final = "redis"
_SECONDS_TO_ANSWER: Final = 5.0
_SECONDS_FOR_A_CLIENT: Final = 0.25
_LEFT_ALONE_S: Final = 2.0
"""How long Redis is not asked after it did not answer: waiting for it would slow down every client."""
_CONNECTIONS: Final = 50
_COMMANDS_AT_ONCE: Final = 200
_WRITER_SECONDS: Final = 86_400


class RedisResults:
    """An `Outlet` in Redis."""

    label = "Redis"
    wants_items = True

    def __init__(
        self, access: Mapping[str, Any], expire: Mapping[str, int], interval_ms: int = 1_000
    ) -> None:
        self._expire = expire
        self._writer = f"{codec.WRITER}{uuid4().hex}"
        self.interval_ms = interval_ms
        try:
            self._redis = redis.Redis.from_url(
                **access,
                socket_timeout=_SECONDS_TO_ANSWER,
                socket_connect_timeout=_SECONDS_TO_ANSWER,
                retry=Retry(NoBackoff(), 1),
                client_name="admitone",
                decode_responses=True,
            )
        except ValueError as error:
            raise ConfigurationError(
                "The URL in [results] cannot be read.", "spell it redis://user@host:6379/0"
            ) from error
        self._replace_list = self._redis.register_script(codec.REPLACE_LIST)
        self._replace_item = self._redis.register_script(codec.REPLACE_ITEM)
        self._raise_written = self._redis.register_script(codec.RAISE_WRITTEN)
        self._retire_list = self._redis.register_script(codec.RETIRE_LIST)

    def reached(self) -> Point | None:
        """Return the point up to which everything was written."""
        with _explained():
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(self._writer, "1", ex=_WRITER_SECONDS)
            pipe.hmget(codec.WRITTEN, codec.POINT)
            _, held = pipe.execute()
        return codec.point_from(held)

    def wants(self, window: Window, complete: bool, now: Point) -> bool:
        """Tell whether a window belongs here: all do."""
        return True

    def write(self, lists: Sequence[ListResult], items: Sequence[ItemResult]) -> None:
        """Replace lists and items that are older."""
        crash_point("results.writing")
        calls = [
            (self._replace_list, codec.list_call(result, self._expire.get(result.window.kind, 0)))
            for result in lists
        ]
        calls += [
            (self._replace_item, codec.item_call(result, self._expire["item"])) for result in items
        ]
        self._run(calls)
        crash_point("results.written")

    def finish(self, now: Point, rebuilt: Collection[Window]) -> bool:
        """Note that everything up to a point is written; of rebuilt windows nothing older is left."""
        if rebuilt:
            found = self._redis.scan_iter(codec.ALL_LISTS, count=1_000)
            gone = codec.lists_of({window.key for window in rebuilt}, found)
            self._run((self._retire_list, (keys, [now.fence])) for keys in gone)
        keys, args = codec.written_call(now, self._writer)
        with _explained():
            noted: int = self._raise_written(keys=keys, args=args)
        return noted >= 0

    def close(self) -> None:
        """Close the connections."""
        with suppress(redis.RedisError, OSError):
            self._redis.delete(self._writer)
        self._redis.close()

    def _run(self, calls: Iterable[tuple[Any, codec.Call]]) -> None:
        with _explained():
            pipe = self._redis.pipeline(transaction=False)
            for script, (keys, args) in calls:
                script(keys=keys, args=args, client=pipe)
                if len(pipe) >= _COMMANDS_AT_ONCE:
                    pipe.execute()
            pipe.execute()


class RedisAnswers:
    """Answers what it can from Redis, quickly or not at all; the store answers what Redis cannot."""

    def __init__(self, settings: Settings) -> None:
        self._redis = asyncio.Redis.from_url(
            **redis_access(settings),
            socket_timeout=_SECONDS_FOR_A_CLIENT,
            socket_connect_timeout=_SECONDS_FOR_A_CLIENT,
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
            found = await self._redis.hgetall(codec.list_keys(key, name)[1])
        except (redis.RedisError, OSError, TimeoutError):
            self._not_before = time.monotonic() + _LEFT_ALONE_S
            return None
        result = codec.list_from(key, name, cast(dict[str, str], found))
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
        held = await self._redis.hget(codec.WRITTEN, codec.NEWEST)
        newest = codec.newest_from(held, ALIASES[name])
        return newest and newest.key


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except redis.AuthenticationError as error:
        raise ConfigurationError(
            "Redis refuses the user or the password.",
            "check [results] url and ADMITONE_RESULTS__PASSWORD",
        ) from error
    except redis.exceptions.NoPermissionError as error:
        raise ConfigurationError(
            f"Redis refuses: {error}.",
            "let the user run scripts and write topk:*, meta:*, item:* and admitone:*",
        ) from error
    except (redis.RedisError, OSError) as error:
        raise ServiceUnreachable(
            f"Redis does not answer: {error}.", "check that it runs and that [results] url is right"
        ) from error
