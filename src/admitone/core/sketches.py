"""Everything that is kept about one list in one window.

Three parts, each stored under a key of its own:

    sketch:v1:{window}:{list}         Count-Min: a certain upper bound for any item
    space-saving:v1:{window}:{list}   the heaviest items with both bounds, and the distinct count
    meta:v1:{window}:{list}           JSON: totals, when it last changed, under which parameters

What they say together about an item:

    lower    = the summary's lower bound
    upper    = the smallest of the summary's upper bound, the Count-Min estimate and the total
    estimate = upper, as both papers define it; exact wherever lower = upper

Example. total 1,000; the summary says 40 <= x <= 52, Count-Min says x <= 47: the answer is 47,
between 40 and 47.

Each source is a bound on its own, so their intersection is one, and all three parts merge by
adding: lower <= true <= upper holds for every tree of merges from minutes up to global. `late` is
weight that came too late for its minute; it is counted here and in no sketch, so total + late is
everything that was admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import orjson

from admitone.core.countmin import Cells, CountMin, cells_of
from admitone.core.errors import IntegrityError
from admitone.core.summary import Bounds, Summary, distinct_hash

META_VERSION: Final = 1


class SketchParameters(NamedTuple):
    """The shape of a window's sketches."""

    width: int = 1024
    depth: int = 5
    counter_bits: int = 32
    k: int = 100

    def widened(self) -> SketchParameters:
        """Return the shape for day and above, where 32 bits are too few."""
        return self._replace(counter_bits=64)


class SketchBytes(NamedTuple):
    """A window sketch as it is stored and sent."""

    sketch: bytes
    summary: bytes
    meta: bytes


class RankedItem(NamedTuple):
    """One line of a top-K answer."""

    rank: int
    item: str
    estimate: int
    lower: int
    upper: int


class Ranking(NamedTuple):
    """The heaviest items, and no other was counted more often than `unlisted`."""

    items: list[RankedItem]
    unlisted: int


class Meta(NamedTuple):
    """The totals of a window and list."""

    total: int
    late: int
    distinct: int
    updated_at: int
    saturated: bool
    parameters: SketchParameters

    def to_bytes(self) -> bytes:
        """Return the JSON form."""
        document = {
            "version": META_VERSION,
            **self._asdict(),
            "parameters": self.parameters._asdict(),
        }
        return orjson.dumps(document)

    @classmethod
    def from_bytes(cls, data: bytes) -> Meta:
        """Read what `to_bytes` wrote; fields a newer minor release added are ignored."""
        document: dict[str, Any] = orjson.loads(data)
        if document["version"] != META_VERSION:
            raise IntegrityError(
                f"Expected window totals of version {META_VERSION}, got {document['version']}.",
                "use the release that wrote them, or a newer one",
            )
        values = {name: document[name] for name in cls._fields}
        values["parameters"] = SketchParameters(**document["parameters"])
        return cls(**values)


class ItemHashes:
    """Cells and distinct hash of items, computed once however many lists of one shape they are in."""

    def __init__(self, parameters: SketchParameters) -> None:
        self._width = parameters.width
        self._depth = parameters.depth
        self._rows: dict[str, int] = {}
        self._cells: Cells = np.zeros((64, parameters.depth), np.int64)
        self._hashes: list[int] = []

    def of(self, items: Iterable[str]) -> tuple[Cells, list[int]]:
        """Return the cells (one row each) and the distinct hashes of some items."""
        known = self._rows
        rows = [known[item] if item in known else self._learn(item) for item in items]
        return self._cells[rows], [self._hashes[row] for row in rows]

    def _learn(self, item: str) -> int:
        row = self._rows[item] = len(self._hashes)
        if row == len(self._cells):
            self._cells = np.concatenate([self._cells, np.zeros_like(self._cells)])
        self._cells[row] = cells_of(item, self._width, self._depth)
        self._hashes.append(distinct_hash(item))
        return row


