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
    from admitone.core.replay import StreamMetadata
    from admitone.ledger.port import Ledger
    from admitone.settings import Settings, load_settings
    from admitone.spark.analytics import analytics_query
    from admitone.spark.boundary import boundary_query
    from admitone.transport.port import Transport

_HOMES = {
    "Boundary": "admitone.boundary.admission",
    "Ledger": "admitone.ledger.port",
    "Settings": "admitone.settings",
    "StreamMetadata": "admitone.core.replay",
    "Transport": "admitone.transport.port",
    "analytics_query": "admitone.spark.analytics",
    "boundary_query": "admitone.spark.boundary",
    "load_settings": "admitone.settings",
    "open_boundary": "admitone.boundary.open",
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
    "analytics_query",
    "boundary_query",
    "load_settings",
    "open_boundary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'admitone' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
