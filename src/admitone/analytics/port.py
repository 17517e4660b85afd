"""Where counts are kept, and what every store guarantees.

- *One transaction per batch.* Counts, the progress of sources and the marks they were counted up
to become durable together or not at all. A mark moves only from the value that was read; otherwise
`MarkMoved`, and nothing changes.
- *Nothing twice.* Replays are found by marks that move in the same transaction. A minute is folded
upward once. What comes for a folded minute is added to it and to every window above in the same
transaction, so for every window and list total + late = the weight admitted.
- *A pure result.* Which windows there are and what they hold depends on the records, not on how
they were batched.

- *A recomputation is seen whole or not at all.* It counts into a second store, whose content takes the place of this
one's in one transaction.

Readers get a `SketchReader`, whose connection cannot write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from admitone.analytics.active_sources import Spans
from admitone.analytics.store_state import CountingParameters, SourceProgress, StoreState
from admitone.core.items import OTHER
from admitone.core.replay_filter import Progress, Reached, Upstream
from admitone.core.sketches import SketchBytes, WindowSketch
from admitone.core.windows import Window
from admitone.governance.rules_in_force import Rules

NOTHING_READ = -1
"""The mark of a partition that was never counted."""


class Delta(NamedTuple):
    """What a batch adds to one minute of one list."""

    dimension_list: str
    minute: int
    parts: SketchBytes


Place = tuple[str, int]
"""A topic, by its id or by its name, and one of its partitions."""
UpstreamMarks = Mapping[Place, Mapping[Upstream, Reached]]
"""How far each source partition was seen in each partition of the admitted log (RPL-2)."""


class KeptValues(NamedTuple):
    """The values of one grouping attribute that have a list of their own."""

    values: frozenset[str]
    closed: bool
    """No further value gets a list: the rest is counted under `*other`, for good."""

    @property
    def listed(self) -> list[str]:
        """Return the values that can be asked for: those with a list, and the one that the rest share."""
        return [*sorted(self.values), *([OTHER] if self.closed else [])]


NOTHING_KEPT = KeptValues(frozenset(), closed=False)


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
    spans: Spans = field(default_factory=dict)
    upstream: Mapping[Place, Mapping[Upstream, Progress]] = field(default_factory=dict)
    """By topic id and partition, how far the source partitions came that are seen there."""


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

    def sketches(
        self, windows: Iterable[Window], dimension_list: str
    ) -> Iterator[tuple[Window, WindowSketch]]:
        """Yield what is known about a list in windows, their open minutes included; empty ones are left out."""

    def rules_of(self, window: Window) -> list[str]:
        """Return the hashes of the rules that a window was counted under, where they are known."""

    def rules(self) -> dict[bytes, bytes]:
        """Return every document of rules that was ever counted by, under its hash."""

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

    def adopt(self, parameters: CountingParameters, rules: Rules | None = None) -> None:
        """Count under these parameters from the next batch on, or refuse with the reason.

        Windows that gain something from then on name the hash of the rules, where they are given; they are kept.
        """

    def keep_values(self, values: Mapping[tuple[str, str], KeptValues]) -> None:
        """Give an empty store the values another one chose, so that it makes the same lists."""

    def begin_life(self, now: int, beyond: int = 0) -> None:
        """Begin a new life, as a query does before it counts: its generation is beyond every one before.

        A store that was restored from an older copy would give revisions out again that an outlet has seen. `changes`
        goes on telling what changed since a point of a former life, as far as this store lived it.
        """

    def marks(self) -> dict[tuple[str, int], int]:
        """Return the last counted offset by topic id and partition."""

    def upstream_marks(self) -> UpstreamMarks:
        """Return the marks by which replays are found, by topic id and partition."""

    def sources(self) -> dict[tuple[int, int], SourceProgress]:
        """Return how far each source partition had come in what was counted of it."""

    def spans(self) -> Spans:
        """Return the spans of the ledger's clock by which sources are judged active."""

    def fit_marks(self, partitions: Mapping[str, int]) -> None:
        """Note how many partitions the topics have whose replays are filtered, by topic id.

        `ContractDrift` when a topic's marks were made for another number. A topic that is left out is filtered
        no longer, and may have any number when it is named again.
        """

    def commit(self, batch: CountedBatch) -> int:
        """Make one batch durable and return the store's new revision."""

    def replacement(self) -> AbstractContextManager[Self]:
        """Make an empty second store that no reader sees, under the parameters this one was opened with.

        It is removed at the end. What a killed process left of an earlier one is removed at the beginning.
        """

    def writing(self) -> AbstractContextManager[object]:
        """Hold back all other writers; readers go on. All that is written within is durable at its end, or nothing."""

    def take_over(self, replacement: Self, now: int) -> None:
        """Replace all content by that of a store of `replacement`, as a new life of this one; only within `writing`.

        Generation and revision rise, and for readers of `changes` all windows have changed.
        """
