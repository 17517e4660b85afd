"""Segments of the dedup window: keys live in whole slices of stream time that expire together.

One segment is open and takes all inserts; the others are only read. With a retention of 100 days the
interval is 50 days: stream time 4,320,000,000 ms opens segment 1, named `admission.4320000000`.
"""

from __future__ import annotations

from typing import NamedTuple

_FLOOR_MS = 60_000


class Segment(NamedTuple):
    """A slice of stream time that holds keys."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """Return the first moment after every key it can hold."""
        return self.start + self.length


def interval_of(retention_ms: int) -> int:
    """Return the length of a segment: half the retention, at least a minute."""
    return max(retention_ms // 2, _FLOOR_MS)


def segment_of(timestamp_ms: int, interval_ms: int) -> int:
    """Return the segment that holds this moment; floor division, also before 1970."""
    return timestamp_ms // interval_ms


def segment_for(newest_event_time: int, retention_ms: int) -> Segment:
    """Return the segment that a store whose newest event has this time should have open."""
    interval = interval_of(retention_ms)
    return Segment(segment_of(newest_event_time, interval) * interval, interval)


def segment_name(store: str, start_ms: int) -> str:
    """Return the name of a segment: its store and the moment it begins."""
    return f"{store}.{start_ms}"


def oldest_live(stream_time_ms: int, retention_ms: int) -> int:
    """Return the oldest event time that is still in the window; what lies before it has expired."""
    return stream_time_ms - retention_ms + 1


def is_droppable(end_ms: int, slowest_stream_time_ms: int, retention_ms: int) -> bool:
    """Tell whether every key of a segment that ends here has expired for the slowest partition too."""
    return end_ms <= oldest_live(slowest_stream_time_ms, retention_ms)
