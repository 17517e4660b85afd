"""Every event gets in once and gets a ticket, or you know why not.

Importing this package starts nothing; what needs Spark is loaded when it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from admitone.boundary import open_boundary
    from admitone.boundary.admission import Boundary
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
    from admitone.core.wire import StreamMetadata, producer_id
    from admitone.ledger import open_ledger_reader
    from admitone.ledger.port import Ledger, LedgerReader
    from admitone.results import open_answers
    from admitone.results.answers import Answers
    from admitone.settings import Settings, load_settings
    from admitone.spark.aggregates import aggregate_partitions
    from admitone.spark.analytics_query import analytics_query
    from admitone.spark.boundary_query import boundary_query, dedup_query
    from admitone.spark.deduplicate import deduplicate
    from admitone.spark.metadata_columns import metadata_key
    from admitone.spark.replay_columns import filter_replays, mark_replays
    from admitone.transport import open_transport
    from admitone.transport.port import Transport

_NAMES = {
    "boundary": "open_boundary",
    "boundary.admission": "Boundary",
    "core.errors": (
        "AdmitoneError AmbiguityRemains ConfigurationError Fenced IntegrityError MarkMoved NotFound RunIsRed"
        " ServiceUnreachable"
    ),
    "core.wire": "StreamMetadata producer_id",
    "ledger": "open_ledger_reader",
    "ledger.port": "Ledger LedgerReader",
    "results": "open_answers",
    "results.answers": "Answers",
    "settings": "Settings load_settings",
    "spark.aggregates": "aggregate_partitions",
    "spark.analytics_query": "analytics_query",
    "spark.boundary_query": "boundary_query dedup_query",
    "spark.deduplicate": "deduplicate",
    "spark.metadata_columns": "metadata_key",
    "spark.replay_columns": "filter_replays mark_replays",
    "transport": "open_transport",
    "transport.port": "Transport",
}
_HOMES = {name: f"admitone.{home}" for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "AdmitoneError",
    "AmbiguityRemains",
    "Answers",
    "Boundary",
    "ConfigurationError",
    "Fenced",
    "IntegrityError",
    "Ledger",
    "LedgerReader",
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
    "open_answers",
    "open_boundary",
    "open_ledger_reader",
    "open_transport",
    "producer_id",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'admitone' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
