"""A stream of deliveries whose right decisions are known, because each was made to deserve its own.

The stream is planned first (which position is new, repeated, contradicting, late or malformed)
and then made in chunks. The same options give the same bytes. What is right depends neither on the
clock at ingestion nor on the number of source partitions: disorder stays below a minute, and what
is far behind comes only after every partition has surely seen something regular.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from json import dumps
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from admitone.demo.traffic.events import EventType, Made, event_types
from admitone.demo.traffic.malformed import (
    DAY_MS,
    MALFORMED_REASONS,
    NAMED_REASONS,
    Sound,
    iso,
    spoil,
)
from admitone.demo.traffic.spelling import contradict, respell

MINUTE_MS = 60_000
SPAN_MS = 2 * 3_600_000
JITTER_MS = 20_000
CHUNK = 8_192
REMEMBERED = 200_000
DELIVERIES_PER_LARGE = 20_000
SETTLED_AFTER = 300
# 2026-01-01T00:30Z: the two hours before it cross a day, a month and a year inside one ISO week.
DEFAULT_END_MS = 1_767_227_400_000

OFFSETS_MIN = np.array([0] * 16 + [120, -300, 330, 0])
OFFSETS = ["Z"] * 16 + ["+02:00", "-05:00", "+05:30", "+00:00"]

REGULAR, DUPLICATE, CONTRADICTION, LATE, MALFORMED = range(5)


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """How many deliveries, from which seed, and which share of them misbehaves how."""

    events: int
    seed: int = 7
    run: str | None = None
    duplicates: float = 0.2
    contradictions: float = 0.005
    malformed: float = 0.01
    late: float = 0.01
    zipf: float = 1.1
    rate: float | None = None
    end_ms: int | None = None

    def __post_init__(self) -> None:
        shares = (self.duplicates, self.contradictions, self.malformed, self.late)
        if self.events < 0 or (self.rate is not None and self.rate <= 0) or self.zipf < 0:
            raise ValueError("events and zipf must not be negative, and a rate must be positive")
        if min(shares) < 0 or sum(shares) > 0.95:
            raise ValueError(
                "the shares must not be negative and must leave 5 % for regular events"
            )

    @property
    def last_ms(self) -> int:
        """The time of the last regular event."""
        return DEFAULT_END_MS if self.end_ms is None else self.end_ms

    @property
    def spacing_ms(self) -> float:
        """The event time between two deliveries."""
        return 1000 / self.rate if self.rate else SPAN_MS / max(self.events, 1)


class Delivery(NamedTuple):
    """One line and what must become of it; an admitted one also says where it is counted."""

    line: bytes
    event_id: str | None
    event_class: str | None
    verdict: str
    reason: str | None
    minute_ms: int = 0
    item: str = ""
    lists: tuple[str, ...] = ()
    late: bool = False


class _Known(NamedTuple):
    """An event of which something was delivered before."""

    line: bytes
    event_id: str
    event_type: EventType


class _New(NamedTuple):
    """An event nobody has seen, on time."""

    event_id: str
    event_type: EventType
    timestamp_ms: int
    timestamp: str
    made: Made


def generate(options: GeneratorOptions) -> Iterator[Delivery]:
    """Yield the stream's deliveries in order; how they are paced is the caller's business."""
    stream = _Stream(options)
    for start in range(0, options.events, CHUNK):
        yield from stream.chunk(start, min(CHUNK, options.events - start))


class _Stream:
    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._rng = np.random.default_rng(options.seed)
        self._dice = Random(options.seed)
        self._types = event_types(options.zipf)
        self._settled_from = _settled_from(options)
        self._plan = _plan(options, self._settled_from, self._rng)
        self._turn = deque(MALFORMED_REASONS)
        self._next_large = 0
        self._known: list[_Known] = []
        self._admitted = 0
        self._contradicted: deque[_Known] = deque(maxlen=1_000)
        self._newest_ms = 0
        self._run = "" if options.run is None else f',"runId":{dumps(options.run)}'

    def chunk(self, start: int, size: int) -> Iterator[Delivery]:
        plan = self._plan[start : start + size]
        known = (plan == DUPLICATE) | (plan == CONTRADICTION)
        new = self._new_events(start + np.flatnonzero(~known))
        for position, kind in enumerate(plan.tolist(), start):
            if kind == REGULAR:
                yield self._regular(next(new))
            elif kind == DUPLICATE:
                yield self._duplicate()
            elif kind == CONTRADICTION:
                yield self._contradiction()
            elif kind == LATE:
                yield self._late(next(new))
            else:
                yield self._malformed(next(new), position)

    def _new_events(self, positions: NDArray[np.int64]) -> Iterator[_New]:
        rng, count = self._rng, len(positions)
        types = rng.choice(len(self._types), count, p=[kind.share for kind in self._types])
        amounts = np.bincount(types, minlength=len(self._types)).tolist()
        makers = [kind.make(rng, n) for kind, n in zip(self._types, amounts, strict=True)]
        jitter = rng.integers(0, JITTER_MS, count) * (rng.random(count) < 0.2)
        back = (self._options.events - 1 - positions) * self._options.spacing_ms
        times = self._options.last_ms - back.astype(np.int64) - jitter
        offsets = rng.integers(0, len(OFFSETS), count)
        local = (times + OFFSETS_MIN[offsets] * MINUTE_MS).astype("datetime64[ms]")
        digits = rng.bytes(16 * count).hex()
        columns = zip(
            types.tolist(),
            times.tolist(),
            np.datetime_as_string(local).tolist(),
            offsets.tolist(),
            range(0, 32 * count, 32),
            strict=True,
        )
        for kind, time, clock, offset, at in columns:
            yield _New(
                f"{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}"
                f"-a{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}",
                self._types[kind],
                time,
                clock + OFFSETS[offset],
                next(makers[kind]),
            )

    def _regular(self, new: _New) -> Delivery:
        self._newest_ms = max(self._newest_ms, new.timestamp_ms)
        return self._admit(new, late=False)

    def _late(self, new: _New) -> Delivery:
        moment = self._newest_ms - self._dice.randrange(2 * DAY_MS, 30 * DAY_MS)
        return self._admit(new._replace(timestamp_ms=moment, timestamp=iso(moment)), late=True)

    def _admit(self, new: _New, *, late: bool) -> Delivery:
        line = self._envelope(new).encode()
        self._remember(_Known(line, new.event_id, new.event_type))
        minute_ms = new.timestamp_ms // MINUTE_MS * MINUTE_MS
        made = new.made
        return Delivery(
            line,
            new.event_id,
            new.event_type.name,
            "ADMITTED",
            None,
            minute_ms,
            made.item,
            made.lists,
            late,
        )

    def _duplicate(self) -> Delivery:
        event = self._dice.choice(self._known)
        line = event.line if self._dice.random() < 0.5 else respell(event.line, self._dice)
        return Delivery(line, event.event_id, event.event_type.name, "DUPLICATE", None)

    def _contradiction(self) -> Delivery:
        if self._contradicted and self._dice.random() < 0.2:
            event = self._dice.choice(self._contradicted)
        else:
            event = self._dice.choice(self._known)
            line = contradict(event.line, event.event_type.item_field, self._dice)
            event = event._replace(line=line)
            self._contradicted.append(event)
        return Delivery(
            event.line, event.event_id, event.event_type.name, "QUARANTINED", "PAYLOAD_MISMATCH"
        )

    def _malformed(self, new: _New, position: int) -> Delivery:
        reason = self._next_reason(position)
        sound = Sound(self._envelope(new), new.event_type.item_field, self._newest_ms, self._dice)
        line = spoil(sound, reason)
        if reason not in NAMED_REASONS:
            return Delivery(line, None, None, "QUARANTINED", reason)
        event_class = None if reason == "UNKNOWN_EVENT_TYPE" else new.event_type.name
        return Delivery(line, new.event_id, event_class, "QUARANTINED", reason)

    def _next_reason(self, position: int) -> str:
        while True:
            reason = self._turn[0]
            self._turn.rotate(-1)
            if reason == "PAYLOAD_TOO_LARGE":
                if position < self._next_large or self._options.events < DELIVERIES_PER_LARGE:
                    continue
                self._next_large = position + DELIVERIES_PER_LARGE
            elif reason == "TOO_OLD" and position < self._settled_from:
                continue
            return reason

    def _remember(self, event: _Known) -> None:
        # A reservoir: every admitted event so far is equally likely to be in it.
        self._admitted += 1
        if len(self._known) < REMEMBERED:
            self._known.append(event)
        else:
            place = int(self._dice.random() * self._admitted)
            if place < REMEMBERED:
                self._known[place] = event

    def _envelope(self, new: _New) -> str:
        return (
            f'{{"metadata":{{"eventId":"{new.event_id}","eventType":"{new.event_type.name}",'
            f'"source":"{new.event_type.source}","timestamp":"{new.timestamp}",'
            f'"partitionKey":{new.made.partition_key},"schemaVersion":1{self._run}}},'
            f'"payload":{new.made.payload}}}'
        )


def _plan(
    options: GeneratorOptions, settled_from: int, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """Return what stands at each position; the first is regular, late ones come once settled."""
    total = options.events
    plan = np.full(total, REGULAR, dtype=np.uint8)
    if total < 2:
        return plan
    order = rng.permutation(np.arange(1, total))
    late = order[order >= settled_from][: round(options.late * total)]
    plan[late] = LATE
    rest = order[plan[order] == REGULAR]
    malformed = round(options.malformed * total)
    if options.malformed and total >= DELIVERIES_PER_LARGE:
        malformed = max(malformed, 1)
    kinds = [DUPLICATE, CONTRADICTION, MALFORMED]
    amounts = [round(options.duplicates * total), round(options.contradictions * total), malformed]
    labels = np.repeat(np.array(kinds, dtype=np.uint8), amounts)[: len(rest)]
    plan[rest[: len(labels)]] = labels
    return plan


def _settled_from(options: GeneratorOptions) -> int:
    """Return the position from which every source partition has seen regular events."""
    last = options.events - round(options.late * options.events)
    return max(1, min(max(SETTLED_AFTER, options.events // 5), last))
