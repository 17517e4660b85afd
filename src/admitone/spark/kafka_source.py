"""Spark's own Kafka source, read committed, from the marks; and the jars it needs.

One task per partition, in offset order: nothing here may ask Spark to split or join partitions.

Headers go to our workers as text, and only where there are any: writing a nested column to Arrow costs Spark three
times as much as everything else it does for a record, even when the column is empty. Counting needs three of them,
which become columns of their own.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from admitone.analytics.admitted_records import HEADERS_READ, NUMBERS, POSITION
from admitone.core.wire import ADMITTED_HEADERS, Header
from admitone.settings import Settings
from admitone.transport.kafka_options import java_options
from admitone.transport.port import HEADERS_TYPE, Topic

PACKAGES: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
PACKED_HEADERS: Final = "packed_headers"
_FLAT: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    f"CASE WHEN size(headers) > 0 THEN to_json(headers) END AS {PACKED_HEADERS}",
)  # fmt: skip
_FOUND: Final = "try_element_at(filter(headers, h -> h.key = '{name}'), -1).value"
# The boundary writes them in this place; other producers may write them anywhere.
_PLACED: Final = (
    "CASE WHEN get(headers, {place}).key = '{name}' THEN get(headers, {place}).value"
    f" ELSE {_FOUND} END"
)
_STAMPS: Final = {
    column: _PLACED.format(name=name, place=ADMITTED_HEADERS.index(name))
    for column, name in zip(NUMBERS, HEADERS_READ, strict=True)
}
_LAST: Final = len(ADMITTED_HEADERS) - 1
# What an older release admitted has one header less.
_MORE_HEADERS: Final = (
    f"size(headers) > {_LAST + 1} OR get(headers, {_LAST}).key <> '{ADMITTED_HEADERS[_LAST]}'"
)
COUNTED: Final = (
    "key", "value", "topic", "partition", "offset", "timestamp",
    *(
        f"try_cast(CAST({value} AS STRING) AS BIGINT) AS {column}"
        for column, value in _STAMPS.items()
    ),
    f"CASE WHEN {_MORE_HEADERS} THEN {_FOUND.format(name=Header.POSITION)} END AS {POSITION}",
)  # fmt: skip
"""What counting reads of a record."""
_RECORDS_AT_ONCE: Final = 10_000
_FETCH_BYTES: Final = 8 << 20
_IVY_SETTINGS: Final = Path(__file__).with_name("ivy.xml")


def kafka_packages() -> dict[str, str]:
    """Return the session options that fetch the source by exact coordinates, nothing transitive."""
    return {
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.jars.ivySettings": str(_IVY_SETTINGS),
    }


def kafka_stream(
    spark: SparkSession,
    settings: Settings,
    begin: dict[Topic, list[int]],
    max_per_trigger: int,
    *,
    packed: bool,
    counted: bool,
) -> DataFrame:
    """Return topics as a stream that begins at the given next offsets; a gap ends it."""
    client = {f"kafka.{name}": value for name, value in java_options(settings).items()}
    stream = (
        spark.readStream.format("kafka")
        .options(**client)
        .option("assign", _json({t: list(range(t.partitions)) for t in begin}))
        .option(
            "startingOffsets",
            _json({t: {str(n): o for n, o in enumerate(first)} for t, first in begin.items()}),
        )
        .option("maxOffsetsPerTrigger", str(max_per_trigger))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .option("kafka.max.poll.records", str(_RECORDS_AT_ONCE))
        .option("kafka.max.partition.fetch.bytes", str(_FETCH_BYTES))
        .load()
    )
    if counted:
        return stream.selectExpr(*COUNTED)
    return stream.selectExpr(*_FLAT) if packed else stream


def handed_ends(batch: DataFrame) -> dict[str, dict[int, int]]:
    """Return the next offset after what the tasks of a micro-batch are given, by topic and partition.

    Asked of the tasks themselves: what stands in a checkpoint folder is only what a program wrote there.
    """
    ends: dict[str, dict[int, int]] = {}
    for task in batch._jdf.queryExecution().analyzed().rdd().partitions():
        given = task.inputPartition().get().offsetRange()
        place = given.topicPartition()
        ends.setdefault(place.topic(), {})[place.partition()] = given.untilOffset()
    return ends


def with_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records with their headers as the Kafka source has them."""
    index = batch.schema.get_field_index(PACKED_HEADERS)
    texts = batch.column(index)
    if texts.null_count == len(texts):
        headers = pa.nulls(len(texts), HEADERS_TYPE)
    else:
        headers = pa.array([_headers(text) for text in texts.to_pylist()], HEADERS_TYPE)
    return batch.set_column(index, pa.field("headers", HEADERS_TYPE), headers)


def _headers(text: str | None) -> list[dict[str, str | bytes | None]] | None:
    if text is None:
        return None
    return [
        {"key": entry["key"], "value": b64decode(entry["value"]) if "value" in entry else None}
        for entry in orjson.loads(text)
    ]


def _json(by_topic: dict[Topic, object]) -> str:
    return json.dumps({topic.name: value for topic, value in by_topic.items()})
