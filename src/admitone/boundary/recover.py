"""Recovery comes first: what a crash or a failed append left in flight is resolved by looking at the log.

found on the log                     SETTLED, pinned where they are
none of them is                      ABORTED, its deliveries are read again
the log cannot tell                  AMBIGUOUS, kept until somebody can
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from admitone.boundary.publish import Found, look, to_publish
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError, NotFound, Unreadable
from admitone.infra.crash_points import crash_point
from admitone.ledger.model import Block, Destination, Outcome, Source
from admitone.ledger.port import Ledger
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
    ordinals = to_publish(block, verdicts)
    wanted = facts["offset"].to_numpy()[ordinals]
    places = used(block.destinations, facts, ordinals)
    found = search(
        transport,
        block.source,
        block.first_offset,
        block.last_offset,
        wanted,
        places,
        block.block_id,
    )
    if found is None:
        return Outcome(BlockState.AMBIGUOUS, None, None, now, block.refused)
    if not found.offsets:
        return Outcome(BlockState.ABORTED, None, None, now)
    return Outcome(BlockState.SETTLED, found.places(wanted), found.published_at, now, block.refused)


def used(
    destinations: tuple[Destination, ...], facts: pa.Table, ordinals: np.ndarray
) -> tuple[Destination, ...]:
    """Return the destinations that the chosen deliveries go to."""
    routes = np.unique(facts["route"].fill_null(-1).to_numpy()[ordinals])
    return tuple(destinations[number] for number in routes.tolist())


def search(
    transport: Transport,
    source: Source,
    first: int,
    last: int,
    wanted: np.ndarray,
    destinations: tuple[Destination, ...],
    block_id: int,
) -> Found | None:
    """Return where all of the wanted records are, or that none is there; None when the log cannot tell."""
    try:
        found = look(transport, source, first, last, destinations)
    except (NotFound, Unreadable):
        return None
    if found is None or not found.offsets:
        return found
    missing = [number for number in wanted.tolist() if number not in found.offsets]
    if missing or len(found.offsets) != len(wanted):
        raise IntegrityError(
            f"Block {block_id} claimed {len(wanted)} records, the log holds {len(found.offsets)} of"
            " its range: an append is all or nothing.",
            "keep the log and the ledger as they are and compare them",
        )
    return found
