"""Where admitted events go, made from the topic map of the settings."""

from __future__ import annotations

from admitone.core.errors import ConfigurationError
from admitone.core.routing import Route
from admitone.settings import Settings

_ROOTS = ("metadata", "payload")


def envelope_routes(settings: Settings) -> tuple[Route, ...]:
    """Return the destinations of the topic map, in its order."""
    return tuple(
        Route(
            entry.topic,
            entry.partitions,
            tuple(_path(field) for field in entry.key_fields),
            by_source=entry.partitioner == "source",
            business_keyed=entry.record_key == "business_key",
        )
        for entry in settings.topics
    )


def record_route(settings: Settings) -> Route:
    """Return the destination of a dedup pipeline."""
    dedup = settings.dedup
    return Route(dedup.destination, dedup.partitions, (), by_source=True, keeps_record=True)


def _path(field: str) -> tuple[str, ...]:
    path = tuple(field.split("."))
    if path[0] not in _ROOTS or len(path) < 2:
        raise ConfigurationError(
            f"Expected a key field such as metadata.partitionKey or payload.merchantId, got {field!r}.",
            "start it with metadata. or payload.",
        )
    return path
