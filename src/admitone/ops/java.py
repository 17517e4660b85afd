"""Spark needs Java; say so before Spark does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from admitone.core.errors import ConfigurationError

_OLDEST = 17


def require_java() -> int:
    """Return the major version of the Java that Spark will use, or raise `ConfigurationError`."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    remedy = "install Java 17 or later (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    if java is None or not Path(java).exists():
        raise ConfigurationError("Spark needs Java, and none was found.", remedy)
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', said)
    version = int(match[1]) if match else 0
    if version < _OLDEST:
        raise ConfigurationError(f"Spark needs Java {_OLDEST} or later, found {version}.", remedy)
    return version
