"""A boundary from the settings."""

from __future__ import annotations

from admitone.boundary.admission import Boundary, BoundaryOptions, Writable
from admitone.boundary.rules import envelope_rules, replay_rules
from admitone.ledger.open import open_ledger
from admitone.settings import Settings
from admitone.transport.contract import destination_contracts
from admitone.transport.open import open_transport


def open_boundary(settings: Settings, writable: Writable | None = None) -> Boundary:
    """Open the boundary that these settings describe; nothing starts before it is asked to.

    A worker is told which topics may be written to, so that it need not look itself.
    """
    options = BoundaryOptions(
        pipeline=settings.pipeline.name,
        rules=envelope_rules(settings),
        contracts=destination_contracts(settings),
        max_block=settings.pipeline.max_block,
        claim_lease_ms=settings.pipeline.claim_lease,
        create_topics=settings.transport.create_topics,
        check_interval_ms=settings.transport.check_interval,
        quarantine_limit=settings.pipeline.quarantine_limit,
        quarantine_window=settings.pipeline.quarantine_window,
        replays=replay_rules(settings),
    )
    ledger, transport = open_ledger(settings), open_transport(settings)
    return Boundary(options, ledger, transport, writable=writable)
