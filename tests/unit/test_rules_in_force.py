"""Rules have one hash; every input that can change a decision or a count changes it, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from admitone.governance.rules_in_force import rules_in_force
from admitone.settings import Settings, load_settings

DECIDES: dict[str, dict[str, Any]] = {
    "pipeline": {"name": "other", "run_id": "other", "max_event_bytes": 5_000, "future_tolerance": "2h"},
    "transport": {"filter_replays": True, "producers": [7], "strict_keys": True},
    "evidence": {"archive": False},
    "dedup": {
        "retention": "50d", "run_id": "other", "key": "content", "key_fields": ["payload.id"],
        "time_field": "payload.at", "source": "other", "destination": "other", "late": "other.late",
        "partitions": 5, "replication": 2, "topic_retention": "1d",
    },
    "topk": {
        "k": 7, "width": 512, "depth": 4, "counter_bits": 64, "windows": ["1m", "1h"], "lateness": "1m",
        "idle_after": "1m", "keep_minutes": "1d", "keep_hours": "9d", "max_values": 3,
    },
}  # fmt: skip
TOGETHER = {
    "transport.producers": {"filter_replays": True},
    "transport.filter_replays": {"producers": [7]},
    "transport.strict_keys": {"filter_replays": True, "producers": [7]},
    "dedup.key_fields": {"key": "field"},
}
"""What a value can only be set with."""
BEFORE = {
    "transport.filter_replays": {},
    "transport.producers": {},
    "transport.strict_keys": {"filter_replays": True, "producers": [7]},
    "dedup.key_fields": {"key": "field", "key_fields": ["payload.other"]},
}
"""What it is compared with, where that is not the same without it."""
TOPIC = {"family": "f", "topic": "t", "event_types": ["page_view"]}
ITEM = {"event_type": "page_view", "dimension": "url", "item": "url", "item_type": "url"}
TABLES = {
    "topics": (TOPIC, {
        "family": "g", "topic": "u", "event_types": ["search"], "partitions": 5, "replication": 2,
        "key_fields": ["payload.url"], "retention": "1d", "record_key": "business_key",
        "partitioner": "source", "filter_replays": False, "required": True,
    }),
    "items": (ITEM, {
        "event_type": "search", "dimension": "d", "item": "i", "item_type": "t", "group_by": ["g"],
        "weight": "w",
    }),
}  # fmt: skip


def hash_of(**sections: Any) -> str:
    return rules_in_force(Settings(**sections)).hash.hex()


@pytest.mark.parametrize(
    ("section", "name"), [(section, name) for section, names in DECIDES.items() for name in names]
)
def test_a_value_that_decides_changes_the_hash(section: str, name: str) -> None:
    beside = TOGETHER.get(f"{section}.{name}", {})
    before = hash_of(**{section: BEFORE.get(f"{section}.{name}", beside)})
    after = hash_of(**{section: {**beside, name: DECIDES[section][name]}})

    assert before != after


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, (_, names) in TABLES.items() for name in names]
)
def test_a_value_of_a_topic_or_an_item_changes_the_hash(table: str, name: str) -> None:
    whole, changes = TABLES[table]
    before = hash_of(**{table: [whole]})

    assert hash_of(**{table: [{**whole, name: changes[name]}]}) != before
    assert hash_of(**{table: [whole, {**whole, **changes}]}) != before


def test_a_schema_changes_the_hash_and_where_and_how_fast_does_not(tmp_path: Path) -> None:
    before = rules_in_force(load_settings(tmp_path))
    (tmp_path / "own").mkdir()
    (tmp_path / "own/refund.1.0.0.json").write_text('{"type": "object"}')
    with_schema = load_settings(tmp_path, schemas={"folder": "own"})
    assert rules_in_force(with_schema).hash != before.hash
    kept = orjson.loads(rules_in_force(with_schema).document)["schemas"]["refund"]["1"]
    assert kept == {"file": "refund.1.0.0.json", "schema": {"type": "object"}}
    elsewhere = load_settings(
        tmp_path / "another",
        ledger={"url": "sqlite:other.db"},
        spark={"driver_memory": "3g"}
        if "driver_memory" in Settings().spark.model_fields_set
        else {},
        pipeline={"max_block": 7, "claim_lease": "1s"},
        transport={"path": "elsewhere", "raw_partitions": 9},
        service={"port": 1},
    )
    assert rules_in_force(elsewhere) == before


def test_every_value_of_these_sections_either_decides_or_is_known_not_to() -> None:
    """A new key must be put on one side: whoever adds it thinks about it here."""
    only_how = {
        "pipeline": {"max_block", "claim_lease", "quarantine_limit", "quarantine_window"},
        "transport": {
            "kind", "path", "kafka", "create_topics", "check_interval", "raw_topic", "raw_partitions",
            "raw_replication", "raw_retention", "max_per_trigger",
        },
        "evidence": {"path", "options", "journal_retention"},
        "dedup": {"idle_after", "cache", "state"},
        "topk": {"store", "max_per_trigger"},
    }  # fmt: skip
    settings = Settings()
    for section, names in DECIDES.items():
        fields = set(type(getattr(settings, section)).model_fields)
        assert fields == names.keys() | only_how[section], section
    for table, (whole, changes) in TABLES.items():
        fields = set(type(getattr(settings, table)[0]).model_fields)
        assert fields - changes.keys() <= {"cleanup_policy"}, table
        assert whole.keys() <= fields