class WindowSketch:
    """Count-Min, top-K summary, distinct count and totals of one list in one window."""

    __slots__ = ("countmin", "late", "parameters", "summary", "total", "updated_at")

    def __init__(self, parameters: SketchParameters) -> None:
        self.parameters = parameters
        self.countmin = CountMin(parameters.width, parameters.depth, parameters.counter_bits)
        self.summary = Summary(parameters.k)
        self.total = 0
        self.late = 0
        self.updated_at = 0

    def update(self, counts: Mapping[str, int], hashes: ItemHashes | None = None) -> None:
        """Add items with their weights; hashes where items are in other lists as well."""
        if not counts:
            return
        cells, distinct = (hashes or ItemHashes(self.parameters)).of(counts)
        self.countmin.update(cells, counts.values())
        self.summary.update(counts, distinct)
        self.total += sum(counts.values())

    def merge(self, other: WindowSketch) -> None:
        """Add another window of the same list."""
        if other.total:
            self.countmin.merge(other.countmin)
            self.summary.merge(other.summary)
        self.total += other.total
        self.late += other.late
        self.updated_at = max(self.updated_at, other.updated_at)

    def bounds(self, item: str) -> Bounds:
        """Return lower <= true count <= upper."""
        lower, upper = self.summary.bounds(item)
        upper = min(upper, self.countmin.estimate(item, self.total), self.total)
        return Bounds(lower, max(upper, lower))

    def top(self, k: int) -> list[RankedItem]:
        """Return the heaviest items, heaviest first; ties by the surer one, then by name."""
        return self.ranking(k).items

    def ranking(self, k: int) -> Ranking:
        """Return the heaviest items, and how heavy any other can be at most.

        Count-Min only lowers upper bounds, and looking an item up there costs more than anything else here: so only
        the first of the table are looked up where they decide it, all of them where they do not.
        """
        known = sorted(self.summary.entries(), key=lambda entry: (-entry[1].lower, entry[0]))
        looked_up = min(2 * k, len(known))
        found = self._ranked(known[:looked_up])
        beyond = known[looked_up][1].upper if looked_up < len(known) else 0
        if k and beyond and beyond >= found[k - 1].upper:
            found, beyond = self._ranked(known), 0
        rest = found[k].upper if k < len(found) else 0
        unlisted = min(max(rest, beyond, self.summary.offset), self.total)
        return Ranking([entry._replace(rank=n) for n, entry in enumerate(found[:k], 1)], unlisted)

    def meta(self) -> Meta:
        """Return the totals."""
        return Meta(
            self.total,
            self.late,
            self.summary.distinct(),
            self.updated_at,
            self.countmin.saturated,
            self.parameters,
        )

    def to_bytes(self) -> SketchBytes:
        """Return the three stored parts."""
        return SketchBytes(
            self.countmin.to_bytes(), self.summary.to_bytes(), self.meta().to_bytes()
        )

    @classmethod
    def from_bytes(cls, parts: SketchBytes) -> WindowSketch:
        """Read the three stored parts."""
        meta = Meta.from_bytes(parts.meta)
        sketch = cls.__new__(cls)
        sketch.parameters = meta.parameters
        sketch.countmin = CountMin.from_bytes(parts.sketch)
        sketch.summary = Summary.from_bytes(parts.summary)
        sketch.total = meta.total
        sketch.late = meta.late
        sketch.updated_at = meta.updated_at
        return sketch

    def _ranked(self, entries: Sequence[tuple[str, Bounds]]) -> list[RankedItem]:
        """Return these in their order, without their ranks."""
        if self.summary.offset:
            limits = self.countmin.estimates([item for item, _ in entries], self.total)
        else:
            limits = [bounds.upper for _, bounds in entries]  # Exact already.
        found = []
        for (item, (lower, upper)), limit in zip(entries, limits, strict=True):
            certain = max(min(upper, limit, self.total), lower)
            found.append(RankedItem(0, item, certain, lower, certain))
        found.sort(key=lambda entry: (-entry.upper, -entry.lower, entry.item))
        return found
