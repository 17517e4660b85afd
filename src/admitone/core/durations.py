"""Durations as people write them: `500ms`, `60s`, `10m`, `1h`, `100d`, `1w`."""

from __future__ import annotations

import re

_UNITS_MS = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_DURATION = re.compile(r"([0-9]+)\s*(ms|s|m|h|d|w)")


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds a duration such as `10m` stands for."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(
            f"expected a number and one of {', '.join(_UNITS_MS)}, such as 10m; got {text!r}"
        )
    return int(match[1]) * _UNITS_MS[match[2]]


def format_duration(ms: int) -> str:
    """Return the shortest exact spelling, the inverse of `parse_duration_ms`."""
    for unit, size in sorted(_UNITS_MS.items(), key=lambda pair: -pair[1]):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
