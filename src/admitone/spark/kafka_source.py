"""Spark's own Kafka source, read committed, from the marks; and the jars it needs.

One task per partition, in offset order: nothing here may ask Spark to split or join partitions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from admitone.settings import Settings
from admitone.transport.kafka_clients import java_options
from admitone.transport.port import Topic

PACKAGES: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
_IVY_SETTINGS: Final = Path(__file__).with_name("ivy.xml")


def kafka_packages() -> dict[str, str]:
    """Return the session options that fetch the source by exact coordinates, nothing transitive."""
    return {
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.jars.ivySettings": str(_IVY_SETTINGS),
    }


def kafka_stream(
    spark: SparkSession, settings: Settings, begin: dict[Topic, list[int]], max_per_trigger: int
) -> DataFrame:
    """Return topics as a stream that begins at the given next offsets; a gap ends it."""
    reader = spark.readStream.format("kafka")
    for name, value in java_options(settings).items():
        reader = reader.option(f"kafka.{name}", value)
    return (
        reader.option("assign", _json({t: list(range(t.partitions)) for t in begin}))
        .option(
            "startingOffsets",
            _json({t: {str(n): o for n, o in enumerate(first)} for t, first in begin.items()}),
        )
        .option("maxOffsetsPerTrigger", str(max_per_trigger))
        .option("includeHeaders", "true")
        .option("failOnDataLoss", "true")
        .load()
    )


def _json(by_topic: dict[Topic, object]) -> str:
    return json.dumps({topic.name: value for topic, value in by_topic.items()})
