"""The rules by which deliveries are decided and events counted, as one document under its hash (AUD-4).

Two decisions about the same delivery can only differ where these differ, or where what is there already does: marks,
keys, closed runs, topics that drifted.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from admitone.core.decisions import RULES_VERSION
from admitone.governance.registry import newest_schemas
from admitone.settings import Settings

DOCUMENT_VERSION: Final = 1
_DECIDING: Final = {
    "transport": {"filter_replays", "producers", "strict_keys"},
    "dedup": {
        "retention", "run_id", "key", "key_fields", "time_field", "source", "destination", "partitions",
        "late", "replication", "topic_retention",
    },
    "pipeline": {"name", "run_id", "max_event_bytes", "future_tolerance"},
    "evidence": {"archive"},
    "topk": {
        "k", "width", "depth", "counter_bits", "windows", "lateness", "idle_after", "keep_minutes",
        "keep_hours", "max_values",
    },
}  # fmt: skip
"""Of each section, what decides; the rest says where and how fast."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A document of rules, and the hash it is kept under."""

    hash: bytes
    document: bytes


def rules_in_force(settings: Settings) -> Rules:
    """Return the rules that these settings are."""
    document = orjson.dumps(
        {
            "version": DOCUMENT_VERSION,
            "rules": RULES_VERSION,
            **{
                section: _plain(getattr(settings, section), names)
                for section, names in _DECIDING.items()
            },
            "topics": [_plain(topic) for topic in settings.topics],
            "items": [_plain(item) for item in settings.items],
            "schemas": _schemas(settings.schemas.texts),
        },
        option=orjson.OPT_SORT_KEYS,
    )
    return Rules(hashlib.sha256(document).digest(), document)


def _plain(section: Any, names: set[str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = section.model_dump(mode="json", include=names)
    return found


@lru_cache(maxsize=16)
def _schemas(texts: tuple[tuple[str, str], ...]) -> dict[str, dict[str, Any]]:
    """Return the schemas that payloads are checked against, by event type and major version, with their files."""
    return {
        event_type: {
            str(major): {"file": name, "schema": orjson.loads(text)}
            for major, (name, text) in versions.items()
        }
        for event_type, versions in newest_schemas(texts).items()
    }
