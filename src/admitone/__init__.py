"""Every event gets in once and gets a ticket, or you know why not.

Importing this package starts nothing; what needs Spark is loaded when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from admitone.boundary.admission import Boundary
    from admitone.boundary.open import open_boundary
    from admitone.core.errors import (
        AdmitoneError,
        AmbiguityRemains,
        ConfigurationError,
        Fenced,
        IntegrityError,
        MarkMoved,
        NotFound,
        RunIsRed,
        ServiceUnreachable,
    )
    from admitone.core.replay import StreamMetadata, producer_id
    from admitone.ledger.port import Ledger
    from admitone.settings import Settings, load_settings
    from admitone.spark.aggregates import aggregate_partitions
    from admitone.spark.analytics import analytics_query
    from admitone.spark.boundary import boundary_query, dedup_query
    from admitone.spark.deduplicate import deduplicate
    from admitone.spark.metadata import metadata_key
    from admitone.spark.replays import filter_replays, mark_replays
    from admitone.transport.port import Transport

_HOMES = {
    "Boundary": "admitone.boundary.admission",
    "Ledger": "admitone.ledger.port",
    "Settings": "admitone.settings",
    "StreamMetadata": "admitone.core.replay",
    "Transport": "admitone.transport.port",
    "aggregate_partitions": "admitone.spark.aggregates",
    "analytics_query": "admitone.spark.analytics",
    "boundary_query": "admitone.spark.boundary",
    "dedup_query": "admitone.spark.boundary",
    "deduplicate": "admitone.spark.deduplicate",
    "filter_replays": "admitone.spark.replays",
    "load_settings": "admitone.settings",
    "mark_replays": "admitone.spark.replays",
    "metadata_key": "admitone.spark.metadata",
    "open_boundary": "admitone.boundary.open",
    "producer_id": "admitone.core.replay",
    **dict.fromkeys(
        (
            "AdmitoneError",
            "AmbiguityRemains",
            "ConfigurationError",
            "Fenced",
            "IntegrityError",
            "MarkMoved",
            "NotFound",
            "RunIsRed",
            "ServiceUnreachable",
        ),
        "admitone.core.errors",
    ),
}

__all__ = [
    "AdmitoneError",
    "AmbiguityRemains",
    "Boundary",
    "ConfigurationError",
    "Fenced",
    "IntegrityError",
    "Ledger",
    "MarkMoved",
    "NotFound",
    "RunIsRed",
    "ServiceUnreachable",
    "Settings",
    "StreamMetadata",
    "Transport",
    "aggregate_partitions",
    "analytics_query",
    "boundary_query",
    "dedup_query",
    "deduplicate",
    "filter_replays",
    "load_settings",
    "mark_replays",
    "metadata_key",
    "open_boundary",
    "producer_id",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'admitone' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
