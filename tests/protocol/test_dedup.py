"""The dedup pipeline: the first record of each key from one topic to another, by the boundary's own protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from admitone.boundary.release import Signature, release
from admitone.core.decisions import Action, Verdict
from admitone.core.wire import StreamMetadata
from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.audit.verify import verify_run
from admitone.evidence.originals import open_deliveries
from admitone.ledger.books import books
from admitone.ledger.decision_rows import in_quarantine
from admitone.ledger.model import Filter
from admitone.ops.lag import LagMeter
from tests.support.deduplicated import DedupPipeline
from tests.support.pipeline import Pipeline, event

pytestmark = pytest.mark.usefixtures("either_ledger")

DAY = 86_400_000
NOON = 1_760_000_000_000


def order(number: int, **more: Any) -> bytes:
    """Return an order as somebody else would write it: no envelope of ours."""
    return json.dumps({"order": {"id": number}, "at": NOON, **more}).encode()


def by_order(home: Path, **more: Any) -> DedupPipeline:
    dedup = {"key": "field", "key_fields": ["order.id"], "time_field": "at", **more}
    return DedupPipeline(home, dedup=dedup)


def reasons(pipeline: DedupPipeline) -> list[tuple[str, str | None]]:
    return [(row["verdict"], row["reason"]) for row in pipeline.decisions()]


def test_the_first_record_of_each_key_is_written_as_it_came(tmp_path: Path) -> None:
    pipeline = by_order(tmp_path)
    header = [{"key": "trace", "value": b"1"}, {"key": "identity", "value": b"theirs"}]
    pipeline.append(
        order(1), order(2), order(1), keys=[b"k", None, b"k"], headers=[header, [], header]
    )
    pipeline.append(order(2), order(3), partition=1)
    pipeline.run()

    written = pipeline.written()
    assert [record["value"] for record in written] == [order(1), order(2), order(3)]
    assert [record["key"] for record in written] == [b"k", None, None]
    assert [record["partition"] for record in written] == [0, 0, 1]
    assert written[0]["headers"][:2] == header
    named = {entry["key"]: entry["value"] for entry in written[0]["headers"]}
    source = pipeline.boundary.source(pipeline.topic, 0)
    assert named["position"] == StreamMetadata(*source, 0).to_bytes()
    assert named["event-time"] == str(NOON).encode()
    assert {entry["key"] for entry in written[1]["headers"]} >= {"identity", "position"}
    assert pipeline.problems() == []


def test_another_payload_under_a_known_key_is_a_duplicate(tmp_path: Path) -> None:
    """At the admission boundary it would be a contradiction; who asks for deduplication asks for the first."""
    pipeline = by_order(tmp_path)
    pipeline.append(order(1, amount=10), order(1, amount=11))
    pipeline.run()

    assert reasons(pipeline) == [("ADMITTED", None), ("DUPLICATE", None)]
    assert pipeline.values() == [order(1, amount=10)]
    assert pipeline.ledger.anomalies() == []


@pytest.mark.parametrize(
    ("key", "fields", "same", "other"),
    [
        ("identity", [], event("a", {"n": 2}), event("b")),
        ("identity", [], event("a"), event("a", runId="another")),
        ("field", ["metadata.eventId"], event("a", runId="another"), event("b")),
        ("business", ["payload.url", "metadata.eventId"], event("a"), event("a", {"url": "/b"})),
        ("content", [], event("b"), event("a", {"n": 2})),
        ("content", ["metadata"], event("a", {"n": 2}), event("b")),
    ],
)
def test_every_key_strategy_tells_the_same_from_another(
    key: str, fields: list[str], same: bytes, other: bytes, tmp_path: Path
) -> None:
    pipeline = DedupPipeline(tmp_path, dedup={"key": key, "key_fields": fields})
    pipeline.append(event("a"), same, other)
    pipeline.run()

    assert [verdict for verdict, _ in reasons(pipeline)] == ["ADMITTED", "DUPLICATE", "ADMITTED"]
    assert pipeline.values() == [event("a"), other]
    assert pipeline.problems() == []
    assert not gate_of("dedup", pipeline.ledger, pipeline.transport, pipeline.settings).blockers


def test_what_has_no_key_or_no_time_is_quarantined_with_its_reason(tmp_path: Path) -> None:
    pipeline = DedupPipeline(
        tmp_path,
        dedup={"key": "field", "key_fields": ["id"], "time_field": "at"},
        pipeline={"quarantine_limit": 1, "max_event_bytes": 1_000},
    )
    pipeline.append(
        None, b"{", b"[1]", b'{"at": 1}', b'{"id": {}, "at": 1}', b'{"id": 1, "id": 2}', b'{"id": 1}',
        b'{"id": 1, "at": "noon"}', b'{"id": 1, "at": 1e300}', b'{"id": 1, "at": 99999999999999}',
        b'{"id": "' + b"x" * 1_000 + b'"}', b'{"id": 1, "at": "2026-01-05T10:00:00Z"}',
    )  # fmt: skip
    pipeline.run()

    assert [reason for _, reason in reasons(pipeline)] == [
        "NOT_JSON", "NOT_JSON", "NOT_AN_ENVELOPE", "IDENTITY_INVALID", "IDENTITY_INVALID",
        "DUPLICATE_KEY", "TIMESTAMP_INVALID", "TIMESTAMP_INVALID", "TIMESTAMP_INVALID",
        "TOO_FAR_IN_FUTURE", "PAYLOAD_TOO_LARGE", None,
    ]  # fmt: skip
    assert pipeline.problems() == []


def test_a_record_older_than_the_retention_is_too_old_and_its_neighbours_are_exact(
    tmp_path: Path,
) -> None:
    pipeline = by_order(tmp_path, retention="10d")
    old = NOON - 10 * DAY
    pipeline.append(
        order(1), order(2, at=old), order(3, at=old + 1), order(1, at=old + 1), order(2, at=NOON + 1)
    )  # fmt: skip
    pipeline.run()

    assert reasons(pipeline) == [
        ("ADMITTED", None), ("QUARANTINED", "TOO_OLD"), ("ADMITTED", None), ("DUPLICATE", None),
        ("ADMITTED", None),
    ]  # fmt: skip


def test_a_key_comes_out_again_once_its_first_has_left_the_window(tmp_path: Path) -> None:
    pipeline = by_order(tmp_path, retention="10d")
    pipeline.append(order(1), order(1, at=NOON + 10 * DAY - 1), order(1, at=NOON + 10 * DAY))
    pipeline.run()

    assert [verdict for verdict, _ in reasons(pipeline)] == ["ADMITTED", "DUPLICATE", "ADMITTED"]


def test_keys_are_remembered_across_runs_and_apart_from_the_boundary(tmp_path: Path) -> None:
    boundary = Pipeline(tmp_path)
    boundary.ingest(event("a"), event("a"))
    boundary.run()
    first = DedupPipeline(tmp_path, dedup={"run_id": "monday"})
    first.run()
    first.append(event("a"), event("b"))
    second = DedupPipeline(tmp_path, dedup={"run_id": "tuesday"})
    second.run()

    found = {run["run_id"]: run for run in books(second.ledger)["runs"]}
    assert {run: (entry["admitted"], entry["duplicates"]) for run, entry in found.items()} == {
        "default": (1, 1), "monday": (1, 1), "tuesday": (1, 1),
    }  # fmt: skip
    assert all(entry["balanced"] for entry in found.values())
    assert second.values() == [event("a"), event("b")]
    assert second.problems() == []


def test_the_boundary_sees_only_its_own_lag_and_the_dedup_pipeline_only_its_own(
    tmp_path: Path,
) -> None:
    boundary = Pipeline(tmp_path)
    boundary.ingest(event("a"), event("b"))
    boundary.run()
    lag = LagMeter(boundary.settings).measure()
    assert lag.dedup is None
    assert not lag.idle(boundary=True, analytics=False, dedup=True)
    dedup = DedupPipeline(tmp_path)
    dedup.boundary.start(dedup.topic)

    lag = LagMeter(boundary.settings).measure()
    assert (lag.boundary.waiting, lag.dedup.waiting, lag.dedup.idle) == (0, 2, False)
    dedup.run()
    assert LagMeter(boundary.settings).measure().dedup.idle


def test_it_reads_a_topic_of_somebody_else(tmp_path: Path) -> None:
    upstream = Pipeline(tmp_path)
    upstream.ingest(event("a"), event("b", {"url": "/a"}))
    upstream.run()
    dedup = {"source": "admitted.traffic", "key": "content"}
    pipeline = DedupPipeline(tmp_path, dedup=dedup)
    pipeline.run()

    (record,) = pipeline.written()
    names = [entry["key"] for entry in record["headers"]]
    assert names.count("identity") == 2, "what came with it, and then our own"
    assert pipeline.problems() == []


def test_a_closed_run_takes_no_more_and_stays_verifiable(tmp_path: Path) -> None:
    pipeline = by_order(tmp_path)
    pipeline.append(order(1), order(1), b"{}")
    pipeline.run()
    ledger, transport, settings = pipeline.ledger, pipeline.transport, pipeline.settings
    (blocker,) = gate_of("dedup", ledger, transport, settings).blockers
    assert (blocker.kind, blocker.count) == ("quarantined", 1)
    for block, ordinals in in_quarantine(ledger, Filter(run_id="dedup")).items():
        ledger.dispose(block, ordinals, Action.DISCARDED, 1, "ann", "no order")
    pipeline.run()
    closing = close_run("dedup", ledger, transport, settings, ())
    assert closing.artifact is not None, closing.gate.blockers

    pipeline.append(order(1), order(2))
    pipeline.run()

    assert reasons(pipeline)[3:] == [("QUARANTINED", "RUN_CLOSED")] * 2
    assert verify_run("dedup", ledger, transport, settings).verified
    reopened = by_order(tmp_path, run_id="next")
    reopened.append(order(1), order(3))
    reopened.run()
    assert reasons(reopened)[5:] == [("DUPLICATE", None), ("ADMITTED", None)]


def test_a_released_record_is_written_as_it_came_with_its_origin(tmp_path: Path) -> None:
    strict = by_order(tmp_path)
    strict.append(order(1, at="soon"), headers=[[{"key": "trace", "value": b"1"}]])
    strict.run()
    loose = DedupPipeline(tmp_path, dedup={"key": "field", "key_fields": ["order.id"]})
    fetch = open_deliveries(loose.settings, loose.ledger)
    chosen = in_quarantine(loose.ledger, Filter(run_id="dedup"))
    boundaries = [Pipeline(tmp_path).boundary, loose.boundary]
    signature = Signature("ann", "the log's time will do")
    first, report = (release(each, fetch, chosen, signature) for each in boundaries)
    loose.run()

    assert first.released == {}
    assert report.released == {Verdict.ADMITTED: 1}
    (record,) = loose.written()
    names = [entry["key"] for entry in record["headers"]]
    assert (record["value"], names[0]) == (order(1, at="soon"), "trace")
    assert names.count("origin") == 1
    assert "runId" not in names
    assert loose.problems() == []
    assert not gate_of("dedup", loose.ledger, loose.transport, loose.settings).blockers
