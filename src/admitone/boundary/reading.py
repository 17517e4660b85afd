"""Step 1, read: from records of one source partition to the facts of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.decisions import CODE_OF_REASON
from admitone.core.envelope import EnvelopeRules, Event, read_envelope
from admitone.core.routing import partition_of
from admitone.ledger.columns import FACTS_SCHEMA

_MEANINGFUL_HEADERS = pa.array(["runId", "eventClass"])
_NO_HEADERS: dict[str, bytes] = {}
JOURNAL_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """Deliveries with what step 1 found out about them, line by line."""

    records: pa.Table
    facts: pa.Table
    business_keys: list[str]

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


def read_block(records: pa.Table, stream_time: int | None, rules: EnvelopeRules) -> ReadBlock:
    """Decode, validate and route every delivery, in offset order."""
    append_times = _milliseconds(records["timestamp"])
    headers = _meaningful_headers(records["headers"])
    event_ids: list[str | None] = []
    runs: list[str] = []
    classes: list[str | None] = []
    identities: list[bytes | None] = []
    hashes: list[bytes | None] = []
    event_times: list[int | None] = []
    stream_times: list[int | None] = []
    reasons: list[int] = []
    routes: list[int | None] = []
    partitions: list[int | None] = []
    business_keys: list[str] = []
    partition_cache: dict[tuple[int, str], int] = {}
    for row, raw in enumerate(records["value"].to_pylist()):
        found = read_envelope(
            raw, headers.get(row, _NO_HEADERS), append_times[row], stream_time, rules
        )
        runs.append(found.run_id)
        classes.append(found.event_class)
        event_ids.append(found.event_id)
        if isinstance(found, Event):
            stream_time = (
                found.event_time if stream_time is None else max(stream_time, found.event_time)
            )
            target = (found.route, found.business_key)
            partition = partition_cache.get(target)
            if partition is None:
                partition = partition_of(found.business_key, rules.routes[found.route].partitions)
                partition_cache[target] = partition
            identities.append(found.identity)
            hashes.append(found.payload_hash)
            event_times.append(found.event_time)
            reasons.append(0)
            routes.append(found.route)
            partitions.append(partition)
            business_keys.append(found.business_key)
        else:
            identities.append(None)
            hashes.append(None)
            event_times.append(None)
            reasons.append(CODE_OF_REASON[found.reason])
            routes.append(None)
            partitions.append(None)
            business_keys.append("")
        stream_times.append(stream_time)
    columns = [
        records["offset"].combine_chunks(), append_times, runs, classes, event_ids, identities, hashes,
        event_times, stream_times, reasons, routes, partitions,
    ]  # fmt: skip
    facts = pa.table(
        [_column(values, field.type) for values, field in zip(columns, FACTS_SCHEMA, strict=True)],
        schema=FACTS_SCHEMA,
    )
    return ReadBlock(records.select(JOURNAL_COLUMNS), facts, business_keys)


def _column(values: object, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(wanted):
        return pa.array(values, pa.string()).dictionary_encode()
    return values if isinstance(values, pa.ChunkedArray) else pa.array(values, wanted)


def _milliseconds(timestamps: pa.ChunkedArray) -> list[int]:
    micros = timestamps.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    milliseconds: list[int] = (micros.to_numpy() // 1_000).tolist()
    return milliseconds


def _meaningful_headers(column: pa.ChunkedArray) -> dict[int, dict[str, bytes]]:
    """Return the headers that step 1 reads, by row; most deliveries have none."""
    found: dict[int, dict[str, bytes]] = {}
    headers = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    entries = headers.flatten()
    if not len(entries):
        return found
    names = entries.field("key")
    hits = np.flatnonzero(np.asarray(pc.is_in(names, value_set=_MEANINGFUL_HEADERS)))
    rows = np.asarray(headers.value_parent_indices())[hits]
    chosen = entries.take(pa.array(hits))
    for row, name, value in zip(
        rows.tolist(),
        chosen.field("key").to_pylist(),
        chosen.field("value").to_pylist(),
        strict=True,
    ):
        found.setdefault(row, {})[name] = value if value is not None else b""
    return found
