"""A boundary from the settings, with the topics it needs."""

from __future__ import annotations

from admitone.boundary.admission import Boundary, BoundaryOptions
from admitone.boundary.rules import envelope_rules
from admitone.ledger.open import open_ledger
from admitone.settings import Settings
from admitone.transport.open import open_transport
from admitone.transport.port import Topic, Transport


def open_boundary(settings: Settings) -> Boundary:
    """Open the boundary that these settings describe; nothing starts before it is asked to."""
    options = BoundaryOptions(
        pipeline=settings.pipeline.name,
        rules=envelope_rules(settings),
        max_block=settings.pipeline.max_block,
        claim_lease_ms=settings.pipeline.claim_lease,
        quarantine_limit=settings.pipeline.quarantine_limit,
        quarantine_window=settings.pipeline.quarantine_window,
    )
    return Boundary(options, open_ledger(settings), open_transport(settings))


def create_topics(settings: Settings, transport: Transport) -> Topic:
    """Create the configured topics that are missing; return the raw one."""
    for entry in settings.topics:
        transport.create_topic(entry.topic, entry.partitions)
    return transport.create_topic(settings.transport.raw_topic, settings.transport.raw_partitions)
