"""What is done to processes that stand for machines."""

from __future__ import annotations

import time

import psutil

_PATIENCE_S = 60.0


def suspend(pid: int) -> None:
    """Suspend a process, and wait until nothing of it moves any more: a signal takes its time."""
    process = psutil.Process(pid)
    process.suspend()
    deadline = time.monotonic() + _PATIENCE_S
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.002)
