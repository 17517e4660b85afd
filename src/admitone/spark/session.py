"""The Spark session of the command line."""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from admitone.settings import Settings


def open_session(settings: Settings, name: str = "admitone") -> SparkSession:
    """Start a session with what the pipeline needs and nothing that listens."""
    # Workers must be the interpreter that has this package, not whichever python3 comes first.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = {
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "false",
        "spark.log.level": "ERROR",
        **settings.spark.options,
    }
    builder = SparkSession.builder.appName(name).master(settings.spark.master)
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
