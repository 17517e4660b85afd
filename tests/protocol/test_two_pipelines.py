"""Two pipelines on one ledger keep out of each other's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from admitone.evidence import open_evidence_store
from admitone.evidence.originals import original
from admitone.ops.lag import LagMeter
from tests.support.pipeline import Pipeline, event


@pytest.fixture
def two(tmp_path: Path, either_ledger: None) -> tuple[Pipeline, Pipeline]:
    one, other = (
        Pipeline(
            tmp_path,
            pipeline={"name": name},
            transport={"raw_topic": f"raw-{name}", "raw_partitions": 1},
        )
        for name in ("one", "other")
    )
    return one, other


def test_each_sees_only_its_own_lag(two: tuple[Pipeline, Pipeline]) -> None:
    one, other = two
    one.ingest(event("a"), event("b"))
    other.ingest(event("c"))
    one.run()
    lags = [LagMeter(pipeline.settings).measure() for pipeline in two]

    assert [lag.boundary.waiting for lag in lags] == [0, 1]
    assert [lag.boundary.done for lag in lags] == [2, 0]


def test_an_archived_envelope_is_found_by_its_producer_too(two: tuple[Pipeline, Pipeline]) -> None:
    """Both have a delivery at partition 0, offset 0, in the same run."""
    for pipeline, name in zip(two, "ab", strict=True):
        pipeline.ingest(event(name))
        pipeline.run()
    one, _ = two
    one.ledger.expire_journal(2)
    store = open_evidence_store(one.settings)
    found = {
        row["event_id"]: original(one.ledger, store, *map(int, row["id"].split("-")))
        for row in one.decisions()
    }

    assert found == {"a": event("a"), "b": event("b")}
