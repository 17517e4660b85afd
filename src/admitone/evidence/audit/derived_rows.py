"""Does what follows from a block's columns, and is kept beside them to be found quickly, still follow from them?"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from admitone.core.decisions import (
    CODE_OF_REASON,
    CODE_OF_VERDICT,
    Action,
    BlockState,
    Reason,
    Verdict,
)
from admitone.core.wire import decode, one_array, positions_of
from admitone.evidence.audit.identities import recomputed, recomputed_records
from admitone.ledger.claims import names_of_facts
from admitone.ledger.columns import unpack
from admitone.ledger.model import Decided, Resolution, Summary
from admitone.ledger.outcomes import bus_ranges
from admitone.ledger.port import LedgerReader

_ADMITTED = CODE_OF_VERDICT[Verdict.ADMITTED]
_PUBLISH_FAILED = CODE_OF_REASON[Reason.PUBLISH_FAILED]
_OF_ACTION = {
    Action.FOUND: BlockState.SETTLED,
    Action.PUBLISHED_LATE: BlockState.SETTLED,
    Action.RETRACTED: BlockState.RETRACTED,
}
"""What a block's own resolution makes of it."""


def differs(ledger: LedgerReader, decided: Decided, resolutions: list[Resolution]) -> str | None:
    """Return what does not follow from a block's columns, None where everything does."""
    block, facts, verdicts, bus = decided
    kept = ledger.derived(block.block_id)
    if kept.summary != Summary.of(verdicts):
        return "summary"
    if kept.names != names_of_facts(facts):
        return "filter of names"
    places = [] if bus is None else bus_ranges(block, facts, bus)
    if sorted(kept.places) != sorted(places):
        return "places on the log"
    own = verdicts["first_block"].is_null()
    failed = pc.and_(pc.equal(verdicts["reason"], _PUBLISH_FAILED), own)
    if block.state is not BlockState.AMBIGUOUS and list(block.refused) != _rows(failed):
        return "refused records"
    if block.state is not _state(decided, resolutions):
        return "state"
    return None


def _state(decided: Decided, resolutions: list[Resolution]) -> BlockState:
    """Return the state that a block's resolutions leave it in."""
    for resolution in reversed(resolutions):
        if resolution.cause is None and resolution.action in _OF_ACTION:
            return _OF_ACTION[resolution.action]
    own = decided.verdicts.filter(decided.verdicts["first_block"].is_null())
    ambiguous = pc.equal(own["reason"], CODE_OF_REASON[Reason.PUBLISH_UNKNOWN])
    return BlockState.AMBIGUOUS if pc.any(ambiguous).as_py() else BlockState.SETTLED


def journal_differs(ledger: LedgerReader, decided: Decided, *, keyed: bool, archive: bool) -> bool:
    """Tell whether the original deliveries of a block, while they are kept, are others than its facts say.

    What was admitted is compared with its archive byte by byte, where there is one: the rest is computed again.
    """
    journal = ledger.journal(decided.block.block_id)
    if journal is None:
        return False
    deliveries = unpack(journal)
    facts, verdicts = decided.facts, decided.verdicts["verdict"]
    if not deliveries["offset"].equals(facts["offset"].cast(deliveries["offset"].type)):
        return True
    computed = pc.and_(facts["identity"].is_valid(), pc.equal(facts["reason"], 0))
    if archive:
        computed = pc.and_(computed, pc.not_equal(verdicts, _ADMITTED))
    chosen = facts.filter(computed), deliveries.filter(computed)
    return _events_differ(*chosen, keyed=keyed) or _replays_differ(facts, deliveries)


def _events_differ(chosen: pa.Table, came: pa.Table, *, keyed: bool) -> bool:
    """Compare deliveries that step 1 passed: who they are and what they carry."""
    values, headers = one_array(came["value"]), one_array(came["headers"])
    said = one_array(chosen["identity"]), one_array(chosen["payload_hash"])
    if keyed:
        found = recomputed_records(one_array(chosen["class"]), values, headers)
        return bool(found.differing(*said))
    wrong = 0
    for run in chosen["run"].unique().to_pylist():
        mine = pc.equal(chosen["run"].cast(pa.string()), run)
        pick = one_array(mine)
        found = recomputed(run, values.filter(pick), headers.filter(pick))
        wrong += found.differing(*(column.filter(pick) for column in said))
    return bool(wrong)


def _replays_differ(facts: pa.Table, deliveries: pa.Table) -> bool:
    """Compare the stream metadata of those that were filtered by it."""
    if "upstream" not in facts.column_names or facts["upstream"].null_count == facts.num_rows:
        return False
    named = facts["upstream"].is_valid()
    positions = positions_of(deliveries["key"], deliveries["headers"])
    mine = one_array(facts["upstream"].filter(named)).cast(pa.binary())
    theirs = positions.filter(one_array(named)).cast(pa.binary())
    whole, _ = decode(theirs)
    return not whole.all() or not mine.equals(theirs)


def _rows(chosen: pa.ChunkedArray) -> list[int]:
    found: list[int] = pc.indices_nonzero(one_array(chosen)).to_pylist()
    return found
