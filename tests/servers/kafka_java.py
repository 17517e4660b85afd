"""Runs the Java programs of Kafka: the broker of the tests, and what benchmarks compare with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Quick to start: without the compiler that makes it fast later.
QUICK = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# As Kafka's own scripts start it: what is measured runs like this.
USUAL = ("-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
_RESOLVE = Path(__file__).parents[2] / "scripts" / "kafka.sh"


def jars() -> Path:
    """Return the folder with Kafka's jars; they are fetched when they are not there yet."""
    found = subprocess.run([_RESOLVE], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise FileNotFoundError(f"there is no Kafka to start: {found.stderr.strip()}")
    return Path(found.stdout.strip())


def java_command(
    options: Sequence[str], program: str, *arguments: str | Path, classes: Path | None = None
) -> list[str | Path]:
    """Return the command that runs a class of Kafka's jars, or one of `classes`; its warnings go to stderr."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    logging = "-Dorg.slf4j.simpleLogger"
    path = f"{jars()}/*" + (f":{classes}" if classes else "")
    return [
        java, *options, f"{logging}.defaultLogLevel=warn", f"{logging}.showDateTime=true",
        "-cp", path, program, *arguments,
    ]  # fmt: skip
