"""The replay filter: which records of one destination partition were written before (RPL-2, RPL-3).

A producer that writes in source-offset order and is restarted writes some records again. So a record at or below the
highest offset seen of its *upstream* (producer id and source partition) is a replay, and a record above it is new and
raises that mark. This holds as long as records are read in the order of the destination partition, and
as long as an upstream's records reach that partition in source order.

*Order violations* are returns: a record whose offset is not above that of the record before it of the same upstream.
One for each batch that was written again is normal. Many say that a job repartitioned, interleaved two writers
under one id, or wrote several records under one offset, and then the filter drops what is no replay. The count cannot
be sharper: offsets have gaps wherever something was filtered, compacted or aborted upstream, so a record
that is missing leaves no trace, and an original that comes too late looks exactly like a replay.

*Spans* are for aggregates, where one record stands for a range of source offsets; see `kind_of_span`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from admitone.core.wire import Longs, decode

NOTHING_SEEN: Final = -1

Upstream = tuple[int, int]
"""A producer id and one of its source partitions."""


class Kind(IntEnum):
    """What the filter finds out about one record."""

    NEW = 0
    REPLAYED = 1
    UNKEYED = 2
    """It has no key."""
    FOREIGN = 3
    """Its key is no stream metadata, or its producer was not announced."""
    SHIFTED = 4
    """A span that was partly seen before: it can be neither counted nor dropped."""


class Reached(NamedTuple):
    """How far one upstream was seen."""

    highest: int = NOTHING_SEEN
    last: int = NOTHING_SEEN
    """The offset of the record read last; below the highest while a batch is being replayed."""


class Progress(NamedTuple):
    """What some records did to the mark of one upstream."""

    before: Reached
    after: Reached
    replayed: int
    order_violations: int

    def then(self, later: Progress) -> Progress:
        """Return what these records and the ones after them did together."""
        return Progress(
            self.before,
            later.after,
            self.replayed + later.replayed,
            self.order_violations + later.order_violations,
        )

    def beside(self, other: Progress) -> Progress:
        """Return what two pieces did together that were judged by the same marks."""
        after = max(self.after, other.after)
        return self.then(other)._replace(after=after)


@dataclass(frozen=True, slots=True)
class Filtered:
    """The kind of each record, and how far each upstream among them came."""

    kinds: npt.NDArray[np.uint8]
    progress: dict[Upstream, Progress]

    def marks(self, before: Mapping[Upstream, Reached]) -> dict[Upstream, Reached]:
        """Return the marks from here on."""
        return {**before, **{upstream: moved.after for upstream, moved in self.progress.items()}}


def kind_of_span(first: int, last: int, mark: int) -> Kind:
    """Return what an aggregate over source offsets first to last is, once `mark` was counted (RPL-7).

    Its key says only `last`. A producer that is restarted may cut its batches elsewhere, and then a span begins
    below the mark and ends above it: by its key alone it would pass as new and count its first part twice.
    """
    if first > mark:
        return Kind.NEW
    return Kind.REPLAYED if last <= mark else Kind.SHIFTED


def filter_replays(
    keys: Any,
    announced: Collection[int] | None,
    marks: Mapping[Upstream, Reached],
    firsts: Any = None,
) -> Filtered:
    """Judge consecutive records of one destination partition by their keys, in offset order.

    Announced are the producer ids that are filtered by; None stands for all. With `firsts`, the lowest
    source offset of each record, records are spans. What is judged in pieces is judged the same as in one go.
    """
    whole, (producers, partitions, offsets) = decode(keys)
    kinds = np.full(len(whole), Kind.FOREIGN, np.uint8)
    kinds[np.asarray(keys.is_null())] = Kind.UNKEYED
    known = (partitions >= 0) & (offsets >= 0)
    if announced is not None:
        known &= np.isin(producers, np.array(sorted(announced), np.int64))
    rows = np.flatnonzero(whole)
    begins = None
    if firsts is not None:
        begins = np.asarray(firsts.fill_null(NOTHING_SEEN).to_numpy(zero_copy_only=False))[rows]
        known &= (begins >= 0) & (begins <= offsets)
        begins = begins[known]
    rows, producers, partitions, offsets = (
        column[known] for column in (rows, producers, partitions, offsets)
    )
    progress: dict[Upstream, Progress] = {}
    for upstream, members in by_upstream(producers, partitions):
        before = marks.get(upstream, Reached())
        chosen = offsets[members]
        judged, progress[upstream] = (
            _judge(chosen, before)
            if begins is None
            else _judge_spans(begins[members], chosen, before)
        )
        kinds[rows[members]] = judged
    return Filtered(kinds, progress)


def by_upstream(producers: Longs, partitions: Longs) -> list[tuple[Upstream, Longs]]:
    """Return the rows of each upstream, in order."""
    if not len(producers):
        return []
    ids, codes = np.unique(producers, return_inverse=True)
    places = (codes.astype(np.int64) << 32) | (partitions.astype(np.int64) & 0xFFFFFFFF)
    order = np.argsort(places, kind="stable")
    edges = np.flatnonzero(np.diff(places[order])) + 1
    found = []
    for members in np.split(order, edges):
        place = int(places[members[0]])
        found.append(((int(ids[place >> 32]), place & 0xFFFFFFFF), members))
    return found


def _judge(offsets: Longs, before: Reached) -> tuple[npt.NDArray[np.uint8], Progress]:
    earlier = np.concatenate([[before.highest], offsets[:-1]])
    replayed = offsets <= np.maximum.accumulate(earlier)
    highest = max(before.highest, int(offsets.max()))
    return replayed.astype(np.uint8), Progress(
        before,
        Reached(highest, int(offsets[-1])),
        int(np.count_nonzero(replayed)),
        _returns(offsets, before),
    )


def _judge_spans(
    firsts: Longs, lasts: Longs, before: Reached
) -> tuple[npt.NDArray[np.uint8], Progress]:
    # One after the other: a span that is refused does not raise the mark, so each depends on the one before.
    # There is one for each partition and micro-batch, not one for each event.
    highest, kinds = before.highest, []
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        kind = kind_of_span(first, last, highest)
        highest = last if kind is Kind.NEW else highest
        kinds.append(kind)
    return np.array(kinds, np.uint8), Progress(
        before,
        Reached(highest, int(lasts[-1])),
        kinds.count(Kind.REPLAYED),
        _returns(lasts, before),
    )


def _returns(offsets: Longs, before: Reached) -> int:
    previous = np.concatenate([[before.last], offsets[:-1]])
    return int(np.count_nonzero(offsets <= previous))
