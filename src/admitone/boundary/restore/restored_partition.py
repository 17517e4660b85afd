"""A source partition that is read back: its admissions are pinned where they already lie on the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from admitone.boundary.partition import Admitted, OwnedPartition
from admitone.boundary.producers import late_source
from admitone.boundary.publish import destinations_of, to_publish
from admitone.boundary.read import DELIVERY_SCHEMA, ReadBlock
from admitone.boundary.reconciliation import RECONCILER
from admitone.boundary.restore.log_contents import Elsewhere, Published
from admitone.boundary.restore.operator_decisions import GivenUp, OperatorDecisions
from admitone.core.decisions import Action, BlockState
from admitone.core.errors import IntegrityError
from admitone.core.wire import Header, header_list
from admitone.infra.crash_points import crash_point
from admitone.ledger.columns import FACTS_SCHEMA
from admitone.ledger.model import (
    NOTHING_DECIDED,
    STREAM,
    Block,
    Blocked,
    Claimed,
    Destination,
    KnownEnds,
    Outcome,
    Resolved,
    Source,
    SourceInfo,
)
from admitone.transport.port import Topic
from admitone.transport.topic_contract import still_there

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary

ON_LOG, LATE, ABSENT, GIVEN_UP = range(4)
"""Where an admission is: under its own position, published late, or nowhere; or an operator gave it up."""


class Cut(Exception):
    """The block must end before this offset: what follows has another fate."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Waits(Exception):
    """The next delivery is a duplicate of another source's: that source comes first."""

    def __init__(self, source: Source, offset: int) -> None:
        self.source, self.offset = source, offset


