"""Recovery comes first: what a crash or a failed append left in flight is resolved by looking at the log.

found on the log                     SETTLED, pinned where they are
none of them is                      ABORTED, its deliveries are read again
the log cannot tell                  AMBIGUOUS, kept until it can
"""

from __future__ import annotations

from admitone.boundary.publish import look_for_block, to_publish
from admitone.core.decisions import BlockState
from admitone.infra.crash_points import crash_point
from admitone.ledger.model import Block, Outcome
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
    found = look_for_block(transport, block, facts, to_publish(block, verdicts))
    if found is None:
        return Outcome(BlockState.AMBIGUOUS, None, None, now, block.refused)
    if found.bus_offsets is None:
        return Outcome(BlockState.ABORTED, None, None, now)
    return Outcome(BlockState.SETTLED, *found, now, block.refused)
