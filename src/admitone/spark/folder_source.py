"""The folder log as a Spark stream: one task per partition, in offset order, like Spark's Kafka source.

It comes in two shapes: the columns of the Kafka source, or the same records as Arrow bytes, thousands to a row,
because Spark turns every field of a row into an object on its way from Python to Python, which costs more than
deciding about it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from admitone.settings import Settings
from admitone.spark.packing import pack
from admitone.transport.folder_log import FolderLog
from admitone.transport.port import Topic

_FORMAT = "admitone_log"
_SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)

PACKED_RECORDS = "records"
_PACKED_SCHEMA = f"partition INT, {PACKED_RECORDS} BINARY"

Offsets = dict[str, dict[str, int]]
"""Next offset by topic id and partition (text, because Spark keeps offsets as JSON)."""


def folder_stream(
    spark: SparkSession,
    settings: Settings,
    begin: dict[Topic, list[int]],
    max_per_trigger: int,
    *,
    packed: bool,
) -> DataFrame:
    """Return topics of the folder log as a stream that begins at the given next offsets."""
    # Spark looks for the name in the thread's active session, not in the one it registers it in: make them one.
    spark.createDataFrame([], "nothing INT")
    spark.dataSource.register(FolderLogSource)
    offsets: Offsets = {
        topic.topic_id: {str(number): offset for number, offset in enumerate(first)}
        for topic, first in begin.items()
    }
    return (
        spark.readStream.format(_FORMAT)
        .option("path", str(settings.resolve(settings.transport.path)))
        .option("topics", json.dumps([[t.name, t.topic_id, t.partitions] for t in begin]))
        .option("begin", json.dumps(offsets))
        .option("maxPerTrigger", str(max_per_trigger))
        .option("packed", str(packed))
        .load()
    )


class FolderLogSource(DataSource):  # type: ignore[misc]
    """Spark's name for the folder log."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return _FORMAT

    def schema(self) -> str:
        """Return the columns of the Kafka source, or the packed ones."""
        return _PACKED_SCHEMA if self.options["packed"] == "True" else _SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return the reader of one query."""
        return _Reader(dict(self.options))


class _Reader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, options: dict[str, str]) -> None:
        self._path = options["path"]
        self._topics = [Topic(*entry) for entry in json.loads(options["topics"])]
        self._begin: Offsets = json.loads(options["begin"])
        self._limit = int(options["maxpertrigger"])
        self._packed = options["packed"] == "True"

    def initialOffset(self) -> dict[str, Any]:
        return self._begin

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        ends = self._ends()
        if isinstance(limit, ReadAllAvailable):
            return ends
        wanted = {
            (topic, partition): max(end - start[topic][partition], 0)
            for topic, partitions in ends.items()
            for partition, end in partitions.items()
        }
        given = _share(wanted, self._limit)
        return {
            topic: {
                partition: start[topic][partition] + given[topic, partition]
                for partition in partitions
            }
            for topic, partitions in ends.items()
        }

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [
            InputPartition((topic, number, first, last))
            for topic in self._topics
            for number in range(topic.partitions)
            for first, last in [(ends[topic.topic_id][str(number)] for ends in (start, end))]
            if first < last
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        topic, number, first, last = partition.value
        log = FolderLog(Path(self._path))
        for batch in log.read(topic, number, first, last):
            yield _pack(batch, number) if self._packed else batch
        log.close()

    def _ends(self) -> Offsets:
        log = FolderLog(Path(self._path))
        ends = {
            topic.topic_id: {str(number): end for number, end in enumerate(log.ends(topic))}
            for topic in self._topics
        }
        log.close()
        return ends


def _pack(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Return a few rows that hold the records as Arrow bytes."""
    packed = pack(batch)
    return pa.RecordBatch.from_arrays(
        [pa.repeat(pa.scalar(partition, pa.int32()), len(packed)), pa.array(packed, pa.binary())],
        names=["partition", PACKED_RECORDS],
    )


def _share(wanted: dict[tuple[str, str], int], limit: int) -> dict[tuple[str, str], int]:
    """Share a limit among partitions: small ones get all they want, the rest equal parts."""
    given: dict[tuple[str, str], int] = {}
    left = limit
    for count, key in enumerate(sorted(wanted, key=wanted.__getitem__)):
        given[key] = min(wanted[key], max(left // (len(wanted) - count), 1 if wanted[key] else 0))
        left = max(left - given[key], 0)
    return given
