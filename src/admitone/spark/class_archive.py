"""The classes that Spark needs, kept as a JVM has them in memory: half of what it costs to start a session.

    python -m admitone.spark.class_archive

makes the archive, once for each Java and each Spark: some 150 MB in the environment of this Python. Sessions look for
it when they start; a JVM that it does not fit ignores it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyspark

from admitone.core.errors import AdmitoneError, ServiceUnreachable
from admitone.infra.clock import Patience

_LONGEST_S: Final = 300
_EVENT: Final = (
    '{"metadata":{"eventId":"1","eventType":"page_view","source":"-","timestamp":"2026-01-01T00:00:00Z",'
    '"partitionKey":"1","schemaVersion":1},"payload":{"url":"/"}}\n'
)


def spark_archive() -> Path:
    """Return where the archive is for the Java that would be started now."""
    home = os.environ.get("JAVA_HOME")
    java = Path(shutil.which(Path(home, "bin", "java") if home else "java") or "java").resolve()
    made_at = java.stat().st_mtime_ns if java.exists() else 0
    key = hashlib.sha256(f"{java} {made_at} {pyspark.__version__}".encode()).hexdigest()[:16]
    return Path(sys.prefix, "share", "admitone", f"spark-{key}.jsa")


def shared_classes() -> tuple[str, ...]:
    """Return the options of a JVM that uses the archive; none where there is none."""
    archive = spark_archive()
    return (f"-XX:SharedArchiveFile={shlex.quote(str(archive))}",) if archive.exists() else ()


def make_archive() -> Path:
    """Decide and count one event in a home folder of its own, and keep the classes that took."""
    archive = spark_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=archive.parent) as folder:
        home, unfinished = Path(folder, "home"), Path(folder, "classes.jsa")
        keeping = {"SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={unfinished}"}
        _command("init", home)
        _command("ingest", home, "-", sent=_EVENT)
        session = _command("run", home, "--until-idle", environment=keeping)
        _await_end(session)
        if not unfinished.exists():
            raise ServiceUnreachable(
                "Java kept no classes.", "is it Java 17 or later, from OpenJDK?"
            )
        unfinished.rename(archive)
    return archive


def _command(
    name: str, home: Path, *more: str, sent: str = "", environment: dict[str, str] | None = None
) -> int:
    """Run a command to its end in a process group of its own; return the group."""
    words = [sys.executable, "-m", "admitone", name, *more, "--home", str(home)]
    child = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=os.environ | (environment or {}), start_new_session=True,
    )  # fmt: skip
    _, said = child.communicate(sent, timeout=_LONGEST_S)
    if child.returncode != 0:
        raise ServiceUnreachable(f"admitone {name} failed: {said.strip()}", "see the message above")
    return child.pid


def _await_end(group: int) -> None:
    """Wait for the JVM, which writes the archive after the process that started it has ended."""
    patience = Patience(_LONGEST_S)
    while patience.pause():
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
    raise ServiceUnreachable("Java did not end.", "is the disk slow or full?")


if __name__ == "__main__":
    try:
        print(spark_archive() if spark_archive().exists() else make_archive())
    except AdmitoneError as error:
        sys.exit(f"{error}")
