"""Is everything between a run's first and last place on the log what was decided, and nothing else of ours?

Both sides are written down as rows of numbers: what each admission must look like where the ledger pinned it, and what
lies there. The log is read once, partition by partition, committed records only; then the two are sorted and compared
bucket by bucket, so that neither the run nor the log is ever held whole.

What is gone is accepted below the log's own start only, and only as far as the topic's keeping explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from admitone.core.contract import Keeping
from admitone.core.errors import IntegrityError, NotFound
from admitone.core.wire import decode, positions_of
from admitone.evidence.audit.known_records import KnownRecords
from admitone.evidence.audit.record_digests import Longs, named_records, whole_records
from admitone.infra.spilled_rows import SpilledRows
from admitone.transport.port import Topic, Transport
from admitone.transport.topic_contract import still_there

_EXAMPLES = 5
_BUCKETS: Final = 64
_CHUNK_BITS: Final = 14
"""Neighbours on the log are compared together: the blocks that they lie in are read once for all of them."""
_FOREIGN, _OURS, _EXPECTED, _STEADY_ONLY = range(4)
"""The sides of a row: found and nobody's we know, found and of our producers, expected, and expected but for the
headers that a ledger gives again when it reads a log back."""
_PLACE, _OFFSET, _SIDE, _STEADY, _RENEWED = 0, 1, 2, slice(3, 5), 5
_WIDTH: Final = 6


class Place(NamedTuple):
    """One partition of one incarnation of a topic."""

    topic: str
    topic_id: str
    partition: int


@dataclass(slots=True)
class Stretch:
    """What of a partition is looked at."""

    number: int
    first: int
    last: int
    topic: Topic | None = None
    """As it is there now; None where it is gone."""
    admissions: int = 0
    published: list[tuple[int, int]] = field(default_factory=list)
    """For each block, its last offset there and when it was published."""
    gone: int = 0


class LogAudit:
    """Collects what admissions must look like on the log, and compares it with what is there."""

    def __init__(
        self,
        transport: Transport,
        known: KnownRecords,
        now: int,
        *,
        whole: bool,
        ends: Mapping[Place, int],
        compacted: frozenset[str],
    ) -> None:
        self._transport = transport
        self._known = known
        self._compacted = compacted
        """Topics of which single records may be gone."""
        self._keeping = cache(self._kept_now)
        self._now = now
        self._ends = ends
        """Up to where each partition is read, also behind a run's last place."""
        self.whole = whole
        """Whether the values are known, from the archive; else what the ledger says of a record is compared."""
        self.stretches: dict[Place, Stretch] = {}
        self._rows = SpilledRows(_WIDTH)
        self.compared = 0
        self.gone = 0
        self.vanished = 0
        """Those that are gone although the topic keeps them."""
        self.wrong = 0
        self.unknown = 0
        """Records of ours that the ledger does not know, second copies among them."""
        self.examples: list[str] = []

    def note(self, place: Place, offsets: npt.NDArray[np.int64], published_at: int | None) -> None:
        """Add a block's admissions in one partition to what is looked at."""
        first, last = int(offsets.min()), int(offsets.max())
        found = self.stretches.setdefault(place, Stretch(len(self.stretches), first, last))
        found.first, found.last = min(found.first, first), max(found.last, last)
        found.admissions += len(offsets)
        found.published.append((last, published_at or 0))

    def expect(
        self, place: Place, offsets: npt.NDArray[np.int64], digests: Longs, *, steady_only: bool
    ) -> None:
        """Add what must be at these offsets."""
        side = _STEADY_ONLY if steady_only else _EXPECTED
        if place in self.stretches:
            self._add(self.stretches[place].number, offsets, side, digests)

    def compare(self) -> None:
        """Read the log and compare."""
        starts = [self._read(place, stretch) for place, stretch in self.stretches.items()]
        places = list(self.stretches)
        for _, rows in self._rows.buckets():
            self._compare(rows, places, starts)
        self._rows.close()

    def _read(self, place: Place, stretch: Stretch) -> int | None:
        """Note what lies on a partition; return its first offset, None where the topic is gone."""
        topic = still_there(self._transport, place.topic, place.topic_id)
        if topic is None:
            self.gone += stretch.admissions
            stretch.gone = stretch.admissions
            return None
        stretch.topic = topic
        end = max(stretch.last + 1, self._ends.get(place, 0))
        stretch.last = end - 1
        begin = max(stretch.first, self._transport.starts(topic)[place.partition])
        try:
            for batch in self._transport.read(topic, place.partition, begin, end):
                self._found(stretch.number, batch)
        except IntegrityError as error:
            self.wrong += 1
            self.examples.append(error.problem)
        except NotFound:
            return None
        # Asked afterwards: retention may have moved on meanwhile.
        start = self._transport.starts(topic)[place.partition]
        self._explain(place, stretch, topic, start)
        return start

    def _found(self, number: int, batch: pa.RecordBatch) -> None:
        keys, headers = batch.column("key"), batch.column("headers")
        whole, named = decode(positions_of(keys, headers))
        ours = np.zeros(batch.num_rows, dtype=bool)
        ours[np.flatnonzero(whole)] = np.isin(named.producers, self._known.producers)
        sides = np.where(ours, _OURS, _FOREIGN).astype(np.uint64)
        digests = (
            whole_records(keys, batch.column("value"), headers)
            if self.whole
            else named_records(keys, headers)
        )
        self._add(number, batch.column("offset").to_numpy(), sides, digests)

    def _add(
        self, number: int, offsets: npt.NDArray[np.int64], sides: int | Longs, digests: Longs
    ) -> None:
        rows = np.empty((len(offsets), _WIDTH), dtype=np.uint64)
        rows[:, _PLACE], rows[:, _OFFSET], rows[:, _SIDE] = number, offsets, sides
        rows[:, _STEADY], rows[:, _RENEWED] = digests[:, :2], digests[:, 2]
        chunks = (rows[:, _OFFSET] >> np.uint64(_CHUNK_BITS)) + rows[:, _PLACE]
        self._rows.add(chunks % np.uint64(_BUCKETS), rows)

    def _compare(self, rows: Longs, places: Sequence[Place], starts: Sequence[int | None]) -> None:
        order = np.lexsort((rows[:, _SIDE], rows[:, _OFFSET], rows[:, _PLACE]))
        rows = rows[order]
        expected = rows[:, _SIDE] >= _EXPECTED
        same_place = np.zeros(len(rows), dtype=bool)
        same_place[1:] = (rows[1:, :_SIDE] == rows[:-1, :_SIDE]).all(axis=1)
        # A found row sorts before what is expected in its place.
        pairs = np.flatnonzero(same_place & expected)
        alike = (rows[pairs, _STEADY] == rows[pairs - 1, _STEADY]).all(axis=1)
        steady_only = rows[pairs, _SIDE] == _STEADY_ONLY
        alike &= (rows[pairs, _RENEWED] == rows[pairs - 1, _RENEWED]) | steady_only
        alike &= ~expected[pairs - 1]
        self.compared += len(pairs)
        for index in pairs[~alike].tolist():
            twice = bool(expected[index - 1])
            what = "is the place of two admissions" if twice else "holds another event"
            self._wrong(places, rows[index], what)
        for index in np.flatnonzero(expected & ~same_place).tolist():
            start = starts[int(rows[index, _PLACE])]
            if start is None:
                continue
            place = places[int(rows[index, _PLACE])]
            if int(rows[index, _OFFSET]) < start or place.topic in self._compacted:
                self.gone += 1
                self.stretches[place].gone += 1
            else:
                self.compared += 1
                self._wrong(places, rows[index], "holds nothing")
        left = ~expected & (rows[:, _SIDE] == _OURS)
        left[pairs - 1] = False
        self._look_up(rows[left], places)

    def _look_up(self, rows: Longs, places: Sequence[Place]) -> None:
        """Ask the ledger about records of its producers that are no admissions of this run."""
        for number in np.unique(rows[:, _PLACE]).tolist():
            offsets = rows[rows[:, _PLACE] == number, _OFFSET].astype(np.int64)
            place = places[int(number)]
            topic = self.stretches[place].topic
            assert topic is not None  # something was found there
            for chunk in _chunks(offsets):
                for offset in self._known.strangers(self._transport, topic, place.partition, chunk):
                    self.unknown += 1
                    self._say(place, offset, "holds a record of ours that the ledger does not know")

    def _explain(self, place: Place, stretch: Stretch, topic: Topic, start: int) -> None:
        """Count admissions below a log's start that its topic's keeping does not explain."""
        keeping = self._keeping(topic.name)
        if keeping is None or keeping.compacts:
            return
        lost = sum(
            last < start and not _expired(keeping, at, self._now) for last, at in stretch.published
        )
        if lost:
            self.vanished += lost
            self._say(place, stretch.first, f"is gone before its time: the log begins at {start}")

    def _kept_now(self, topic: str) -> Keeping | None:
        """Return how a topic's records are kept now; None where the log keeps everything."""
        state = self._transport.describe([topic]).get(topic)
        return None if state is None else state.keeping

    def _wrong(self, places: Sequence[Place], row: Longs, what: str) -> None:
        self.wrong += 1
        self._say(places[int(row[_PLACE])], int(row[_OFFSET]), what)

    def _say(self, place: Place, offset: int, what: str) -> None:
        if len(self.examples) < _EXAMPLES:
            self.examples.append(f"{place.topic}:{place.partition}:{offset} {what}")


def ends_of(transport: Transport, topics: Iterable[str]) -> dict[Place, int]:
    """Return where the partitions of these topics end now.

    To be asked as soon as the ledger's snapshot is taken: it cannot know what comes later.
    """
    return {
        Place(name, state.topic.topic_id, partition): end
        for name, state in transport.describe(list(topics)).items()
        for partition, end in enumerate(transport.ends(state.topic, readable=True))
    }


def _expired(keeping: Keeping, published_at: int, now: int) -> bool:
    return keeping.retention_ms is not None and published_at + keeping.retention_ms <= now


def _chunks(offsets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield sorted offsets, neighbours together."""
    chunk = offsets >> _CHUNK_BITS
    for number in np.unique(chunk).tolist():
        yield offsets[chunk == number]
