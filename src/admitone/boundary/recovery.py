"""Recovery comes first: what a predecessor left in flight is resolved before anything new is claimed.

By then the source is taken over and the predecessor's producer is fenced, so nothing it does can change what
the look at the log finds.

    all of its records are on the log    SETTLED, pinned where they are
    none of them is                      ABORTED, its deliveries are read again
    the log cannot tell                  AMBIGUOUS, kept until somebody can
"""

from __future__ import annotations

import numpy as np

from admitone.boundary.publishing import admitted_ordinals, look
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError, NotFound
from admitone.faults import crash_point
from admitone.ledger.port import Block, Ledger, Outcome
from admitone.transport.port import Transport


def resolve(block: Block, epoch: int, ledger: Ledger, transport: Transport, now: int) -> BlockState:
    """Conclude one block that is in flight, from the look at the log behind the fence."""
    outcome = _outcome(block, ledger, transport, now)
    crash_point("recovery.looked")
    ledger.conclude(block, epoch, outcome)
    crash_point("recovery.resolved")
    return outcome.state


def _outcome(block: Block, ledger: Ledger, transport: Transport, now: int) -> Outcome:
    facts, verdicts, _ = ledger.columns(block.block_id)
    ordinals = admitted_ordinals(verdicts)
    used = np.unique(facts["route"].fill_null(-1).to_numpy()[ordinals])
    destinations = tuple(block.destinations[number] for number in used.tolist())
    try:
        found = look(transport, block.source, block.first_offset, block.last_offset, destinations)
    except NotFound:
        found = None
    if found is None:
        return Outcome(BlockState.AMBIGUOUS, None, None, now)
    wanted = facts["offset"].to_numpy()[ordinals].tolist()
    if not found.offsets:
        return Outcome(BlockState.ABORTED, None, None, now)
    missing = [offset for offset in wanted if offset not in found.offsets]
    if missing or len(found.offsets) != len(wanted):
        raise IntegrityError(
            f"Block {block.block_id} claimed {len(wanted)} records, the log holds {len(found.offsets)} of"
            " its range: an append is all or nothing.",
            "keep the log and the ledger as they are and compare them",
        )
    bus_offsets = np.array([found.offsets[offset] for offset in wanted], dtype=np.int64)
    return Outcome(BlockState.SETTLED, bus_offsets, found.published_at, now)
