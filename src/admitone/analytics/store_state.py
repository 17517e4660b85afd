"""How far a store of counts has come, and what that says about a window: complete, kept, or neither."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from admitone.analytics.active_sources import NO_BLOCK, Spans, first_active
from admitone.core.errors import ConfigurationError
from admitone.core.sketches import SketchParameters
from admitone.core.windows import BEGINNING, Window


class CountingParameters(NamedTuple):
    """The parameters counts are made under."""

    sketch: SketchParameters
    kinds: tuple[str, ...]
    lateness: int
    idle_after: int
    keep_minutes: int
    keep_hours: int
    max_values: int

    def of(self, kind: str) -> SketchParameters:
        """Return the shape of a window of this kind."""
        return self.sketch if kind in ("minute", "hour") else self.sketch.widened()

    def must_fit(self, before: CountingParameters) -> None:
        """Refuse with the reason if what was counted under former parameters cannot be counted on under these."""
        old, new = before.sketch, self.sketch
        problems = []
        if (old.width, old.depth) != (new.width, new.depth):
            problems.append(
                f"the sketches are {old.width}x{old.depth} and cannot become {new.width}x{new.depth}"
            )
        if new.counter_bits < old.counter_bits:
            problems.append(
                f"counters have {old.counter_bits} bits and cannot shrink to {new.counter_bits}"
            )
        missing = [kind for kind in self.kinds if kind not in before.kinds]
        if missing:
            problems.append(f"{', '.join(missing)} would start in the middle of what was counted")
        if problems:
            raise ConfigurationError(
                f"{'; '.join(problems)}.", "admitone recompute, or the former [topk]"
            )

    def to_json(self) -> str:
        """Return the parameters as stores record them."""
        return json.dumps({**self._asdict(), "sketch": self.sketch._asdict()})

    @classmethod
    def from_json(cls, text: str) -> CountingParameters:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        values["sketch"] = SketchParameters(**values["sketch"])
        values["kinds"] = tuple(values["kinds"])
        return cls(**values)


class SourceProgress(NamedTuple):
    """How far one source partition had come in what was counted of it."""

    stream_time: int
    append_time: int
    block: int = NO_BLOCK
    """The last block of it that was counted."""

    def is_active(self, first_block: int, first_append: int) -> bool:
        """Tell whether it is active; where its records have no number, append times must do."""
        if self.block == NO_BLOCK:
            return self.append_time >= first_append
        return self.block >= first_block


class Clock(NamedTuple):
    """What time it is for the counts: never the wall's."""

    frontier: int
    """The stream time of the slowest active source partition; what it has passed is complete."""
    newest: int
    """The stream time of the fastest one; retention is counted back from it."""

    @classmethod
    def of(cls, sources: Iterable[SourceProgress], spans: Spans, idle_after: int) -> Clock | None:
        """Return what time it is; `analytics.active_sources` says which sources are active.

        One whose records have no number, from a foreign producer or an older release, is active if it appended within
        `idle_after` of the newest append.
        """
        known = list(sources)
        if not known:
            return None
        first_block = first_active(spans.values())
        first_append = max(source.append_time for source in known) - idle_after
        active = [source for source in known if source.is_active(first_block, first_append)]
        return cls(
            frontier=min(source.stream_time for source in active),
            newest=max(source.stream_time for source in known),
        )

    def completes(self, window: Window, lateness: int) -> bool:
        """Tell whether everything on time is in; global never is complete."""
        return window.kind != "global" and window.end_ms + lateness <= self.frontier

    def horizon(self, kind: str, parameters: CountingParameters) -> int:
        """Return the end of the newest window of a kind that is no longer kept; day and above always are."""
        keep = {"minute": parameters.keep_minutes, "hour": parameters.keep_hours}.get(kind)
        return BEGINNING if keep is None else self.newest - keep

    def keeps(self, window: Window, parameters: CountingParameters) -> bool:
        """Tell whether a window is inside its retention."""
        return window.end_ms > self.horizon(window.kind, parameters)


class Mark(NamedTuple):
    """The last counted offset of one partition of one incarnation of a topic, and what was written to it twice."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    counted: int = 0
    replayed: int = 0
    order_violations: int = 0


class Point(NamedTuple):
    """How far a store had come when something was read from it."""

    generation: int
    revision: int
    frontier: int
    newest: int

    @property
    def fence(self) -> str:
        """Return a text that is greater for every later point."""
        return f"{self.generation:016d}-{self.revision:012d}"


def revision_of(fence: str) -> int:
    """Return the revision of the point a fence was made from; 0 where there is no fence."""
    return int(fence.rpartition("-")[2] or 0)


@dataclass(frozen=True, slots=True)
class StoreState:
    """What answers say about where they come from."""

    generation: int
    """When this life of the store began: it is made, counted into by a new query, or replaced by a recomputation."""
    revision: int
    updated_at: int
    parameters: CountingParameters
    clock: Clock | None
    """None before anything was counted."""
    marks: tuple[Mark, ...]

    @property
    def point(self) -> Point | None:
        """Return how far the store has come; None before anything was counted."""
        return None if self.clock is None else Point(self.generation, self.revision, *self.clock)

    def is_complete(self, window: Window) -> bool:
        """Tell whether everything on time is in."""
        return self.clock is not None and self.clock.completes(window, self.parameters.lateness)

    def is_kept(self, window: Window) -> bool:
        """Tell whether a window is inside its retention."""
        return self.clock is None or self.clock.keeps(window, self.parameters)
