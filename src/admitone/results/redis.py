"""Live answers in Redis, under the keys and fields of TOP-7.

    topk:{window}:{list}           sorted set: item -> estimate
    meta:{window}:{list}           hash: totalEvents uniqueItems lastUpdated windowStart windowEnd errorBound k
                                   and late, complete, itemType, parameters, items (each with its bounds), revision
    item:{itemType}:{itemKey}      hash: itemKey itemType totalCount firstSeen lastSeen metadata
    admitone:written               hash: the point up to which everything is written
    admitone:writer:{id}           somebody writes; it goes when Redis is emptied, and so does what was written before

A list and its meta are replaced by one script, which compares `revision` first: so an older write never replaces a
newer one, and nobody sees half of both. First and last sight only ever move apart, in whatever order they are told.
Both keys of a list must be on one node: Redis Cluster is not supported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from uuid import uuid4

import orjson
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from admitone.core.errors import ConfigurationError, ServiceUnreachable
from admitone.core.moments import iso
from admitone.core.windows import Window
from admitone.faults import crash_point
from admitone.results.outlet import ItemResult, ListResult, Point

WRITTEN: Final = "admitone:written"
_SECONDS_TO_ANSWER: Final = 5.0
_COMMANDS_AT_ONCE: Final = 200
_WRITER_SECONDS: Final = 86_400

# KEYS: the sorted set, the hash. ARGV: revision, milliseconds to live or 0, number of the hash's parts, those parts,
# then scores and members. Only so many arguments fit into one call.
_REPLACE_LIST: Final = """
local held = redis.call('HGET', KEYS[2], 'revision')
if held and held > ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
local fields = tonumber(ARGV[3])
redis.call('HSET', KEYS[2], 'revision', ARGV[1], unpack(ARGV, 4, 3 + fields))
for first = 4 + fields, #ARGV, 5000 do
  redis.call('ZADD', KEYS[1], unpack(ARGV, first, math.min(first + 4999, #ARGV)))
end
if ARGV[2] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return 1
"""
# KEYS: the hash. ARGV: revision, milliseconds to live, itemKey, itemType, totalCount, metadata, first and last sight.
_REPLACE_ITEM: Final = """
local first, last = redis.call('HGET', KEYS[1], 'firstSeen'), redis.call('HGET', KEYS[1], 'lastSeen')
if ARGV[7] ~= '' and (not first or first == '' or ARGV[7] < first) then first = ARGV[7] end
if ARGV[8] ~= '' and (not last or last == '' or ARGV[8] > last) then last = ARGV[8] end
redis.call('HSET', KEYS[1], 'firstSeen', first or '', 'lastSeen', last or '')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local held = redis.call('HGET', KEYS[1], 'metadata')
if held and cjson.decode(held)['revision'] > ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'itemKey', ARGV[3], 'itemType', ARGV[4], 'totalCount', ARGV[5], 'metadata', ARGV[6])
return 1
"""
# KEYS: the hash, the writer's own. ARGV: the fence, then fields and values.
_RAISE: Final = """
if redis.call('EXISTS', KEYS[2]) == 0 then return -1 end
local held = redis.call('HGET', KEYS[1], 'fence')
if held and held > ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'fence', unpack(ARGV))
return 1
"""
# KEYS: the sorted set, the hash. ARGV: the fence below which they go.
_RETIRE: Final = """
local held = redis.call('HGET', KEYS[2], 'revision')
if held and held < ARGV[1] then return redis.call('DEL', KEYS[1], KEYS[2]) end
return 0
"""


class RedisResults:
    """An `Outlet` in Redis."""

    label = "Redis"
    wants_items = True

    def __init__(
        self,
        url: str,
        expire: Mapping[str, int],
        password: str = "",
        ssl_ca: str = "",
        interval_ms: int = 1_000,
    ) -> None:
        self._expire = expire
        self._writer = f"admitone:writer:{uuid4().hex}"
        self.interval_ms = interval_ms
        options: dict[str, Any] = {"password": password} if password else {}
        if ssl_ca:
            options["ssl_ca_certs"] = ssl_ca
        try:
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=_SECONDS_TO_ANSWER,
                socket_connect_timeout=_SECONDS_TO_ANSWER,
                retry=Retry(NoBackoff(), 1),
                client_name="admitone",
                decode_responses=True,
                **options,
            )
        except ValueError as error:
            raise ConfigurationError(
                "The URL in [results] cannot be read.", "spell it redis://user@host:6379/0"
            ) from error
        self._replace_list = self._redis.register_script(_REPLACE_LIST)
        self._replace_item = self._redis.register_script(_REPLACE_ITEM)
        self._raise = self._redis.register_script(_RAISE)
        self._retire = self._redis.register_script(_RETIRE)

    def reached(self) -> Point | None:
        """Return the point up to which everything was written."""
        with _explained():
            pipe = self._redis.pipeline(transaction=True)
            pipe.set(self._writer, "1", ex=_WRITER_SECONDS)
            pipe.hmget(WRITTEN, Point._fields)
            _, held = pipe.execute()
        return None if None in held else Point(*map(int, held))

    def wants(self, window: Window, complete: bool, now: Point) -> bool:
        """Tell whether a window belongs here: all do."""
        return True

    def write(self, lists: Sequence[ListResult], items: Sequence[ItemResult]) -> None:
        """Replace lists and items that are older."""
        crash_point("results.writing")
        calls = [(self._replace_list, *self._list_call(result)) for result in lists]
        calls += [(self._replace_item, *self._item_call(result)) for result in items]
        self._run(calls)
        crash_point("results.written")

    def finish(self, now: Point, rebuilt: Collection[Window]) -> bool:
        """Note that everything up to a point is written; of rebuilt windows nothing older is left."""
        if rebuilt:
            self._run(
                (self._retire, list_keys(window, name), [now.fence])
                for window, name in self._lists_of({window.key for window in rebuilt})
            )
        fields = [part for pair in now._asdict().items() for part in pair]
        with _explained():
            noted: int = self._raise(keys=[WRITTEN, self._writer], args=[now.fence, *fields])
        return noted >= 0

    def close(self) -> None:
        """Close the connections."""
        with suppress(redis.RedisError, OSError):
            self._redis.delete(self._writer)
        self._redis.close()

    def _lists_of(self, windows: Collection[str]) -> Iterator[tuple[str, str]]:
        with _explained():
            for key in self._redis.scan_iter("meta:*", count=1_000):
                window, _, name = key.removeprefix("meta:").partition(":")
                if window in windows:
                    yield window, name

    def _run(self, calls: Iterable[tuple[Any, list[str], list[Any]]]) -> None:
        with _explained():
            pipe = self._redis.pipeline(transaction=False)
            for script, keys, args in calls:
                script(keys=keys, args=args, client=pipe)
                if len(pipe) >= _COMMANDS_AT_ONCE:
                    pipe.execute()
            pipe.execute()

    def _list_call(self, result: ListResult) -> tuple[list[str], list[Any]]:
        fields = [part for pair in meta_of(result).items() for part in pair]
        ranked = [part for entry in result.items for part in (entry.estimate, entry.item)]
        lifetime = self._expire.get(result.window.kind, 0)
        keys = list_keys(result.window.key, result.name)
        return keys, [result.fence, lifetime, len(fields), *fields, *ranked]

    def _item_call(self, result: ItemResult) -> tuple[list[str], list[Any]]:
        metadata = {
            "lower": result.lower,
            "upper": result.upper,
            "dimension": result.dimension,
            "revision": result.fence,
        }
        return [f"item:{result.item_type}:{result.key}"], [
            result.fence,
            self._expire["item"],
            result.key,
            result.item_type,
            result.estimate,
            orjson.dumps(metadata),
            iso(result.first_seen) or "",
            iso(result.last_seen) or "",
        ]


def list_keys(window: str, name: str) -> list[str]:
    """Return the keys of a list: its ranking, and what is known about it as a whole."""
    return [f"topk:{window}:{name}", f"meta:{window}:{name}"]


def meta_of(result: ListResult) -> dict[str, str | int]:
    """Return the fields of a list's hash."""
    spans = result.window.kind != "global"
    return {
        "totalEvents": result.total,
        "uniqueItems": result.distinct,
        "lastUpdated": iso(result.updated_at) or "",
        "windowStart": (iso(result.window.start_ms) or "") if spans else "",
        "windowEnd": (iso(result.window.end_ms) or "") if spans else "",
        "errorBound": f"{result.error_bound:g}",
        "k": result.parameters["k"],
        "late": result.late,
        "complete": int(result.complete),
        "itemType": result.item_type or "",
        "parameters": orjson.dumps(result.parameters).decode(),
        "items": orjson.dumps([entry[1:] for entry in result.items]).decode(),
    }


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
