"""What time it is: the one place that asks the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def wall_clock() -> int:
    """Return now in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
