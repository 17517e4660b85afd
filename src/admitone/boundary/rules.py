"""The rules of step 1, made from the settings."""

from __future__ import annotations

from admitone.boundary.read import ReplayRules
from admitone.core.envelope import EnvelopeRules
from admitone.core.errors import ConfigurationError
from admitone.core.keys import KeyRule
from admitone.core.records import RecordRules
from admitone.governance.registry import Validators, schemas
from admitone.governance.topic_routes import envelope_routes, record_route
from admitone.settings import Settings


def envelope_rules(settings: Settings) -> EnvelopeRules:
    """Return what an envelope must look like under these settings."""
    validators = schemas(settings.schemas.texts)
    _refuse_unknown_types(settings, validators)
    return EnvelopeRules(
        run_id=settings.pipeline.run_id,
        max_event_bytes=settings.pipeline.max_event_bytes,
        future_tolerance_ms=settings.pipeline.future_tolerance,
        retention_ms=settings.dedup.retention,
        routes=envelope_routes(settings),
        route_of_type={
            event_type: index
            for index, entry in enumerate(settings.topics)
            for event_type in entry.event_types
        },
        schemas=validators,
    )


def _refuse_unknown_types(settings: Settings, validators: Validators) -> None:
    """Refuse a topic for events that nothing could be checked against: all would go to quarantine."""
    for entry in settings.topics:
        for event_type in entry.event_types:
            if event_type not in validators:
                raise ConfigurationError(
                    f"Topic {entry.topic!r} takes events of type {event_type!r}, for which there is no schema.",
                    f"put {event_type}.1.0.0.json into a folder and name it as folder of [schemas]",
                )


def record_rules(settings: Settings) -> RecordRules:
    """Return what a record of a dedup pipeline must look like under these settings."""
    dedup = settings.dedup
    return RecordRules(
        run_id=dedup.run_id,
        key=KeyRule.of(dedup.key, dedup.key_fields),
        default_run=settings.pipeline.run_id,
        time_field=dedup.time_field,
        max_event_bytes=settings.pipeline.max_event_bytes,
        future_tolerance_ms=settings.pipeline.future_tolerance,
        retention_ms=dedup.retention,
        routes=(record_route(settings),),
    )


def replay_rules(settings: Settings) -> ReplayRules | None:
    """Return how replays in the source topic are found; None where they are not looked for."""
    transport = settings.transport
    if not transport.filter_replays:
        return None
    return ReplayRules(frozenset(transport.producers), transport.strict_keys)
