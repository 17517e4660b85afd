"""What an operator does about quarantined deliveries: list them, deliver them again, or give them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from typing_extensions import TypedDict

from admitone.boundary import open_all, open_boundary
from admitone.boundary.ledger_age import must_know_its_log
from admitone.boundary.reconciliation import retract
from admitone.boundary.release import Choice, Report, Signature
from admitone.boundary.release import release as deliver_again
from admitone.core.decisions import Action, Verdict
from admitone.evidence.originals import open_deliveries
from admitone.evidence.quarantined import is_done, still_quarantined
from admitone.infra.clock import wall_clock
from admitone.ledger.decision_rows import Decision, decisions, in_quarantine
from admitone.ledger.model import Filter
from admitone.ops.reconcile import ReconciledBlock, block_document
from admitone.ops.stores import Stores
from admitone.settings import Settings

Which = Sequence[str] | Filter
"""Deliveries in quarantine that nothing was done about yet: by their ids, or whatever a filter finds."""


class Quarantined(TypedDict):
    """Quarantined deliveries in the order they were decided."""

    quarantined: list[Decision]


class Discarded(TypedDict):
    """How many deliveries were given up."""

    discarded: int


def list_quarantined(
    stores: Stores, wanted: Filter, *, everything: bool = False
) -> Iterator[Decision]:
    """Yield quarantined deliveries that nothing was done about yet, or everything that ever was quarantined."""
    rows = decisions(stores.ledger, replace(wanted, verdict=Verdict.QUARANTINED))
    return (row for row in rows if everything or not is_done(row))


def release(stores: Stores, which: Which, signature: Signature, choice: Choice | None) -> Report:
    """Deliver quarantined deliveries again, by the rules in force now."""
    chosen, settings = _chosen(stores, which), stores.settings
    with open_all(settings) as boundaries:
        must_know_its_log(boundaries[0].ledger, boundaries[0].transport, settings)
        fetch = open_deliveries(settings, boundaries[0].ledger)
        report = Report()
        for boundary in boundaries:
            report.add(deliver_again(boundary, fetch, chosen, signature, choice))
        return report


def discard(stores: Stores, which: Which, signature: Signature) -> Discarded:
    """Give quarantined deliveries up; they stay on record."""
    chosen = _chosen(stores, which)
    must_know_its_log(stores.writing_ledger, stores.transport, stores.settings)
    return {
        "discarded": sum(
            stores.writing_ledger.dispose(
                block_id, ordinals, Action.DISCARDED, wall_clock(), signature.author, signature.reason
            )
            for block_id, ordinals in chosen.items()
        )
    }  # fmt: skip


def give_up_block(settings: Settings, block_id: int, signature: Signature) -> ReconciledBlock:
    """Give a whole block of unknown fate up, or settle it where the log holds it after all."""
    with closing(open_boundary(settings)) as boundary:
        must_know_its_log(boundary.ledger, boundary.transport, settings)
        return block_document(retract(boundary, block_id, signature.author, signature.reason))


def _chosen(stores: Stores, which: Which) -> Mapping[int, list[int]]:
    """Return the ordinals of deliveries by block."""
    if isinstance(which, Filter):
        return in_quarantine(stores.ledger, which)
    return still_quarantined(stores.ledger, which)
