"""Records that an upstream pipeline wrote, and wrote again."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from admitone.core.wire import StreamMetadata
from admitone.transport.port import HEADERS_TYPE, OUTGOING_SCHEMA
from tests.support.pipeline import Pipeline, event

UPSTREAM, OTHER, STRANGER = 41, -42, 43


FILTERED: dict[str, Any] = {
    "raw_partitions": 1, "filter_replays": True, "producers": [UPSTREAM, OTHER],
}  # fmt: skip


class Written(NamedTuple):
    """One record as an upstream job writes it."""

    key: bytes | None
    value: bytes
    run: str | None = None


def copied(*offsets: int, producer: int = UPSTREAM, partition: int = 0) -> list[Written]:
    """Return what a job that copies events from these source offsets writes."""
    return [
        Written(
            StreamMetadata(producer, partition, offset).to_bytes(),
            event(f"e{producer}-{partition}-{offset}"),
        )
        for offset in offsets
    ]


def write(pipeline: Pipeline, records: list[Written], partition: int = 0) -> None:
    epoch = pipeline.transport.init_producer("upstream")
    headers = [
        [] if record.run is None else [{"key": "runId", "value": record.run.encode()}]
        for record in records
    ]
    table = pa.table(
        [
            pa.array([partition] * len(records), pa.int32()),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array(headers, HEADERS_TYPE),
        ],
        schema=OUTGOING_SCHEMA,
    )
    pipeline.transport.append("upstream", epoch, {pipeline.topic.name: table})
