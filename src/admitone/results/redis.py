"""Live answers in Redis, under the keys and fields of TOP-7.

A list and its meta are replaced by one script: no client sees half of both. So both keys of a list must be on one
node: Redis Cluster is not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from admitone.analytics.store_state import Point
from admitone.core.errors import ConfigurationError, ServiceUnreachable
from admitone.core.windows import Window
from admitone.infra.crash_points import crash_point
from admitone.results import redis_codec as codec
from admitone.results.port import ItemResult, ListResult

_SECONDS_TO_ANSWER: Final = 5.0
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
            pipe.hmget(codec.WRITTEN, Point._fields)
            _, held = pipe.execute()
        return None if None in held else Point(*map(int, held))

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
