"""What time it is, how long something takes and how long it is tried again: one wall clock, stopwatch and backoff."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

_LONGEST_PAUSE_S = 1.0

Clock = Callable[[], int]


def wall_clock() -> int:
    """Return now in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def stopwatch() -> int:
    """Return the milliseconds since some moment, for measuring how long something takes here: it never jumps."""
    return time.monotonic_ns() // 1_000_000


class Patience:
    """How long something is tried again, with growing pauses that differ between workers."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause_s = 0.01

    def pause(self) -> bool:
        """Wait a little; tell whether there is time for another try."""
        if time.monotonic() > self._deadline:
            return False
        time.sleep(self._pause_s * random.uniform(0.5, 1.0))
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return True
