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


def started(home: Path, inherited: signal.Handlers) -> subprocess.Popen[bytes]:
    """Start a service as a shell does in front or in the background; return as soon as it says where it is."""
    command = [sys.executable, "-m", "admitone", "serve", "--port", "0", "--home", home]
    said = home / "said"
    with said.open("wb") as out:
        running = subprocess.Popen(
            command, stdout=out, stderr=out,
            preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),  # noqa: PLW1509
        )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_S
    while b"serving http" not in said.read_bytes():
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.001)
    return running


@pytest.mark.parametrize(
    ("inherited", "code"),
    [(signal.SIG_DFL, 128 + signal.SIGINT), (signal.SIG_IGN, 0)],
    ids=["in front", "in the background"],
)
def test_ctrl_c_right_after_the_address_was_said_is_not_lost(
    tmp_path: Path, inherited: signal.Handlers, code: int
) -> None:
    for _ in range(3):
        running = started(tmp_path, inherited)
        os.kill(running.pid, signal.SIGINT)
        try:
            assert running.wait(PATIENCE_S) == code
        finally:
            running.kill()
