"""A boundary from the settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from admitone.boundary.admission import Boundary, BoundaryOptions, Writable
from admitone.boundary.read import ReplayRules, Rules
from admitone.boundary.rules import envelope_rules, record_rules, replay_rules
from admitone.core.contract import Contract
from admitone.governance.rules_in_force import rules_in_force
from admitone.ledger import open_ledger
from admitone.ledger.model import ADMISSION_STORE
from admitone.settings import Settings
from admitone.transport import open_transport
from admitone.transport.topic_contract import dedup_contracts, destination_contracts


def open_boundary(settings: Settings, writable: Writable | None = None) -> Boundary:
    """Open the boundary that these settings describe; nothing starts before it is asked to.

    A worker is told which topics may be written to, so that it need not look itself.
    """
    return _opened(settings, admission_options(settings), writable)


def open_dedup(settings: Settings, writable: Writable | None = None) -> Boundary:
    """Open the dedup pipeline that these settings describe: a boundary with another rule of identity.

    It has a name, a run and a store of keys of its own, so it disturbs no boundary on the same ledger.
    """
    return _opened(settings, dedup_options(settings), writable)


@contextmanager
def open_all(settings: Settings) -> Iterator[tuple[Boundary, Boundary]]:
    """Open everything that may have left something on the ledger, for those who look after it; close it afterwards."""
    with closing(open_boundary(settings)) as admission, closing(open_dedup(settings)) as dedup:
        yield admission, dedup


def admission_options(settings: Settings) -> BoundaryOptions:
    """Return what the protocol needs to know of the boundary."""
    return _options(
        settings,
        settings.pipeline.name,
        settings.transport.raw_topic,
        envelope_rules(settings),
        destination_contracts(settings),
        replays=replay_rules(settings),
    )


def dedup_options(settings: Settings) -> BoundaryOptions:
    """Return what the protocol needs to know of the dedup pipeline."""
    name = settings.dedup_pipeline
    return _options(
        settings,
        name,
        settings.dedup_source,
        record_rules(settings),
        dedup_contracts(settings),
        store=name,
    )


def _options(
    settings: Settings,
    pipeline: str,
    reads: str,
    rules: Rules,
    contracts: tuple[Contract, ...],
    replays: ReplayRules | None = None,
    store: str = ADMISSION_STORE,
) -> BoundaryOptions:
    return BoundaryOptions(
        pipeline=pipeline,
        reads=reads,
        rules=rules,
        in_force=rules_in_force(settings),
        contracts=contracts,
        max_block=settings.pipeline.max_block,
        claim_lease_ms=settings.pipeline.claim_lease,
        create_topics=settings.transport.create_topics,
        check_interval_ms=settings.transport.check_interval,
        quarantine_limit=settings.pipeline.quarantine_limit,
        quarantine_window=settings.pipeline.quarantine_window,
        replays=replays,
        store=store,
        idle_after_ms=settings.dedup.idle_after,
        cache=settings.dedup.cache,
    )


def _opened(settings: Settings, options: BoundaryOptions, writable: Writable | None) -> Boundary:
    return Boundary(options, open_ledger(settings), open_transport(settings), writable=writable)
