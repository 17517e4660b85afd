"""Schemas: those of the package, and a folder of one's own that adds event types or replaces versions."""

from __future__ import annotations

import json
import pickle
import tomllib
from pathlib import Path

import pytest

from admitone.boundary.rules import envelope_rules
from admitone.core.errors import ConfigurationError
from admitone.core.routing import partition_of
from admitone.governance.registry import Validators, schemas
from admitone.ledger.decision_rows import decisions
from admitone.ledger.model import Filter
from admitone.ops.init import Profile, template
from admitone.results import open_answers
from admitone.settings import FILE_NAME, load_settings
from tests.support.homes import count_everything
from tests.support.pipeline import Pipeline, event

REFUND = {
    "type": "object",
    "required": ["reasonCode"],
    "properties": {"reasonCode": {"type": "string"}, "cents": {"type": "integer"}},
}
CONFIGURATION = """\
[pipeline]
quarantine_limit = 1.0

[schemas]
folder = "mine"

[transport]
raw_partitions = 2

[[topics]]
topic = "admitted.refunds"
family = "refunds"
event_types = ["refund"]
partitions = 2

[[items]]
event_type = "refund"
dimension = "refunded"
item = "reasonCode"
item_type = "reason"
weight = "cents"
"""


def schemas_in(folder: Path) -> Validators:
    return schemas(load_settings(folder, schemas={"folder": str(folder)}).schemas.texts)


def put(folder: Path, name: str, schema: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(schema))


def test_the_event_types_of_every_template_come_with_the_package():
    named = {
        event_type
        for text in map(template, Profile)
        for topic in tomllib.loads(text)["topics"]
        for event_type in topic["event_types"]
    }
    assert set(schemas()) == named
    assert len(named) == 9


def test_the_families_of_the_production_template_keep_together_what_belongs_together(tmp_path):
    _, word, entries = template(Profile.PRODUCTION).partition("[[topics]]")
    topics = (word + entries).replace("replication = 3", "")
    (tmp_path / FILE_NAME).write_text("[pipeline]\nquarantine_limit = 1.0\n" + topics)
    pipeline = Pipeline(tmp_path)
    judged = {"idempotencyKey": "i7", "decisionId": "d1"}
    pipeline.ingest(
        event("c1", {"contextType": "risk", "merchantId": "m9", "arrivalSequence": 1}, eventType="merchant_context"),
        event("c2", {"contextType": "limits", "merchantId": "m9", "arrivalSequence": 2}, eventType="merchant_context"),
        event("c3", {"contextType": "risk", "arrivalSequence": 2}, eventType="merchant_context"),
        event("r1", {"command": "pause", "controlId": "x"}, eventType="run_control"),
        event("d1", {"outcome": "approve", **judged}, eventType="decision"),
        event("a1", {"actionType": "capture", **judged}, eventType="action"),
        event("a2", {"actionType": "capture"}, eventType="action"),
        event("a3", judged, eventType="action"),
    )  # fmt: skip
    pipeline.run()

    def place(event_id: str) -> tuple[str, int]:
        (row,) = decisions(pipeline.ledger, Filter(event_id=event_id))
        return row["bus"]["topic"], row["bus"]["partition"]

    assert place("c1") == place("c2") == ("admitted.context", partition_of("m9", 12))
    assert place("c3") == ("admitted.context", partition_of("2", 12))
    assert place("r1") == ("admitted.control", partition_of("x", 3))
    assert place("d1") == place("a1") == ("admitted.decision", partition_of("i7", 12))
    assert pipeline.verdicts("a2") == [("QUARANTINED", "NO_PARTITION_FIELD")]
    assert pipeline.verdicts("a3") == [("QUARANTINED", "SCHEMA_VIOLATION")]


def test_of_a_major_version_the_newest_counts_and_others_stay(tmp_path):
    put(tmp_path, "refund.1.2.0.json", {"required": ["a"]})
    put(tmp_path, "refund.1.10.0.json", {"required": ["b"]})
    put(tmp_path, "refund.2.0.0.json", {"required": ["c"]})

    found = schemas_in(tmp_path)["refund"]

    assert (found[1]({"b": 1}), found[1]({"a": 1})) == (True, False)
    assert (found[2]({"c": 1}), found[2]({"b": 1})) == (True, False)
    assert set(schemas_in(tmp_path)) > {"page_view", "refund"}


def test_a_version_of_one_s_own_takes_the_place_of_the_package_s(tmp_path):
    put(tmp_path, "page_view.1.1.0.json", {"required": ["campaign"]})

    found = schemas_in(tmp_path)["page_view"][1]

    assert (found({"campaign": "x"}), found({"url": "/a"})) == (True, False)
    assert schemas()["page_view"][1]({"url": "/a"})


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("refund.json", "{}", "refund.1.0.0.json"),
        ("refund.1.0.0.json", "{", "Expected a JSON Schema"),
        ("refund.1.0.0.json", '{"type": "objekt"}', "Expected a JSON Schema"),
        ("refund.1.0.0.json", '{"$ref": "common.json"}', "Expected a JSON Schema"),
        ("refund.1.0.0.json", '{"$ref": "http://127.0.0.1:9/x.json"}', "Expected a JSON Schema"),
    ],
)
def test_a_file_that_is_no_schema_is_refused_at_the_start(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)

    with pytest.raises(ConfigurationError, match=said):
        schemas_in(tmp_path)


def test_what_was_read_at_the_start_travels_with_the_settings(tmp_path):
    put(tmp_path, "refund.1.0.0.json", {"required": ["a"]})
    settings = load_settings(tmp_path, schemas={"folder": "."})
    put(tmp_path, "refund.1.0.0.json", {"required": ["b"]})

    found = schemas(pickle.loads(pickle.dumps(settings)).schemas.texts)["refund"][1]

    assert (found({"a": 1}), found({"b": 1})) == (True, False)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        schemas_in(tmp_path / "missing")


def test_a_topic_for_events_without_a_schema_is_refused(tmp_path):
    (tmp_path / FILE_NAME).write_text(CONFIGURATION)
    (tmp_path / "mine").mkdir()

    with pytest.raises(ConfigurationError, match="'refund', for which there is no schema"):
        envelope_rules(load_settings(tmp_path))


def test_an_event_type_is_added_by_configuration_alone(tmp_path):
    (tmp_path / FILE_NAME).write_text(CONFIGURATION)
    put(tmp_path / "mine", "refund.1.0.0.json", REFUND)
    pipeline = Pipeline(tmp_path)
    refund = {"eventType": "refund"}
    pipeline.ingest(
        event("a", {"reasonCode": "broken", "cents": 1_250}, **refund),
        event("b", {"reasonCode": "late", "cents": 300}, **refund),
        event("c", {"reasonCode": "broken", "cents": 50}, **refund),
        event("d", {"cents": 50}, **refund),
        event("e"),
    )
    pipeline.run()
    count_everything(pipeline.settings)

    assert pipeline.verdicts("a") == [("ADMITTED", None)]
    assert pipeline.verdicts("d") == [("QUARANTINED", "SCHEMA_VIOLATION")]
    assert pipeline.verdicts("e") == [("QUARANTINED", "UNKNOWN_EVENT_TYPE")]
    top = open_answers(pipeline.settings).top("refunded", "all")
    assert [(each["item"], each["estimate"]) for each in top["items"]] == [
        ("broken", 1_300),
        ("late", 300),
    ]
