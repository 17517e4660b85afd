"""The keys and fields of TOP-7 in Redis, as they are written and read; only this file knows them.

    topk:{window}:{list}           sorted set: item -> estimate
    meta:{window}:{list}           hash: totalEvents uniqueItems lastUpdated windowStart windowEnd errorBound k
                                   and late, complete, itemType, parameters, items (each with its bounds), revision
    item:{itemType}:{itemKey}      hash: itemKey itemType totalCount firstSeen lastSeen metadata
    admitone:written               hash: the point up to which everything is written, and its fence
    admitone:writer:{id}           a pipeline writes; it goes when Redis is emptied, and so does what was written before

A script that replaces a value compares fences first: so an older write never replaces a newer one. First and last sight
only ever move apart, in whatever order they are told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from admitone.analytics.store_state import Point
from admitone.core.moments import iso, milliseconds
from admitone.core.sketches import RankedItem
from admitone.core.windows import Window, parse_window, window_of
from admitone.results.port import ItemResult, ListResult, counted_under

WRITTEN: Final = "admitone:written"
WRITER: Final = "admitone:writer:"
ALL_LISTS: Final = "meta:*"
POINT: Final = Point._fields
NEWEST: Final = "newest"
"""Fields of what is written: all of its point, and of it the newest moment."""

Call = tuple[list[str], list[Any]]
"""The keys and arguments of a script."""

# KEYS: the sorted set, the hash. ARGV: fence, milliseconds to live or 0, number of the hash's parts, those parts,
# then scores and members. Only so many arguments fit into one call.
REPLACE_LIST: Final = """
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
# KEYS: the hash. ARGV: fence, milliseconds to live, itemKey, itemType, totalCount, metadata, first and last sight.
REPLACE_ITEM: Final = """
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
RAISE_WRITTEN: Final = """
if redis.call('EXISTS', KEYS[2]) == 0 then return -1 end
local held = redis.call('HGET', KEYS[1], 'fence')
if held and held > ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'fence', unpack(ARGV))
return 1
"""
# KEYS: the sorted set, the hash. ARGV: the fence below which they go.
RETIRE_LIST: Final = """
local held = redis.call('HGET', KEYS[2], 'revision')
if held and held < ARGV[1] then return redis.call('DEL', KEYS[1], KEYS[2]) end
return 0
"""


def list_keys(window: str, name: str) -> list[str]:
    """Return the keys of a list: its ranking, and what is known about it as a whole."""
    return [f"topk:{window}:{name}", f"meta:{window}:{name}"]


def lists_of(windows: Collection[str], keys: Iterable[str]) -> Iterator[list[str]]:
    """Yield the keys of each list in some windows that is among the keys of `ALL_LISTS`."""
    for key in keys:
        _, window, name = key.split(":", 2)
        if window in windows:
            yield list_keys(window, name)


def list_call(result: ListResult, lifetime_ms: int) -> Call:
    """Return how a list is replaced; no lifetime is for ever."""
    spans = result.window.kind != "global"
    fields = {
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
    parts = [part for pair in fields.items() for part in pair]
    ranked = [part for entry in result.items for part in (entry.estimate, entry.item)]
    keys = list_keys(result.window.key, result.name)
    return keys, [result.fence, lifetime_ms, len(parts), *parts, *ranked]


def list_from(window: str, name: str, fields: Mapping[str, str]) -> ListResult | None:
    """Return the list a hash is about; None where there is none."""
    if "items" not in fields:
        return None
    total, updated = int(fields["totalEvents"]), fields["lastUpdated"]
    return ListResult(
        window=parse_window(window),
        name=name,
        item_type=fields["itemType"] or None,
        total=total,
        late=int(fields["late"]),
        distinct=int(fields["uniqueItems"]),
        complete=fields["complete"] == "1",
        updated_at=milliseconds(datetime.fromisoformat(updated)) if updated else 0,
        error_bound=float(fields["errorBound"]),
        unlisted_upper=total,
        parameters=counted_under(orjson.loads(fields["parameters"])),
        items=tuple(
            RankedItem(n, *item) for n, item in enumerate(orjson.loads(fields["items"]), 1)
        ),
        fence=fields["revision"],
    )


def item_call(result: ItemResult, lifetime_ms: int) -> Call:
    """Return how an item is replaced."""
    metadata = {
        "lower": result.lower,
        "upper": result.upper,
        "dimension": result.dimension,
        "revision": result.fence,
    }
    return [f"item:{result.item_type}:{result.key}"], [
        result.fence,
        lifetime_ms,
        result.key,
        result.item_type,
        result.estimate,
        orjson.dumps(metadata),
        iso(result.first_seen) or "",
        iso(result.last_seen) or "",
    ]


def point_from(held: Sequence[str | None]) -> Point | None:
    """Return the point that the fields `POINT` say; None where there is none."""
    numbers = [int(field) for field in held if field is not None]
    return Point(*numbers) if len(numbers) == len(POINT) else None


def newest_from(held: str | bytes | None, kind: str) -> Window | None:
    """Return the newest window of a kind that the field `NEWEST` says; None where there is none."""
    return None if held is None else window_of(kind, int(held))


def written_call(now: Point, writer: str) -> Call:
    """Return how a writer notes that everything up to a point is written."""
    fields = [part for pair in now._asdict().items() for part in pair]
    return [WRITTEN, writer], [now.fence, *fields]
