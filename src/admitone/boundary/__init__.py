"""A boundary from the settings."""

from __future__ import annotations

from dataclasses import replace

from admitone.boundary.admission import Boundary, BoundaryOptions, Writable
from admitone.boundary.read import Rules
from admitone.boundary.rules import envelope_rules, record_rules, replay_rules
from admitone.core.contract import Contract
from admitone.ledger import open_ledger
from admitone.settings import Settings
from admitone.transport import open_transport
from admitone.transport.topic_contract import dedup_contracts, destination_contracts


def open_boundary(settings: Settings, writable: Writable | None = None) -> Boundary:
    """Open the boundary that these settings describe; nothing starts before it is asked to.

    A worker is told which topics may be written to, so that it need not look itself.
    """
    rules, contracts = envelope_rules(settings), destination_contracts(settings)
    options = _options(settings, settings.pipeline.name, rules, contracts)
    return _opened(settings, replace(options, replays=replay_rules(settings)), writable)


def open_dedup(settings: Settings, writable: Writable | None = None) -> Boundary:
    """Open the dedup pipeline that these settings describe: a boundary with another rule of identity.

    It has a name, a run and a store of keys of its own, so it disturbs no boundary on the same ledger.
    """
    name = settings.dedup_pipeline
    options = _options(settings, name, record_rules(settings), dedup_contracts(settings))
    return _opened(settings, replace(options, store=name), writable)


def open_all(settings: Settings) -> tuple[Boundary, Boundary]:
    """Open everything that may have left something on the ledger, for those who look after it."""
    return open_boundary(settings), open_dedup(settings)


def _options(
    settings: Settings, pipeline: str, rules: Rules, contracts: tuple[Contract, ...]
) -> BoundaryOptions:
    return BoundaryOptions(
        pipeline=pipeline,
        rules=rules,
        contracts=contracts,
        max_block=settings.pipeline.max_block,
        claim_lease_ms=settings.pipeline.claim_lease,
        create_topics=settings.transport.create_topics,
        check_interval_ms=settings.transport.check_interval,
        quarantine_limit=settings.pipeline.quarantine_limit,
        quarantine_window=settings.pipeline.quarantine_window,
        idle_after_ms=settings.dedup.idle_after,
        cache=settings.dedup.cache,
    )


def _opened(settings: Settings, options: BoundaryOptions, writable: Writable | None) -> Boundary:
    ledger, transport = open_ledger(settings), open_transport(settings)
    return Boundary(options, ledger, transport, writable=writable)
