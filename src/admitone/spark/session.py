"""The Spark session of the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from admitone.core.errors import ConfigurationError
from admitone.settings import Settings
from admitone.spark.kafka_source import kafka_packages

LOG = "data/spark.log"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def open_session(settings: Settings, name: str = "admitone") -> SparkSession:
    """Start a session with what the pipeline needs; without a cluster nothing listens beyond this machine.

    What Spark and its workers print goes to `data/spark.log`.
    """
    # Workers must be the interpreter that has this package, not whichever python3 comes first.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    on_this_machine = settings.spark.master == "local" or settings.spark.master.startswith("local[")
    if on_this_machine:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        _must_be_reachable(settings)
    options = {
        "spark.driver.memory": settings.spark.driver_memory,
        **(_LOOPBACK if on_this_machine else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.buffer.size": str(1 << 20),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "false",
        "spark.log.level": "WARN",
        **(kafka_packages() if settings.transport.kind == "kafka" else {}),
        **settings.spark.options,
    }
    builder = SparkSession.builder.appName(name).master(settings.spark.master)
    for key, value in options.items():
        builder = builder.config(key, value)
    with _output_to(settings.resolve(LOG)):
        return builder.getOrCreate()


def _must_be_reachable(settings: Settings) -> None:
    """Refuse a log or a ledger that is a file of this machine: tasks run on others."""
    files = [
        place
        for place, is_file in (
            (f"the log in {settings.transport.path}", settings.transport.kind == "folder"),
            ("the ledger in SQLite", settings.ledger.url.startswith("sqlite:")),
        )
        if is_file
    ]
    if files:
        raise ConfigurationError(
            f"On {settings.spark.master} tasks run on other machines, which do not see {' and '.join(files)}.",
            'use [transport] kind = "kafka" and a postgresql:// ledger, or master = "local[*,4]"',
        )


@contextmanager
def _output_to(file: Path) -> Iterator[None]:
    """Let processes that are started meanwhile inherit a file as their standard output and error."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in kept:
        os.dup2(target, stream)
    try:
        yield
    finally:
        for stream, original in kept.items():
            os.dup2(original, stream)
            os.close(original)
        os.close(target)
