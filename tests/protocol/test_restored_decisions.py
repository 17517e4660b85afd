"""What operators gave up after the ledger was copied stays given up; nothing is published late without their word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from admitone.boundary.doors import DoorSlot
from admitone.boundary.reconciliation import retract
from admitone.core.decisions import Action, BlockState
from admitone.core.errors import RunIsRed
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.verify import verify_run
from admitone.ledger.decision_rows import in_quarantine
from admitone.ledger.model import Filter
from admitone.ops.reconcile import reconcile
from tests.servers.copies import copy_of
from tests.support.closing import close_green
from tests.support.logs import on_the_log
from tests.support.pipeline import Pipeline, event
from tests.support.read_back import SECTIONS, deliver, one_of_unknown_fate

pytestmark = pytest.mark.usefixtures("either_ledger")

GIVEN_UP = [("QUARANTINED", "IDENTITY_RETRACTED")]
UNKNOWN = [("AMBIGUOUS", "PUBLISH_UNKNOWN")]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    pipeline = Pipeline(tmp_path, **SECTIONS)
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    return pipeline


@pytest.fixture
def again(tmp_path: Path) -> Callable[[], Pipeline]:
    return lambda: Pipeline(tmp_path, **SECTIONS)


def give_up(pipeline: Pipeline) -> None:
    (block,) = pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS])
    retract(pipeline.boundary, block.block_id, "ann", "not wanted")


def lose_evidence(pipeline: Pipeline, *kinds: str) -> None:
    """Remove evidence that was written after the ledger was copied."""
    store = open_evidence_store(pipeline.settings)
    listed = {file.path for file in pipeline.ledger.evidence_files()}
    for path in store.list("runs"):
        if path not in listed and any(f"/{kind}" in path for kind in kinds):
            store.delete(path)


@pytest.mark.parametrize("copied", ["before", "while it was unknown"])
@pytest.mark.parametrize("followed", [True, False])
def test_a_block_that_was_given_up_since_stays_given_up(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path, copied: str, followed: bool
) -> None:
    early = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "early")
    one_of_unknown_fate(pipeline, [(0, event("b")), (0, event("c"))])
    later = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "later")
    give_up(pipeline)
    deliver(pipeline, [(0 if followed else 1, event("d"))])
    pipeline.run()
    pipeline.ledger.close()
    (early if copied == "before" else later)()

    behind = again()
    assert reconcile(behind.settings, restored=True).remaining == 0
    deliver(behind, [(2, event("b"))])
    behind.run()
    assert reconcile(behind.settings).remaining == 0
    behind.run()
    assert on_the_log(behind) == ["a", "d"]
    assert behind.verdicts("b") == GIVEN_UP * 2
    (row,) = behind.decisions(event_id="c")
    assert (row["resolution"]["author"], row["resolution"]["reason"]) == ("ann", "not wanted")
    assert behind.problems() == []


@pytest.mark.parametrize(
    ("copied", "lost"),
    [
        ("before", ["receipts", "resolutions", "quarantine"]),
        ("before", ["resolutions"]),
        ("while it was unknown", ["receipts", "resolutions", "quarantine"]),
    ],
)
def test_without_evidence_nothing_is_published_late_before_an_operator_says_so(
    pipeline: Pipeline,
    again: Callable[[], Pipeline],
    tmp_path: Path,
    copied: str,
    lost: list[str],
) -> None:
    early = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "early")
    one_of_unknown_fate(pipeline, [(0, event("b"))])
    later = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "later")
    give_up(pipeline)
    deliver(pipeline, [(0 if len(lost) > 1 else 1, event("d"))])
    pipeline.run()
    pipeline.ledger.close()
    (early if copied == "before" else later)()

    behind = again()
    lose_evidence(behind, *lost)
    done = reconcile(behind.settings, restored=True)
    assert done.remaining == 1
    assert "quarantine discard --block" in (done.refusal().remedy or "")
    behind.run()
    DoorSlot(behind.boundary, 0)
    assert reconcile(behind.settings, restored=True).remaining == 1
    behind.run()
    assert on_the_log(behind) == ["a", "d"]
    assert behind.verdicts("b") == UNKNOWN

    assert reconcile(behind.settings).remaining == 0
    behind.run()
    assert on_the_log(behind) == ["a", "b", "d"]
    assert behind.problems() == []


def test_what_awaits_an_operator_can_be_given_up(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    one_of_unknown_fate(pipeline, [(0, event("b"))])
    give_up(pipeline)
    deliver(pipeline, [(0, event("d"))])
    pipeline.run()
    pipeline.ledger.close()
    restore()

    behind = again()
    lose_evidence(behind, "receipts", "resolutions")
    assert reconcile(behind.settings, restored=True).remaining == 1
    give_up(behind)
    behind.run()
    assert reconcile(behind.settings).remaining == 0
    assert on_the_log(behind) == ["a", "d"]
    assert behind.verdicts("b") == GIVEN_UP


def test_a_run_that_was_closed_since_takes_nothing_more(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, [(1, event("b"))])
    pipeline.run()
    close_green("default", pipeline.ledger, pipeline.transport, pipeline.settings)
    elsewhere = {"runId": "other"}
    deliver(pipeline, [(1, event("late")), (2, event("late")), (1, event("x", **elsewhere))])
    pipeline.run()
    assert pipeline.verdicts("late") == [("QUARANTINED", "RUN_CLOSED")] * 2
    pipeline.ledger.close()
    restore()

    behind = again()
    assert reconcile(behind.settings, restored=True).remaining == 0
    behind.run()
    assert reconcile(behind.settings).remaining == 0
    deliver(behind, [(0, event("later still"))])
    behind.run()
    assert on_the_log(behind) == ["a", "b", "x"]
    assert behind.verdicts("b") == [("ADMITTED", None)]
    assert behind.verdicts("late") == [("QUARANTINED", "RUN_CLOSED")] * 2
    assert behind.verdicts("later still") == [("QUARANTINED", "RUN_CLOSED")]

    for block_id, ordinals in in_quarantine(behind.ledger, Filter()).items():
        behind.ledger.dispose(block_id, ordinals, Action.DISCARDED, 7, "ann", "too late")
    close_green("default", behind.ledger, behind.transport, behind.settings)
    assert verify_run("default", behind.ledger, behind.transport, behind.settings).verified
    assert behind.problems() == []


@pytest.mark.parametrize("copied", ["before", "after"])
def test_a_closing_that_did_not_finish_closes_nothing(
    pipeline: Pipeline,
    again: Callable[[], Pipeline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    copied: str,
) -> None:
    early = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")

    def crash(*_: object) -> None:
        raise ConnectionError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ledger, "close_run", crash)
        with pytest.raises((ConnectionError, RunIsRed)):
            close_green("default", pipeline.ledger, pipeline.transport, pipeline.settings)
    deliver(pipeline, [(1, event("b"))])
    pipeline.run()
    # Claimed behind it, so that the log is read back from there.
    deliver(pipeline, [(2, event("x", runId="other"))])
    pipeline.run()
    later = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "later")
    deliver(pipeline, [(0, event("c", runId="other"))])
    pipeline.run()
    pipeline.ledger.close()
    (early if copied == "before" else later)()

    behind = again()
    assert reconcile(behind.settings, restored=True).remaining == 0
    deliver(behind, [(0, event("d"))])
    behind.run()
    assert on_the_log(behind) == ["a", "b", "c", "d", "x"]
    assert behind.problems() == []
