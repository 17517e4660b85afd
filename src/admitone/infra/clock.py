"""What time it is, how long something takes and how long it is tried again: one wall clock, stopwatch and backoff."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

Clock = Callable[[], int]


def wall_clock() -> int:
    """Return now in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def stopwatch() -> int:
    """Return the milliseconds since some moment, for measuring how long something takes here: it never jumps."""
    return time.monotonic_ns() // 1_000_000


def pauses(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield how many seconds to wait before each further try: twice as long each time, up to the longest."""
    while True:
        yield first_s
        first_s = min(2 * first_s, longest_s)


class Patience:
    """How long something is tried again, with growing pauses that differ between workers."""

    def __init__(self, seconds: float, first_s: float = 0.01, longest_s: float = 1.0) -> None:
        self._deadline = time.monotonic() + seconds
        self._pauses = pauses(first_s, longest_s)

    @property
    def is_over(self) -> bool:
        """Tell whether there is no time for another try."""
        return time.monotonic() > self._deadline

    def pause(self) -> bool:
        """Wait a little; tell whether there is time for another try."""
        if self.is_over:
            return False
        time.sleep(next(self._pauses) * random.uniform(0.5, 1.0))
        return True
