"""A ledger restored from an older copy catches up with Kafka, where transactions leave offsets without records."""

from __future__ import annotations

import pytest

from admitone.boundary.restore.read_back import read_back
from admitone.evidence import open_evidence_store
from tests.support.kafka_site import ADMITTED, Site, copy_ledger, events, replace_ledger, site

__all__ = ["site"]


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "restored"])
def test_what_kafka_holds_is_read_back_and_published_once(lost: bool, site: Site) -> None:
    pipeline = site.pipeline()
    pipeline.ingest(*events("e", 3))
    site.run(pipeline)
    older = copy_ledger(site, "older")
    pipeline.ingest(*events("f", 3), *events("e", 3))
    site.run(pipeline)
    replace_ledger(site, None if lost else older)

    behind = site.pipeline()
    found = read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings))
    assert sum(part.admitted for part in found) == (6 if lost else 3)
    behind.ingest(*events("e", 3), *events("f", 3), *events("g", 3))
    site.run(behind)
    assert all(behind.verdicts(f"{name}0")[0] == ADMITTED[0] for name in "efg")
    site.in_order(behind)
    assert behind.problems() == []
