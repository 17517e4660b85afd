"""Reconciliation: what became of every publish that nobody got an answer to (EVD-6, EVD-8).

Behind a fence, so that nothing can still arrive, the log is searched for each block of unknown fate:

    found on the log       its admissions are pinned where they are
    proved absent          its kept envelopes are published late, by a producer of its own; what the broker
                           certainly refuses is left out and goes to quarantine
    the log cannot tell    it stays as it is: "unknown" is never taken for "absent"

A late publish is planned in the ledger before it happens, with numbers nobody else gets, so that a crash in the
middle of it is found on the log the next time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import orjson

from admitone.boundary.destination_topics import refuse_drifted, refuse_recreated
from admitone.boundary.producers import LATE, late_source
from admitone.boundary.publish import (
    Outgoing,
    Placed,
    append,
    destinations_of,
    look,
    look_for_block,
    to_publish,
    used,
)
from admitone.core.decisions import Action, BlockState
from admitone.core.errors import Fenced, IntegrityError, NeedsFence, RecordsRefused
from admitone.core.wire import encode
from admitone.infra.crash_points import crash_point
from admitone.ledger.columns import unpack
from admitone.ledger.model import (
    SYNCHRONOUS_DOOR,
    Block,
    Late,
    Resolved,
    Source,
    SourceInfo,
)
from admitone.ledger.outcomes import ambiguous_admissions
from admitone.ledger.port import LedgerReader
from admitone.transport.port import Transport

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary, BoundaryOptions

RECONCILER = "admitone"
CANNOT_TELL = "unknown: the log cannot tell"
AWAITS_OPERATOR = "absent, and may have been given up since the ledger was copied"


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What was found out about one block."""

    block: Block
    state: BlockState
    how: str


def reconcile(
    boundary: Boundary,
    *,
    pipeline: str | None = None,
    source: Source | None = None,
    author: str = RECONCILER,
    by_operator: bool = False,
) -> Iterator[Reconciled]:
    """Resolve every block that was left in flight or of unknown fate: of one pipeline, of one source, or of all.

    What awaits an operator since the ledger was restored is published late only when an operator asks for it.
    """
    is_at_work = partial(boundary.is_at_work, look_once=pipeline is None)
    for info, blocks in _unsettled(boundary.ledger, boundary.options, is_at_work, pipeline, source):
        waiting = {block.block_id for block in blocks if block.state is BlockState.IN_FLIGHT}
        # Everything in flight is resolved by taking the source over, the same way as at a start.
        epoch, _ = boundary.resolve_all(info.source, None)
        for block in boundary.ledger.blocks(ids=[block.block_id for block in blocks]):
            if block.block_id in waiting and block.state is not BlockState.AMBIGUOUS:
                yield Reconciled(block, block.state, _HOW[block.state])
            elif block.state is BlockState.AMBIGUOUS:
                yield _reconcile_one(boundary, info, block, epoch, author, by_operator=by_operator)


def look_only(
    ledger: LedgerReader, transport: Transport, options: BoundaryOptions
) -> Iterator[Reconciled]:
    """Say what a reconciliation would find now, without a fence and without changing anything."""
    is_at_work = partial(decides_now, ledger, lease_ms=options.claim_lease_ms)
    for _, blocks in _unsettled(ledger, options, is_at_work):
        for block in blocks:
            found = _Search(ledger, transport, block).find()
            how = found.how if found else CANNOT_TELL
            yield Reconciled(block, block.state, how)


def decides_now(ledger: LedgerReader, info: SourceInfo, block: Block, lease_ms: int) -> bool:
    """Tell whether a door decides a block, by the ledger's clock: an operator, who looks once, has no other."""
    return info.door == SYNCHRONOUS_DOOR and ledger.now_ms() - block.claimed_at <= lease_ms


_HOW = {
    BlockState.SETTLED: "found on the log",
    BlockState.ABORTED: "absent: its deliveries are read again",
}


@dataclass(frozen=True, slots=True)
class _Answer:
    placed: Placed
    action: Action | None

    @property
    def how(self) -> str:
        return {
            Action.FOUND: "found on the log",
            Action.PUBLISHED_LATE: "published late, found on the log",
            None: "absent",
        }[self.action]


