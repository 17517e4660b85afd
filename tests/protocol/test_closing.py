"""Closing a run: what blocks it, what races with it, what it leaves behind."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from admitone.boundary.reconciliation import reconcile
from admitone.core.decisions import Action, BlockState
from admitone.core.errors import NotFound, RunIsRed
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.evidence_file import closure_path, run_folder
from admitone.evidence.evidence_store import FolderStore
from admitone.ledger.model import Block, Closure, Outcome
from tests.support.closing import (
    blockers,
    close_green,
    differences,
    open_run,
    sql,
    stores_of,
    verified,
)
from tests.support.logs import delete_topic, truncate
from tests.support.pipeline import Pipeline, event


def test_a_claim_between_the_check_and_the_closing_stops_it_and_leaves_no_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = open_run(tmp_path)
    write = FolderStore.write

    def claim_first(self: FolderStore, path: str, data: bytes) -> None:
        write(self, path, data)
        if path == closure_path("r"):
            pipeline.ingest(event("e3"))
            generation = pipeline.boundary.start(pipeline.topic)
            list(pipeline.own(0, generation).admit(pipeline.records(0)))

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "write", claim_first)
        with pytest.raises(RunIsRed, match="took deliveries"):
            close_green("r", *stores_of(pipeline))

    assert pipeline.ledger.runs() == {"r": "OPEN"}
    assert pipeline.verdicts("e3") == [("ADMITTED", None)]
    with pytest.raises(NotFound):
        open_evidence_store(pipeline.settings).read(closure_path("r"))


def test_no_claim_slips_in_while_a_run_is_being_closed(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    stop = threading.Event()

    def deliver() -> None:
        feeding = Pipeline(
            tmp_path,
            transport={"raw_partitions": 1},
            pipeline={"run_id": "r", "quarantine_limit": 1.0},
        )
        for number in range(10, 40):
            if stop.wait(number % 7 * 0.05):
                return
            feeding.ingest(event(f"e{number}"))
            feeding.run()

    feeder = threading.Thread(target=deliver)
    feeder.start()
    artifact = None
    try:
        while artifact is None:
            try:
                artifact = close_run("r", *stores_of(pipeline)).artifact
            except RunIsRed:
                continue
    finally:
        stop.set()
        feeder.join(60)
    pipeline.ingest(event("afterwards"))
    pipeline.run()
    rows = pipeline.decisions()

    assert artifact["books"]["admitted"] == sum(row["verdict"] == "ADMITTED" for row in rows)
    assert {row["reason"] for row in rows if row["verdict"] != "ADMITTED"} == {"RUN_CLOSED"}
    assert differences(verified(pipeline)) == []


def test_a_crash_before_the_ledger_closes_leaves_an_open_run_that_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = open_run(tmp_path)

    def crash(*_: object) -> None:
        raise ConnectionError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ledger, "close_run", crash)
        with pytest.raises(ConnectionError):
            close_green("r", *stores_of(pipeline))
    stray = open_evidence_store(pipeline.settings).read(closure_path("r"))
    found = verified(pipeline)
    assert (found.verified, found.state, len(found.notes)) == (True, "OPEN", 1)
    pipeline.ingest(event("e3"))
    pipeline.run()
    artifact = close_green("r", *stores_of(pipeline))

    assert artifact["books"]["admitted"] == 3
    assert open_evidence_store(pipeline.settings).read(closure_path("r")) != stray
    assert verified(pipeline).verified


def test_of_two_who_close_at_once_the_second_leaves_the_firsts_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = open_run(tmp_path)
    close = pipeline.ledger.close_run

    def somebody_else_first(_: Closure, newest: int) -> None:
        patch.setattr(pipeline.ledger, "close_run", close)
        close_green("r", *stores_of(pipeline), author="bob")
        raise RunIsRed("closed meanwhile")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ledger, "close_run", somebody_else_first)
        with pytest.raises(RunIsRed):
            close_green("r", *stores_of(pipeline))
    assert verified(pipeline).verified


def test_closing_removes_what_an_interrupted_writer_left(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    left = f"{run_folder('r')}/receipts/000000000001-0123456789abcdef.parquet"
    open_evidence_store(pipeline.settings).write(left, b"half of it")
    close_green("r", *stores_of(pipeline))

    assert left not in open_evidence_store(pipeline.settings).list("runs")
    assert verified(pipeline).verified


def test_the_artifact_says_what_was_closed_and_under_which_rules(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    artifact = close_green("r", *stores_of(pipeline))
    files = pipeline.ledger.evidence_files("r")

    assert artifact["books"]["admitted"] == artifact["receipts"] == 2
    assert [entry["path"] for entry in artifact["evidence"]] == [file.path for file in files]
    assert [entry["checksum"] for entry in artifact["evidence"]] == [
        file.checksum.hex() for file in files
    ]
    assert [mark["offset"] for mark in artifact["marks"]] == [1]
    assert artifact["parameters"]["retention_ms"] == pipeline.settings.dedup.retention
    assert artifact["gate"]["gate"] == "green"
    assert artifact["waived"] == []


def test_a_required_family_can_be_waived_by_name_only(tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text(
        '[[topics]]\nfamily = "traffic"\ntopic = "t"\nevent_types = ["page_view"]\n'
        '[[topics]]\nfamily = "orders"\ntopic = "o"\nevent_types = ["purchase"]\nrequired = true\n'
    )
    pipeline = open_run(tmp_path)
    closing = close_run("r", *stores_of(pipeline))
    assert (closing.closed, closing.artifact) == (False, None)
    assert [each.what for each in closing.gate.blockers] == ["family 'orders' has no admissions"]
    with pytest.raises(NotFound, match="'order'"):
        close_green("r", *stores_of(pipeline), waived=["order"])
    artifact = close_green("r", *stores_of(pipeline), waived=["orders"])

    assert artifact["waived"] == ["orders"]
    assert differences(verified(pipeline)) == []
    again = close_run("r", *stores_of(pipeline))
    assert (again.gate.green, again.closed, again.refused) == (False, True, False)


def test_a_contradiction_whose_anomaly_was_made_to_vanish_is_recounted(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    pipeline.ingest(event("e1", {"pageId": "other"}))
    pipeline.run()
    assert blockers(pipeline)["contradictions"] == [("contradiction", 1)]
    sql(pipeline, "DELETE FROM anomaly")

    assert blockers(pipeline)["contradictions"] == [("contradiction", 1)]
    assert blockers(pipeline)["evidence"] == [("quarantined", 1)]


def test_a_record_that_is_not_where_the_ledger_says_is_drift(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    (file,) = [
        path for path in (tmp_path / "data/log").rglob("*.parquet")
        if b"payload-hash" in path.read_bytes()
    ]  # fmt: skip
    import pyarrow.parquet as pq

    rows = pq.read_table(file)
    pq.write_table(rows.take([1, 0]), file)

    assert blockers(pipeline) == {"no": [("drift", 2)]}


def test_places_that_the_log_no_longer_has_are_counted_not_missed(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    topic = pipeline.transport.topic("admitted.traffic")
    for partition, end in enumerate(pipeline.transport.ends(topic)):
        truncate(pipeline.transport, topic, partition, end)
    gate = gate_of("r", *stores_of(pipeline))
    assert gate.green
    assert "0 records on the log compared, 2 no longer there" in gate.checks[2].evidence
    close_green("r", *stores_of(pipeline))
    delete_topic(pipeline.transport, "admitted.traffic")

    found = verified(pipeline)
    assert found.verified
    assert found.notes == ["today topic 'admitted.traffic' is missing"]


def test_late_publishes_are_known_by_their_origin(tmp_path: Path) -> None:
    """A block that never got to the log is published late; its places there are compared like all others."""
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1}, pipeline={"run_id": "r"})
    pipeline.ingest(event("e1"), event("e2"))

    def lose(*_: object) -> None:
        raise ConnectionError("no answer")

    conclude = pipeline.ledger.conclude

    def unknown_instead(block: Block, epoch: int, outcome: Outcome, *_: object) -> None:
        conclude(block, epoch, Outcome(BlockState.AMBIGUOUS, None, None, outcome.decided_at))

    generation = pipeline.boundary.start(pipeline.topic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.transport, "append", lose)
        patch.setattr(pipeline.ledger, "conclude", unknown_instead)
        with pytest.raises(ConnectionError):
            list(pipeline.own(0, generation).admit(pipeline.records(0)))
    list(reconcile(pipeline.boundary))
    (resolution,) = pipeline.ledger.resolutions()
    assert resolution.action is Action.PUBLISHED_LATE
    pipeline.run()
    gate = gate_of("r", *stores_of(pipeline))

    assert gate.green
    assert "2 records on the log compared, 0 no longer there" in gate.checks[2].evidence
    close_green("r", *stores_of(pipeline))
    assert verified(pipeline).verified
    assert pipeline.problems() == []
