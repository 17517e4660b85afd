"""Two Spark jobs as somebody might write them: one copies a topic with stream metadata, one reads the copies.

Run it as `python -m tests.spark.copying_jobs copy|copy-and-read BOOTSTRAP SOURCE FOLDER AGGREGATES COPY:N...`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.query import StreamingQuery

from admitone import aggregate_partitions, filter_replays, mark_replays, metadata_key
from admitone.spark.kafka_source import kafka_packages

PRODUCER = 4_242
AGGREGATED = ((0, 19), (20, 39), (20, 39), (30, 49), (40, 59))
"""First and last source offset of each batch that is aggregated."""


def copy(
    spark: SparkSession, bootstrap: str, source: str, folder: str, copies: dict[str, int]
) -> None:
    """Copy a topic to several others, a few records at a time, until all of it is there."""
    queries = []
    for name, partitions in copies.items():
        # The destination is the source partition, modulo how many there are; nothing moves in between.
        records = _records(spark, bootstrap, source, 36).select(
            metadata_key(PRODUCER).alias("key"),
            "value",
            (F.col("partition") % partitions).alias("partition"),
        )
        queries.append(
            records.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", name)
            .option("checkpointLocation", f"{folder}/checkpoints/{name}")
            .trigger(availableNow=True)
            .start()
        )
    _finish(queries)


def read(spark: SparkSession, bootstrap: str, folder: str, copies: dict[str, int]) -> None:
    """Read the copies without what was written again: as streams, and in one go."""
    queries = []
    for name, partitions in copies.items():
        stream = _records(spark, bootstrap, name, 120)
        streamed = filter_replays(stream, {PRODUCER}, partitions=partitions)
        queries.append(
            streamed.select("key", "value")
            .writeStream.option("checkpointLocation", f"{folder}/read/{name}-checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/read/{name}-streamed", format="parquet")
        )
        batch = mark_replays(
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", name)
            .load(),
            {PRODUCER},
        )
        batch.select("key", "value", "replay").write.parquet(f"{folder}/read/{name}-batch")
    _finish(queries)


def aggregate(spark: SparkSession, bootstrap: str, source: str, folder: str, topic: str) -> None:
    """Aggregate a topic in batches, fall back, cut the next ones elsewhere; then read what was written."""
    kafka = {"kafka.bootstrap.servers": bootstrap, "includeHeaders": "true"}
    records = spark.read.format("kafka").options(**kafka, subscribe=source).load()
    for first, last in AGGREGATED:
        made = aggregate_partitions(
            records.where(F.col("offset").between(first, last)),
            F.count("*").alias("records"),
            producer=PRODUCER,
            by=["topic"],
        )
        made.select("key", "headers", F.to_json("groups").alias("value")).write.format(
            "kafka"
        ).options(**kafka, topic=topic).save()
    written = spark.read.format("kafka").options(**kafka, subscribe=topic).load()
    marked = mark_replays(written, {PRODUCER}, spans=True)
    marked.select("key", "offset", "value", "replay").write.parquet(f"{folder}/read/{topic}")


def _records(spark: SparkSession, bootstrap: str, topic: str, at_once: int) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", at_once)
        .load()
    )


def _finish(queries: list[StreamingQuery]) -> None:
    for query in queries:
        query.awaitTermination()


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    job, bootstrap, source, folder, aggregates, *given = sys.argv[1:]
    copies = {name: int(partitions) for name, partitions in (text.split(":") for text in given)}
    builder = SparkSession.builder.master("local[2,4]").appName(Path(__file__).stem)
    for name, value in {
        **kafka_packages(),
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    copy(spark, bootstrap, source, folder, copies)
    if job == "copy-and-read":
        read(spark, bootstrap, folder, copies)
        aggregate(spark, bootstrap, source, folder, aggregates)
    spark.stop()


if __name__ == "__main__":
    main()