class _Search:
    """The records of one block, and where on the log they may be."""

    def __init__(self, ledger: LedgerReader, transport: Transport, block: Block) -> None:
        self._ledger = ledger
        self._transport = transport
        self._block = block
        facts, verdicts, _ = ledger.columns(block.block_id)
        if block.state is BlockState.IN_FLIGHT:
            self._ordinals = to_publish(block, verdicts)
        else:
            self._ordinals = ambiguous_admissions(verdicts, block.refused)
        self._facts = facts

    def find(self) -> _Answer | None:
        """Return where the block's records are, or that they are nowhere; None when the log cannot tell."""
        block, transport = self._block, self._transport
        found = look_for_block(transport, block, self._facts, self._ordinals)
        if found is not None and found.bus_offsets is not None:
            return _Answer(found, Action.FOUND)
        plan = self._ledger.late(block.block_id)
        if plan is not None:
            numbers = np.arange(plan.first, plan.first + plan.records)
            span = (plan.first, plan.first + plan.records - 1)
            late = look(transport, block, plan.source, span, numbers, plan.destinations)
            if late is None:
                return None
            if late.bus_offsets is not None:
                return _Answer(late, Action.PUBLISHED_LATE)
        return None if found is None else _Answer(found, None)


class _LatePublish(_Search):
    """The same, to publish what is nowhere."""

    def __init__(self, boundary: Boundary, info: SourceInfo, block: Block) -> None:
        super().__init__(boundary.ledger, boundary.transport, block)
        self._boundary = boundary
        self._info = info

    def publish_late(self, epoch: int, producer: str, producer_epoch: int) -> _Answer:
        """Publish the kept envelopes under numbers of their own, but for what the broker refuses."""
        while len(self._ordinals):
            try:
                return self._publish(epoch, producer, producer_epoch)
            except RecordsRefused as refusal:
                self._leave_out(epoch, refusal)
            except NeedsFence:
                producer_epoch = _fence_late(self._boundary, self._block, epoch, producer)
        return _Answer(Placed(np.empty(0, dtype=np.int64), None), Action.PUBLISHED_LATE)

    def _leave_out(self, epoch: int, refusal: RecordsRefused) -> None:
        """Note what the broker refuses before the rest is published under new numbers."""
        route = self._facts["route"].to_numpy()[self._ordinals]
        topics = [place.topic for place in self._block.destinations]
        refused = [
            int(self._ordinals[np.flatnonzero(route == topics.index(topic))[line]])
            for topic, lines in refusal.rows.items()
            for line in lines
        ]
        self._block = self._boundary.ledger.refuse(self._block, epoch, refused)
        self._ordinals = self._ordinals[~np.isin(self._ordinals, refused)]
        crash_point("reconcile.refused")

    def _publish(self, epoch: int, producer: str, producer_epoch: int) -> _Answer:
        boundary, block = self._boundary, self._block
        names = [place.topic for place in block.destinations]
        places = used(destinations_of(boundary.transport, names), self._facts, self._ordinals)
        refuse_drifted(boundary.options.contracts, boundary.writable, places)
        plan = boundary.ledger.plan_late(
            block,
            epoch,
            late_source(self._info, boundary.transport.cluster).producer_id,
            places,
        )
        crash_point("reconcile.planned")
        parts = self._outgoing(plan).by_topic(tuple(names), boundary.options.rules.routes, block)
        placed = append(boundary.transport, producer, producer_epoch, parts)
        crash_point("reconcile.published")
        refuse_recreated(boundary.transport, places)
        return _Answer(placed, Action.PUBLISHED_LATE)

    def _outgoing(self, plan: Late) -> Outgoing:
        journal = self._boundary.ledger.journal(self._block.block_id)
        if journal is None:
            raise IntegrityError(
                f"The journal of block {self._block.block_id} is gone: its envelopes cannot be published.",
                "restore the ledger from a backup, or give the block up: admitone quarantine discard"
                f" --block {self._block.block_id}",
            )
        records = unpack(journal).take(self._ordinals)
        facts = self._facts.take(self._ordinals)
        routes = {route.topic: route for route in self._boundary.options.rules.routes}
        topics = [self._block.destinations[number].topic for number in facts["route"].to_pylist()]
        keys = [
            (routes[topic].business_key(orjson.loads(value)) if topic in routes else None) or ""
            for topic, value in zip(topics, records["value"].to_pylist(), strict=True)
        ]
        origins = encode(*self._block.source, facts["offset"].to_numpy()).to_pylist()
        numbers = np.arange(plan.first, plan.first + plan.records)
        return Outgoing(plan.source, numbers, facts, records, keys, origins)


