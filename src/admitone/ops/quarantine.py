"""What an operator does about quarantined deliveries: list them, deliver them again, or give them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from typing_extensions import TypedDict

from admitone.boundary import open_all, open_boundary
from admitone.boundary.ledger_age import must_know_its_log
from admitone.boundary.reconciliation import retract
from admitone.boundary.release import Choice, Report, Signature
from admitone.boundary.release import release as deliver_again
from admitone.core.decisions import Action
from admitone.evidence.originals import open_deliveries
from admitone.evidence.quarantined import is_done
from admitone.infra.clock import wall_clock
from admitone.ledger.decision_rows import Decision, decisions
from admitone.ledger.model import Filter
from admitone.ledger.port import LedgerReader
from admitone.ops.stores import Stores
from admitone.settings import Settings

Chosen = Mapping[int, list[int]]
"""Deliveries, as ordinals by block."""


class Quarantined(TypedDict):
    """Quarantined deliveries in the order they were decided."""

    quarantined: list[Decision]


class Discarded(TypedDict):
    """How many deliveries were given up."""

    discarded: int


class Retracted(TypedDict):
    """A block of unknown fate that was given up, and how many deliveries it holds."""

    retracted: int
    deliveries: int


def list_quarantined(
    ledger: LedgerReader, wanted: Filter, *, everything: bool = False
) -> Iterator[Decision]:
    """Yield quarantined deliveries that nothing was done about yet, or everything that ever was quarantined."""
    return (row for row in decisions(ledger, wanted) if everything or not is_done(row))


def release(
    settings: Settings, chosen: Chosen, signature: Signature, choice: Choice | None
) -> Report:
    """Deliver quarantined deliveries again, by the rules in force now."""
    boundaries = open_all(settings)
    try:
        must_know_its_log(boundaries[0].ledger, boundaries[0].transport, settings)
        fetch = open_deliveries(settings, boundaries[0].ledger)
        report = Report()
        for boundary in boundaries:
            report.add(deliver_again(boundary, fetch, chosen, signature, choice))
        return report
    finally:
        for boundary in boundaries:
            boundary.transport.close()
            boundary.ledger.close()


def discard(stores: Stores, chosen: Chosen, signature: Signature) -> Discarded:
    """Give quarantined deliveries up; they stay on record."""
    must_know_its_log(stores.writing_ledger, stores.transport, stores.settings)
    return {
        "discarded": sum(
            stores.writing_ledger.dispose(
                block_id, ordinals, Action.DISCARDED, wall_clock(), signature.author, signature.reason
            )
            for block_id, ordinals in chosen.items()
        )
    }  # fmt: skip


def give_up_block(settings: Settings, block_id: int, signature: Signature) -> Retracted:
    """Give a whole block of unknown fate up: its events are never published again."""
    boundary = open_boundary(settings)
    must_know_its_log(boundary.ledger, boundary.transport, settings)
    block = retract(boundary, block_id, signature.author, signature.reason)
    return {"retracted": block_id, "deliveries": block.deliveries}