class Restoring(OwnedPartition):
    """A source partition whose admissions are pinned where they are, instead of being published."""

    def __init__(
        self,
        boundary: Boundary,
        info: SourceInfo,
        epochs: tuple[int, int],
        published: Published,
        until: int,
        elsewhere: Elsewhere,
        mark_of: Callable[[Source], int],
        ends: KnownEnds,
        operators: OperatorDecisions,
    ) -> None:
        self._topic = Topic(info.topic, info.topic_id, 0) if info.door == STREAM else None
        replays = boundary.options.replays if self._topic else None
        super().__init__(boundary, info.source, None, epochs, replays)
        self.published = published
        self.until = until
        self.counts: Counter[int] = Counter()
        self.name = f"{info.topic!r} partition {info.source.partition}"
        # The last one is found by the line of what is not there.
        self._late = np.append(published.rows["late"].fill_null(-1).to_numpy(), -1)
        self._bus_offsets = published.rows["bus_offset"].to_numpy()
        self._elsewhere = elsewhere
        self._mark_of = mark_of
        self._ends = ends
        self._operators = operators

    def deliveries(self, until: int) -> pa.Table:
        """Return the next deliveries up to an offset, as many as make a block."""
        pieces, rows = [DELIVERY_SCHEMA.empty_table()], 0
        for piece in self._deliveries(self.mark.offset + 1, until + 1):
            pieces.append(piece.select(DELIVERY_SCHEMA.names).cast(DELIVERY_SCHEMA))
            rows += piece.num_rows
            if rows >= self._options.max_block:
                break
        if not rows:
            raise self._gone(self.mark.offset + 1)
        return pa.concat_tables(pieces)

    def read(self, records: pa.Table) -> ReadBlock:
        """Judge deliveries by themselves; what came through a door was judged when it was admitted."""
        return super().read(records) if self._topic else self._as_admitted(records)

    def _deliveries(self, start: int, end: int) -> Iterator[pa.Table]:
        if self._topic is None:
            rows = self.published.rows
            low, high = np.searchsorted(self.published.offsets, [start, end])
            found = rows.slice(low, high - low)
            moments = pc.multiply(found["published_at"], 1_000).cast(pa.timestamp("us", tz="UTC"))
            yield pa.table(
                [found["source_offset"], moments, pa.nulls(len(found), pa.binary()),
                 found["value"], found["headers"]],
                schema=DELIVERY_SCHEMA,
            )  # fmt: skip
            return
        present = still_there(self._transport, self._topic.name, self._topic.topic_id)
        if present is None:
            raise self._gone(start)
        for batch in self._transport.read(present, self.source.partition, start, end):
            yield pa.Table.from_batches([batch])

    def _gone(self, offset: int) -> IntegrityError:
        return IntegrityError(
            f"Deliveries of {self.name} were decided up to offset {self.until}, but those from offset {offset} on are"
            " gone: what else was decided there cannot be found out.",
            "restore a newer copy of the ledger",
        )

    def _as_admitted(self, records: pa.Table) -> ReadBlock:
        """Return facts from the headers of published records."""
        published = self.published.rows.take(
            pa.array(self.published.find(records["offset"].to_numpy()))
        )
        routes = {route.topic: number for number, route in enumerate(self._rules.routes)}
        named = [
            {entry["key"]: entry["value"] for entry in entries}
            for entries in records["headers"].to_pylist()
        ]
        rows = [
            {
                "offset": offset,
                "append_time": int(headers[Header.ADMITTED_AT]),
                "run": headers[Header.RUN].decode(),
                "class": headers[Header.CLASS].decode(),
                "event_id": headers[Header.EVENT_ID].decode(),
                "identity": headers[Header.IDENTITY],
                "payload_hash": headers[Header.PAYLOAD_HASH],
                "event_time": int(headers[Header.EVENT_TIME]),
                "stream_time": int(headers[Header.STREAM_TIME]),
                "reason": 0,
                "route": routes.get(topic),
                "partition": partition,
            }
            for offset, headers, topic, partition in zip(
                records["offset"].to_pylist(),
                named,
                published["topic"].to_pylist(),
                published["partition"].to_pylist(),
                strict=True,
            )
        ]
        kept = [_delivered_with(headers) for headers in named]
        index = DELIVERY_SCHEMA.get_field_index("headers")
        records = records.set_column(
            index, "headers", pa.array(kept, DELIVERY_SCHEMA.field(index).type)
        )
        business_keys = tuple(headers[Header.BUSINESS_KEY].decode() for headers in named)
        return ReadBlock(records, pa.Table.from_pylist(rows, schema=FACTS_SCHEMA), business_keys)

    def _claim(
        self, block: ReadBlock, destinations: tuple[Destination, ...]
    ) -> tuple[ReadBlock, Claimed | Blocked]:
        """Claim with the ends that were known before: should this be interrupted, the next one looks from there."""
        return super()._claim(block, tuple(map(self._as_known, destinations)))

    def _after_closing(self, facts: pa.Table) -> np.ndarray:
        closed, absent = self._operators.closed, self.published.find(facts["offset"].to_numpy()) < 0
        after = [
            run in closed and offset > closed[run].get(self.source, NOTHING_DECIDED)
            for run, offset in zip(
                facts["run"].to_pylist(), facts["offset"].to_pylist(), strict=True
            )
        ]
        return np.flatnonzero(np.array(after, dtype=bool) & absent)

    def _as_known(self, place: Destination) -> Destination:
        known = self._ends.get((place.topic, place.topic_id), ())
        ends = (known[number] if number < len(known) else 0 for number in range(len(place.ends)))
        return replace(place, ends=tuple(ends))

    def _publish_and_settle(self, block: ReadBlock, claimed: Claimed) -> Admitted:
        crash_point("restore.claimed")
        row = claimed.block
        ordinals = to_publish(row, claimed.verdicts)
        try:
            lines = self._lines(row, block, ordinals)
            kinds = np.where(lines < 0, ABSENT, np.where(self._late[lines] >= 0, LATE, ON_LOG))
            given_up = self._operators.by_identity(
                block.facts["identity"].take(pa.array(ordinals)).to_pylist()
            )
            kinds[np.array([by is not None for by in given_up], dtype=bool)] = GIVEN_UP
            self._cut(block, ordinals, lines, kinds, given_up)
        except (Cut, Waits, IntegrityError):
            self._give_back(row)
            raise
        kind = int(kinds[0]) if len(kinds) else ON_LOG
        state = BlockState.SETTLED if kind == ON_LOG else BlockState.AMBIGUOUS
        pinned = self._bus_offsets[lines] if kind == ON_LOG else None
        moments = self.published.rows["published_at"].take(pa.array(lines[lines >= 0]))
        published_at = pc.max(moments).as_py() if kind == ON_LOG else None
        now = self._boundary.clock()
        self._ledger.conclude(row, self._epoch, Outcome(state, pinned, published_at, now))
        crash_point("restore.decided")
        if kind == LATE:
            published_late(self._boundary, row, self._epoch, self.published, lines)
        elif kind == GIVEN_UP and given_up[0] is not None:
            give_up_again(self._boundary, row, self._epoch, given_up[0])
        self.counts[kind] += len(ordinals)
        self.mark = self._ledger.mark(self.source)
        self._upstream = self._upstream_marks()
        return Admitted(row.block_id, row.deliveries, len(ordinals))

    def _lines(self, row: Block, block: ReadBlock, ordinals: np.ndarray) -> np.ndarray:
        """Return where on the log the planned admissions are; refuse what does not fit together."""
        offsets = block.facts["offset"].to_numpy()[ordinals]
        unplanned = np.setdiff1d(self.published.between(row.first_offset, row.last_offset), offsets)
        lines = self.published.find(offsets)
        there = lines >= 0
        mine = block.facts["identity"].take(pa.array(ordinals[there])).cast(pa.binary())
        on_log = self.published.rows["identity"].take(pa.array(lines[there])).cast(pa.binary())
        other = np.asarray(pc.not_equal(mine, on_log))
        strange = [*unplanned.tolist(), *offsets[there][other].tolist()]
        if strange:
            raise IntegrityError(
                f"Offset {min(strange)} of {self.name} is on the log, but would not be admitted now as it was then.",
                "use the rules, the topics and the run it was admitted with: admitone.toml as it was then",
            )
        return lines

    def _cut(
        self,
        block: ReadBlock,
        ordinals: np.ndarray,
        lines: np.ndarray,
        kinds: np.ndarray,
        given_up: Sequence[GivenUp | None],
    ) -> None:
        """Raise where the block must end so that all its admissions share one fate."""
        if not len(ordinals):
            return
        offsets = block.facts["offset"].to_numpy()
        for line in np.flatnonzero(kinds == ABSENT).tolist():
            ordinal = int(ordinals[line])
            before = self._published_before(block.facts["identity"][ordinal].as_py())
            if before is not None:
                if ordinal == 0:
                    raise before
                raise Cut(int(offsets[ordinal]))
        changes = np.diff(kinds) != 0
        changes |= (kinds[1:] == LATE) & (np.diff(self._late[lines]) != 1)
        changes |= np.array([one != other for one, other in pairwise(given_up)], dtype=bool)
        if changes.any():
            raise Cut(int(offsets[ordinals[np.flatnonzero(changes)[0] + 1]]))

    def _published_before(self, identity: bytes) -> Waits | None:
        """Return which other source published an identity, if that is not read back yet."""
        for source, offset in self._elsewhere.of(identity):
            if source != self.source and offset > self._mark_of(source):
                return Waits(source, offset)
        return None