def _reconcile_one(
    boundary: Boundary,
    info: SourceInfo,
    block: Block,
    epoch: int,
    author: str,
    *,
    by_operator: bool,
) -> Reconciled:
    producer = _late_producer(block)
    producer_epoch = _fence_late(boundary, block, epoch, producer)
    records = _LatePublish(boundary, info, block)
    answer = records.find()
    if answer is None:
        return Reconciled(block, block.state, CANNOT_TELL)
    if answer.action is None and block.awaits_operator and not by_operator:
        return Reconciled(block, block.state, AWAITS_OPERATOR)
    if answer.action is None:
        try:
            answer = records.publish_late(epoch, producer, producer_epoch)
        except Fenced:
            raise
        except Exception as error:
            return Reconciled(block, block.state, f"absent, and publishing it late failed: {error}")
    return _settle(boundary, block, epoch, answer, author)


def _settle(
    boundary: Boundary, block: Block, epoch: int, answer: _Answer, author: str
) -> Reconciled:
    assert answer.action is not None
    boundary.ledger.resolve(
        block,
        epoch,
        Resolved(
            BlockState.SETTLED,
            answer.action,
            *answer.placed,
            boundary.clock(),
            author,
            answer.how,
        ),
    )
    crash_point("reconcile.resolved")
    return Reconciled(block, BlockState.SETTLED, answer.how)


def _late_producer(block: Block) -> str:
    return f"{LATE}:{block.source.producer_id}:{block.source.partition}"


def _fence_late(boundary: Boundary, block: Block, epoch: int, producer: str) -> int:
    """Fence the last client that published late for a source, and make sure that no worker took it over meanwhile."""
    producer_epoch = boundary.transport.init_producer(producer)
    boundary.ledger.check_epoch(block.source, epoch)
    crash_point("reconcile.fenced")
    return producer_epoch


def retract(boundary: Boundary, block_id: int, author: str, reason: str) -> Reconciled:
    """Give a block of unknown fate up: its identities are never published again.

    What is on the log was published already and cannot be given up: such a block is settled. A log that cannot tell
    keeps nothing from being given up.
    """
    block = boundary.ambiguous(block_id)
    epoch, _ = boundary.take_over(block.source, None)
    # A process that publishes it late right now must not finish afterwards.
    _fence_late(boundary, block, epoch, _late_producer(block))
    answer = _Search(boundary.ledger, boundary.transport, block).find()
    if answer is not None and answer.action is not None:
        return _settle(boundary, block, epoch, answer, author)
    boundary.ledger.resolve(
        block,
        epoch,
        Resolved(
            BlockState.RETRACTED, Action.RETRACTED, None, None, boundary.clock(), author, reason
        ),
    )
    return Reconciled(block, BlockState.RETRACTED, answer.how if answer else CANNOT_TELL)


def _unsettled(
    ledger: LedgerReader,
    options: BoundaryOptions,
    is_at_work: Callable[[SourceInfo, Block], bool],
    pipeline: str | None = None,
    source: Source | None = None,
) -> Iterator[tuple[SourceInfo, list[Block]]]:
    states = [BlockState.IN_FLIGHT, BlockState.AMBIGUOUS]
    unsettled = ledger.blocks(states=states, source=source)
    for info in ledger.sources() if unsettled else ():
        blocks = [
            block
            for block in unsettled
            if block.source == info.source
            # What a worker is deciding is better left to it; a caller that names the source is that worker.
            and (
                source is not None
                or block.state is BlockState.AMBIGUOUS
                or not is_at_work(info, block)
            )
        ]
        mine = info.store == options.store and pipeline in (None, info.pipeline)
        if blocks and mine:
            yield info, blocks
