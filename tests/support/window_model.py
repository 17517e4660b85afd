"""The window of deduplication as a few dictionaries: what every ledger must decide, written down a second time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

NEW, AGAIN, CONTRADICTION, TOO_OLD = "new", "again", "contradiction", "too old"
_SHORTEST_SEGMENT = 60_000


class Event(NamedTuple):
    """One delivery: who it is, what it carries, and when."""

    key: str
    payload: str
    time: int


class Kept(NamedTuple):
    """What a segment keeps of the first delivery of a key."""

    time: int
    payload: str
    claim: int


@dataclass
class SegmentModel:
    """A slice of stream time: its end, and the keys that were claimed while it was open."""

    end: int
    keys: dict[str, Kept] = field(default_factory=dict)


@dataclass
class SourceModel:
    """How far one source partition is, and when it was heard of last."""

    stream_time: int | None = None
    last_claim: int | None = None


class WindowModel:
    """One store of keys with its sources; no transactions, no tables, no clock of its own."""

    def __init__(self, retention: int, sources: Iterable[object]) -> None:
        self.retention = retention
        self.interval = max(retention // 2, _SHORTEST_SEGMENT)
        self.sources = {source: SourceModel() for source in sources}
        self.segments: dict[int, SegmentModel] = {}
        self.forgotten_before: int | None = None
        self._claims = 0
        self._moments: list[int] = []

    def is_too_old(self, stream_time: int | None, time: int) -> bool:
        """Tell whether an event is refused before anybody looks for its key."""
        if self.forgotten_before is not None and time < self.forgotten_before:
            return True
        return stream_time is not None and time <= stream_time - self.retention

    def read(self, source: object, events: Sequence[Event]) -> list[tuple[bool, int | None]]:
        """Return, for each event, whether it is too old, and the stream time behind it."""
        stream_time, found = self.sources[source].stream_time, []
        for event in events:
            refused = self.is_too_old(stream_time, event.time)
            if not refused:
                stream_time = event.time if stream_time is None else max(stream_time, event.time)
            found.append((refused, stream_time))
        return found

    def open_for(self, source: object, events: Sequence[Event]) -> None:
        """Open the segment of the stream time behind these events, unless a later one is open already."""
        accepted = [time for refused, time in self.read(source, events) if not refused]
        if not accepted:
            return
        newest = max(time for time in accepted if time is not None)
        start = newest // self.interval * self.interval
        if not self.segments or start > max(self.segments):
            self.segments[start] = SegmentModel(start + self.interval)
        opened = self.segments[max(self.segments)]
        opened.end = max(opened.end, newest + 1)

    def see(self, now: int) -> None:
        """Take note of a claim, by the ledger's clock; it may be given back later."""
        self._moments.append(now)

    def decide(self, source: object, events: Sequence[Event], now: int) -> list[str]:
        """Decide a block of one source, delivery by delivery."""
        self._claims += 1
        self.see(now)
        read = self.read(source, events)
        self.open_for(source, events)
        opened = self.segments[max(self.segments)] if self.segments else None
        verdicts = []
        for event, (refused, stream_time) in zip(events, read, strict=True):
            if refused:
                verdicts.append(TOO_OLD)
                continue
            assert opened is not None
            assert stream_time is not None
            kept = self.live(event.key, stream_time).values()
            if kept:
                first = min(kept, key=lambda row: row.claim)
                verdicts.append(AGAIN if first.payload == event.payload else CONTRADICTION)
            else:
                verdicts.append(NEW)
                opened.keys[event.key] = Kept(event.time, event.payload, self._claims)
        known = self.sources[source]
        known.stream_time = read[-1][1]
        if not all(refused for refused, _ in read):
            known.last_claim = len(self._moments)
        return verdicts

    def live(self, key: str, stream_time: int) -> dict[int, Kept]:
        """Return the rows of a key that a source at this stream time has not outlived, by segment."""
        return {
            start: segment.keys[key]
            for start, segment in self.segments.items()
            if key in segment.keys and segment.keys[key].time > stream_time - self.retention
        }

    def passed(self, first: int, last: int, idle_after: int) -> int:
        """Return the time from one claim to another, a tenth of the idle time at most from each to the next."""
        seen = self._moments[first - 1 : last]
        return sum(min(later - earlier, idle_after // 10) for earlier, later in pairwise(seen))

    def expire(self, idle_after: int) -> list[int]:
        """Drop what the slowest active source no longer needs; return where the segments began."""
        heard = [s.last_claim for s in self.sources.values() if s.last_claim is not None]
        if not heard:
            return []
        slowest = min(
            source.stream_time
            for source in self.sources.values()
            if source.stream_time is not None
            and source.last_claim is not None
            and self.passed(source.last_claim, max(heard), idle_after) <= idle_after
        )
        gone = [
            start
            for start, segment in sorted(self.segments.items())
            if start != max(self.segments) and segment.end <= slowest - self.retention + 1
        ]
        for start in gone:
            end = self.segments.pop(start).end
            self.forgotten_before = max(end, self.forgotten_before or end)
        return gone
