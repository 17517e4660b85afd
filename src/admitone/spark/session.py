"""The Spark session of the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from admitone.core.errors import ConfigurationError, ServiceUnreachable
from admitone.settings import Settings
from admitone.spark.class_archive import shared_classes
from admitone.spark.kafka_source import kafka_packages

LOG = "data/spark.log"
_COLLECTOR = "-XX:+UseParallelGC"
_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def refuse_what_only_this_machine_has(settings: Settings) -> None:
    """Refuse a log, a ledger or a password that tasks on other machines would not find."""
    if _on_this_machine(settings):
        return
    files = [f"the log in {settings.transport.path}"] if settings.transport.kind == "folder" else []
    if settings.ledger.url.startswith("sqlite:"):
        files.append("the ledger in SQLite")
    if files:
        raise ConfigurationError(
            f"On {settings.spark.master} tasks run on other machines, which do not see {' and '.join(files)}.",
            'use [transport] kind = "kafka" and a postgresql:// ledger, or master = "local[*,4]"',
        )
    if "PGPASSWORD" in os.environ and not urlsplit(settings.ledger.url).password:
        raise ConfigurationError(
            f"On {settings.spark.master} tasks run on other machines, where PGPASSWORD of this one is not set.",
            "put the whole URL into ADMITONE_LEDGER__URL, which travels with the task, or the password into a"
            " passfile on every machine",
        )


def open_session(settings: Settings, name: str = "admitone") -> SparkSession:
    """Start a session with what the pipeline needs; without a cluster nothing listens beyond this machine.

    What Spark and its workers print goes to `data/spark.log`.
    """
    if _on_this_machine(settings):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        use_installed_modules()
    # Workers must be the interpreter that has this package, not whichever python3 comes first.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = {
        "spark.driver.memory": settings.spark.driver_memory,
        # Batches are to be finished soon; a pause in between holds up nobody.
        "spark.driver.defaultJavaOptions": " ".join((_COLLECTOR, *shared_classes())),
        "spark.executor.defaultJavaOptions": _COLLECTOR,
        **(_LOOPBACK if _on_this_machine(settings) else {}),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.buffer.size": str(1 << 20),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "10s",
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "false",
        "spark.log.level": "WARN",
        **(kafka_packages() if settings.transport.kind == "kafka" else {}),
        **settings.spark.options,
    }
    builder = SparkSession.builder.appName(name).master(settings.spark.master).config(map=options)
    with _output_to(settings.resolve(LOG)):
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise ServiceUnreachable(
                f"Spark does not start on {settings.spark.master}: {str(error).splitlines()[0]}",
                f"see the end of {settings.resolve(LOG)}; check [spark] master and options, and that its jars can"
                " be fetched",
            ) from error


def use_installed_modules() -> None:
    """Let workers on this machine start with the installed modules of Spark instead of its zip, in half the time."""
    launcher = Path(__file__).with_name("worker_python")
    if "PYSPARK_PYTHON" not in os.environ and os.access(launcher, os.X_OK):
        os.environ["PYSPARK_PYTHON"] = str(launcher)
        os.environ["ADMITONE_WORKER_PYTHON"] = sys.executable
        os.environ["ADMITONE_WORKER_PYTHONPATH"] = os.environ.get("PYTHONPATH", "")


def _on_this_machine(settings: Settings) -> bool:
    return settings.spark.master == "local" or settings.spark.master.startswith("local[")


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
