"""Step 1, read: from records of one source partition to the facts of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.decisions import CODE_OF_REASON, Reason
from admitone.core.envelope import EnvelopeRules, Event, Refusal, read_envelope, run_outside
from admitone.core.records import RecordRules, read_record
from admitone.core.replay_filter import Kind, Reached, Upstream, filter_replays
from admitone.core.routing import partition_for
from admitone.core.wire import naming_headers, positions_of
from admitone.infra.memory import garbage_collection_paused
from admitone.ledger.columns import FACTS_SCHEMA, UPSTREAM_TYPE
from admitone.ledger.model import Mark
from admitone.transport.port import HEADERS_TYPE

Rules = EnvelopeRules | RecordRules
"""What a delivery must look like: an envelope at the admission boundary, a record with a key in a dedup pipeline."""

_NO_HEADERS: dict[str, bytes] = {}
_NOTHING_READ = (None,) * 5
DELIVERY_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
    ]
)
"""What a door that numbers its own deliveries hands over."""
_FOREIGN_KEY = CODE_OF_REASON[Reason.FOREIGN_KEY]


def numbered(
    start: int, now: int, keys: list[bytes | None], values: list[bytes | None], headers: list[Any]
) -> pa.Table:
    """Return deliveries of a door, which get the numbers from `start` on and this moment as their append time."""
    size = len(values)
    columns = [
        np.arange(start, start + size), np.full(size, now * 1_000), keys, values, headers,
    ]  # fmt: skip
    return pa.table(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, DELIVERY_SCHEMA, strict=True)
        ],
        schema=DELIVERY_SCHEMA,
    )


@dataclass(frozen=True, slots=True)
class ReplayRules:
    """Whose stream metadata is filtered by, and what becomes of deliveries that have none (RPL-2, RPL-3)."""

    producers: frozenset[int]
    strict: bool


@dataclass(frozen=True, slots=True)
class Undecoded:
    """What is known about deliveries before any of them is decoded."""

    codes: dict[int, int]
    """The reason by row, 0 for a replay; the rest is decoded."""
    upstream: pa.Array
    """The stream metadata of announced producers."""

    @classmethod
    def of(
        cls, records: pa.Table, rules: ReplayRules | None, marks: Mapping[Upstream, Reached]
    ) -> Undecoded:
        """Judge deliveries by their stream metadata; without rules there is nothing to judge by."""
        if rules is None:
            return cls({}, pa.nulls(records.num_rows, UPSTREAM_TYPE))
        positions = positions_of(records["key"], records["headers"])
        kinds = filter_replays(positions, rules.producers, marks).kinds
        codes = dict.fromkeys(np.flatnonzero(kinds == Kind.REPLAYED).tolist(), 0)
        keyed = (kinds == Kind.NEW) | (kinds == Kind.REPLAYED)
        if rules.strict:
            codes |= dict.fromkeys(np.flatnonzero(~keyed).tolist(), _FOREIGN_KEY)
        return cls(codes, pc.if_else(pa.array(keyed), positions, None).cast(UPSTREAM_TYPE))


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """Deliveries with what step 1 found out about them, line by line."""

    records: pa.Table
    facts: pa.Table
    business_keys: tuple[str, ...]

    def head(self, size: int) -> ReadBlock:
        """Return the first deliveries as a block of their own."""
        return ReadBlock(
            self.records.slice(0, size), self.facts.slice(0, size), self.business_keys[:size]
        )

    def tail(self, start: int) -> ReadBlock:
        """Return what follows the first deliveries."""
        return ReadBlock(
            self.records.slice(start), self.facts.slice(start), self.business_keys[start:]
        )


def read_block(
    records: pa.Table,
    after: Mark,
    rules: Rules,
    partition: int = 0,
    replays: ReplayRules | None = None,
    upstream: Mapping[Upstream, Reached] = MappingProxyType({}),
) -> ReadBlock:
    """Decode, validate and route every delivery of a source partition, in offset order.

    Where replays are filtered, what lies at or below its upstream mark is not even decoded.
    """
    undecoded = Undecoded.of(records, replays, upstream)
    with garbage_collection_paused():
        return _read_block(records, after, rules, partition, undecoded)


def _read_block(
    records: pa.Table,
    after: Mark,
    rules: Rules,
    source_partition: int,
    undecoded: Undecoded,
) -> ReadBlock:
    stream_time, forgotten = after.stream_time, after.forgotten_before
    append_times = _milliseconds(records["timestamp"])
    headers = naming_headers(records["headers"])
    rows: list[tuple[Any, ...]] = []
    partition_cache: dict[tuple[int, str], int] = {}
    codes = undecoded.codes
    read: Callable[..., Event | Refusal] = (
        read_record if isinstance(rules, RecordRules) else read_envelope
    )
    for row, raw in enumerate(records["value"].to_pylist()):
        named = headers.get(row, _NO_HEADERS)
        if row in codes:
            run = run_outside(named, rules.run_id)
            rows.append((run, *_NOTHING_READ, stream_time, codes[row], None, None, ""))
            continue
        found = read(raw, named, append_times[row], stream_time, rules, forgotten)
        if isinstance(found, Refusal):
            reason, *names = found
            code = CODE_OF_REASON[reason]
            rows.append((*names, None, None, None, stream_time, code, None, None, ""))
            continue
        run_id, event_class, event_id, event_time, identity, payload_hash, route, key = found
        if stream_time is None or event_time > stream_time:
            stream_time = event_time
        partition = partition_cache.get((route, key))
        if partition is None:
            partition = partition_for(rules.routes[route], key, source_partition)
            partition_cache[route, key] = partition
        rows.append(
            (run_id, event_class, event_id, event_time, identity, payload_hash, stream_time, 0, route,
             partition, key)
        )  # fmt: skip
    (
        runs, classes, event_ids, event_times, identities, hashes, stream_times, reasons, routes,
        partitions, business_keys,
    ) = zip(*rows, strict=True)  # fmt: skip
    columns = [
        records["offset"], append_times, runs, classes, event_ids, identities, hashes, event_times,
        stream_times, reasons, routes, partitions, undecoded.upstream,
    ]  # fmt: skip
    facts = pa.table(
        [_column(values, field.type) for values, field in zip(columns, FACTS_SCHEMA, strict=True)],
        schema=FACTS_SCHEMA,
    )
    return ReadBlock(records.select(DELIVERY_SCHEMA.names), facts, business_keys)


def _column(values: object, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(wanted):
        return pa.array(values, pa.string()).dictionary_encode()
    known = isinstance(values, pa.ChunkedArray | pa.Array)
    return values if known else pa.array(values, wanted)


def _milliseconds(timestamps: pa.ChunkedArray) -> list[int]:
    micros = timestamps.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    milliseconds: list[int] = (micros.to_numpy() // 1_000).tolist()
    return milliseconds
