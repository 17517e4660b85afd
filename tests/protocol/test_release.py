"""What is done about quarantined deliveries: released, settled or discarded, by whom and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from admitone.boundary.release import Choice
from admitone.core.decisions import Action, Reason, Verdict
from admitone.core.errors import AdmitoneError, CircuitOpen, NotFound
from admitone.evidence.audit.gate import gate_of
from admitone.ledger.books import books
from admitone.ledger.decision_rows import in_quarantine
from admitone.ledger.model import Filter
from tests.support.ledgers import must_balance
from tests.support.logs import on_the_log
from tests.support.pipeline import Pipeline, event
from tests.support.released import FUTURE, release_all

pytestmark = pytest.mark.usefixtures("either_ledger")


def blockers(pipeline: Pipeline) -> list[str]:
    gate = gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings)
    return [blocker.kind for blocker in gate.blockers]


def test_a_released_delivery_is_admitted_once_and_names_its_origin(tmp_path: Path) -> None:
    strict = Pipeline(tmp_path, pipeline={"future_tolerance": "1h"})
    strict.ingest(event("a", **FUTURE), event("a", **FUTURE), event("b"))
    strict.run()
    assert strict.verdicts("a") == [("QUARANTINED", "TOO_FAR_IN_FUTURE")] * 2
    assert "quarantined" in blockers(strict)

    assert release_all(strict).refused == {Reason.TOO_FAR_IN_FUTURE: 2}
    assert on_the_log(strict) == ["b"]

    mended = Pipeline(tmp_path, pipeline={"future_tolerance": "50000d"})
    report = release_all(mended, run_id="default", reason=Reason.TOO_FAR_IN_FUTURE)

    assert report.released == {Verdict.ADMITTED: 1, Verdict.DUPLICATE: 1}
    assert on_the_log(mended) == ["a", "b"]
    first, second, *again = mended.decisions(event_id="a")
    assert [first["verdict"], second["verdict"]] == ["QUARANTINED"] * 2
    assert first["resolution"]["action"] == "RELEASED"
    assert first["resolution"]["author"] == "ann"
    assert "checked by hand" in first["resolution"]["reason"]
    assert [row["verdict"] for row in again] == ["ADMITTED", "DUPLICATE"]
    assert blockers(mended) == []
    assert release_all(mended, run_id="default").released == {}
    (run,) = books(mended.ledger)["runs"]
    assert (run["deliveries"], run["balanced"]) == (5, True)
    assert mended.problems() == []


def test_a_released_delivery_survives_the_journal(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("a", **FUTURE), b"not json", event("c", **FUTURE))
    pipeline.run()
    pipeline.ledger.expire_journal(2)
    mended = Pipeline(tmp_path, pipeline={"future_tolerance": "50000d"})
    report = release_all(mended)

    assert report.released == {Verdict.ADMITTED: 2}
    assert report.refused == {Reason.NOT_JSON: 1}
    assert on_the_log(mended) == ["a", "c"]


def test_a_crash_between_publishing_and_noting_a_release_publishes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pipeline(tmp_path).ingest(event("a", **FUTURE))
    Pipeline(tmp_path).run()
    mended = Pipeline(tmp_path, pipeline={"future_tolerance": "50000d"})

    def crash(*_: Any) -> int:
        raise ConnectionError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(mended.ledger, "dispose", crash)
        with pytest.raises(ConnectionError):
            release_all(mended)
    assert on_the_log(mended) == ["a"]
    assert release_all(mended).released == {Verdict.DUPLICATE: 1}
    assert on_the_log(mended) == ["a"]
    assert blockers(mended) == []
    assert mended.problems() == []


def test_a_contradiction_needs_a_choice(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("a"), event("a", {"loadTimeMs": 1}), event("a", {"loadTimeMs": 2}))
    pipeline.run()
    assert "contradiction" in blockers(pipeline)
    with pytest.raises(AdmitoneError, match="needs a choice"):
        release_all(pipeline)

    one, two = pipeline.decisions(verdict=Verdict.QUARANTINED)
    assert release_all(pipeline, Choice.KEEP_FIRST, record=_place(one)).kept_first == 1
    report = release_all(pipeline, Choice.AS_NEW, record=_place(two))

    assert report.released == {Verdict.ADMITTED: 1}
    names = on_the_log(pipeline)
    assert names[0] == "a"
    assert names[1] == f"a~{two['payload_hash'][:16]}"
    (corrected,) = pipeline.decisions(event_id=names[1])
    assert corrected["payload_hash"] == two["payload_hash"]
    assert corrected["identity"] != two["identity"]
    assert pipeline.ledger.anomalies() == []
    assert blockers(pipeline) == []
    assert [row["resolution"]["action"] for row in pipeline.decisions(verdict=Verdict.QUARANTINED)] == [
        "KEPT_FIRST",
        "RELEASED",
    ]  # fmt: skip
    assert pipeline.problems() == []


def test_a_contradiction_that_comes_again_opens_its_anomaly_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("a"), event("a", {"loadTimeMs": 1}), event("a", {"loadTimeMs": 1}))
    pipeline.run()
    assert len(pipeline.ledger.anomalies()) == 1
    release_all(pipeline, Choice.KEEP_FIRST)
    assert pipeline.ledger.anomalies() == []
    pipeline.ingest(event("a", {"loadTimeMs": 1}))
    pipeline.run()
    assert len(pipeline.ledger.anomalies()) == 1
    assert "contradiction" in blockers(pipeline)


def test_discarding_turns_the_gate_green_and_is_on_record(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("a"), b"not json", b"[]")
    pipeline.run()
    for block_id, ordinals in in_quarantine(pipeline.ledger, Filter()).items():
        arguments = (block_id, ordinals, Action.DISCARDED, 7, "ann", "test data")
        assert pipeline.ledger.dispose(*arguments) == len(ordinals)
        assert pipeline.ledger.dispose(*arguments) == 0
    pipeline.run()
    assert blockers(pipeline) == []
    assert in_quarantine(pipeline.ledger, Filter()) == {}
    (admitted,) = pipeline.decisions(event_id="a")
    with pytest.raises(NotFound, match="not in quarantine"):
        pipeline.ledger.dispose(
            *_place(admitted)[:1], [_place(admitted)[1]], Action.DISCARDED, 7, "ann", "no"
        )
    assert pipeline.problems() == []


def test_the_circuit_opens_before_too_much_goes_to_quarantine(tmp_path: Path) -> None:
    sections = {"quarantine_window": 20, "max_block": 8}
    pipeline = Pipeline(tmp_path, pipeline=sections, transport={"raw_partitions": 1})
    good = [event(f"e{number}") for number in range(16)]
    bad = [b"{}"] * 24
    pipeline.ingest(*good, *bad, event("last"))
    with pytest.raises(CircuitOpen, match="stopped before offset") as caught:
        pipeline.run()
    assert "quarantine_limit" in caught.value.remedy
    decided = pipeline.decisions()
    assert sum(row["verdict"] == "QUARANTINED" for row in decided) <= 16
    must_balance(pipeline.ledger)
    with pytest.raises(CircuitOpen):
        pipeline.run()
    assert pipeline.decisions() == decided

    accepting = Pipeline(
        tmp_path, pipeline={**sections, "quarantine_limit": 1}, transport={"raw_partitions": 1}
    )
    accepting.run()
    verdicts = [row["verdict"] for row in accepting.decisions()]
    assert (verdicts.count("ADMITTED"), verdicts.count("QUARANTINED")) == (17, 24)
    assert accepting.problems() == []


def _place(row: dict[str, Any]) -> tuple[int, int]:
    block, _, ordinal = row["id"].partition("-")
    return int(block), int(ordinal)
