"""A service stops when it is told to, however soon that is, and however it was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PATIENCE_S = 60.0


def started(home: Path, before: str) -> subprocess.Popen[bytes]:
    """Start a service from a shell; return as soon as it says where it is."""
    command = f"{before} exec {sys.executable} -m admitone serve --port 0 --home {home}"
    said = home / "said"
    with said.open("wb") as out:
        running = subprocess.Popen(["bash", "-c", command], stdout=out, stderr=out)
    deadline = time.monotonic() + PATIENCE_S
    while b"serving http" not in said.read_bytes():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.001)
    return running


@pytest.mark.parametrize("before", ["", "trap '' INT;"], ids=["in front", "in the background"])
def test_ctrl_c_right_after_the_address_was_said_is_not_lost(tmp_path: Path, before: str) -> None:
    for _ in range(3):
        running = started(tmp_path, before)
        os.kill(running.pid, signal.SIGINT)
        try:
            code = running.wait(PATIENCE_S)
        finally:
            running.kill()
        # Whoever ignores the signal sees an end like any other.
        assert code == (0 if before else 128 + signal.SIGINT)
