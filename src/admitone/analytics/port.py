"""Where counts are kept, and what every store guarantees.

- *One transaction per batch.* Counts, the progress of sources and the marks they were counted up
to become durable together or not at all. A mark moves only from the value that was read; otherwise
`MarkMoved`, and nothing changes.
- *Nothing twice.* Replays are found by marks that move in the same transaction. A minute is folded
upward once. What comes for a folded minute is added to it and to every window above in the same
transaction, so for every window and list total + late = the weight admitted.
- *A pure result.* Which windows there are and what they hold depends on the records, not on how
they were batched.

Readers get `SketchReader`, which cannot write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from admitone.core.replay_filter import Progress, Reached, Upstream
from admitone.core.sketches import SketchBytes, SketchParameters, WindowSketch
from admitone.core.windows import Window

NOTHING_READ = -1
"""The mark of a partition that was never counted."""


class SourceProgress(NamedTuple):
    """How far one source partition had come in what was counted of it."""

    stream_time: int
    append_time: int


class Delta(NamedTuple):
    """What a batch adds to one minute of one list."""

    dimension_list: str
    minute: int
    parts: SketchBytes


class Mark(NamedTuple):
    """The last counted offset of one partition of one incarnation of a topic, and what was written to it twice."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    counted: int = 0
    replayed: int = 0
    order_violations: int = 0


Place = tuple[str, int]
"""A topic, by its id or by its name, and one of its partitions."""
UpstreamMarks = Mapping[Place, Mapping[Upstream, Reached]]
"""How far each source partition was seen in each partition of the admitted log (RPL-2)."""


class KeptValues(NamedTuple):
    """The values of one grouping attribute that have a list of their own."""

    values: frozenset[str]
    closed: bool
    """No further value gets a list: the rest is counted under `*other`, for good."""


@dataclass(frozen=True, slots=True)
class PartitionRead:
    """What a batch read of one partition of the admitted log."""

    topic: str
    topic_id: str
    partition: int
    mark: int
    last_offset: int
    counted: int
    re_read: int
    skipped: int


@dataclass(frozen=True, slots=True)
class CountedBatch:
    """Everything one batch wants to make durable."""

    reads: Sequence[PartitionRead]
    sources: Mapping[tuple[int, int], SourceProgress]
    deltas: Sequence[Delta]
    counted_at: int
    candidates: Mapping[tuple[str, str], Sequence[frozenset[str]]] = field(default_factory=dict)
    """Of a worker that met more new values than it may report: the ones it did report."""
    upstream: Mapping[Place, Mapping[Upstream, Progress]] = field(default_factory=dict)
    """By topic id and partition, how far the source partitions came that are seen there."""


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


class Clock(NamedTuple):
    """What time it is for the counts: never the wall's."""

    frontier: int
    """The stream time of the slowest active source partition; what it has passed is complete."""
    newest: int
    """The stream time of the fastest one; retention is counted back from it."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """What answers say about where they come from."""

    generation: int
    """When this life of the store began: it is made, or replaced by a recomputation."""
    revision: int
    updated_at: int
    parameters: CountingParameters
    clock: Clock | None
    marks: tuple[Mark, ...]


class Changes(NamedTuple):
    """The windows of each list that changed since some revision."""

    whole: bool
    """It could not be told what changed: these are all there are."""
    lists: Mapping[str, Collection[Window]]


class SketchReader(Protocol):
    """Reads counts; cannot change them."""

    def snapshot(self) -> AbstractContextManager[object]:
        """Let everything read inside come from one commit."""

    def state(self) -> StoreState:
        """Return the store's revision, parameters, clock and marks."""

    def windows(self) -> list[Window]:
        """Return every window there is, open ones included."""

    def sketch(self, window: Window, dimension_list: str) -> WindowSketch | None:
        """Return what is known about a list in a window, its open minutes included."""

    def sketches(
        self, windows: Iterable[Window], dimension_list: str
    ) -> Iterator[tuple[Window, WindowSketch]]:
        """Yield the same for many windows, each open minute read once; empty ones are left out."""

    def lists_in(self, window: Window) -> list[str]:
        """Return the lists that have anything in a window."""

    def changes(self, generation: int, revision: int) -> Changes:
        """Return what changed after a revision of one life of the store."""

    def kept_values(self) -> dict[tuple[str, str], KeptValues]:
        """Return the values that have a list, by dimension and attribute."""

    def close(self) -> None:
        """Release what is open."""


class SketchStore(SketchReader, Protocol):
    """Keeps counts, and the progress they stand for."""

    def adopt(self, parameters: CountingParameters) -> None:
        """Count under these parameters from the next batch on, or refuse with the reason."""

    def keep_values(self, values: Mapping[tuple[str, str], KeptValues]) -> None:
        """Give an empty store the values another one chose, so that it makes the same lists."""

    def marks(self) -> dict[tuple[str, int], int]:
        """Return the last counted offset by topic id and partition."""

    def upstream_marks(self) -> UpstreamMarks:
        """Return the marks by which replays are found, by topic id and partition."""

    def fit_marks(self, partitions: Mapping[str, int]) -> None:
        """Say how many partitions the topics have whose replays are filtered, by topic id.

        `ContractDrift` when a topic's marks were made for another number. A topic that is left out is filtered
        no longer, and may have any number when it is named again.
        """

    def commit(self, batch: CountedBatch) -> int:
        """Make one batch durable and return the store's new revision."""


class Shelf(Protocol):
    """The rows of one transaction, as folding sees them: each read at most once, then written."""

    def get(self, window: str, dimension_list: str) -> SketchBytes | None:
        """Return the stored parts."""

    def put(self, window: str, dimension_list: str, parts: SketchBytes) -> None:
        """Replace the stored parts."""

    def meta(self, window: str, dimension_list: str) -> bytes | None:
        """Return the stored totals only."""

    def put_meta(self, window: str, dimension_list: str, meta: bytes) -> None:
        """Replace the stored totals only."""

    def lists_in(self, window: str) -> list[str]:
        """Return the lists stored for a window."""