def published_late(
    boundary: Boundary, block: Block, epoch: int, late: Published, lines: np.ndarray
) -> None:
    """Say of a block of unknown fate that it was published late, under the numbers it got then."""
    rows = late.rows.take(pa.array(lines))
    numbers = rows["late"].to_pylist()
    names = [place.topic for place in block.destinations]
    of = {info.source: info for info in boundary.ledger.sources()}[block.source]
    boundary.ledger.plan_late(
        block,
        epoch,
        late_source(of, boundary.transport.cluster).producer_id,
        destinations_of(boundary.transport, names),
        first=numbers[0],
    )
    crash_point("restore.planned")
    boundary.ledger.resolve(
        block,
        epoch,
        Resolved(
            BlockState.SETTLED, Action.PUBLISHED_LATE, rows["bus_offset"].to_numpy(),
            pc.max(rows["published_at"]).as_py(), boundary.clock(), RECONCILER,
            "published late, read back from the log",
        ),
    )  # fmt: skip
    crash_point("restore.resolved")


def give_up_again(boundary: Boundary, block: Block, epoch: int, by: GivenUp) -> None:
    """Say of a block of unknown fate that it was given up, by whom and why, as the evidence says."""
    boundary.ledger.resolve(
        block,
        epoch,
        Resolved(BlockState.RETRACTED, Action.RETRACTED, None, None, by.at, by.author, by.reason),
    )
    crash_point("restore.resolved")


def _delivered_with(headers: dict[str, bytes]) -> list[dict[str, Any]]:
    """Return what an envelope may not say itself, as the headers it could have come with."""
    kept = [(Header.RUN_ID, headers[Header.RUN]), (Header.EVENT_CLASS, headers[Header.CLASS])]
    if Header.ORIGIN in headers:
        kept.append((Header.ORIGIN, headers[Header.ORIGIN]))
    return header_list(kept)
