"""Killed anywhere while a restored ledger is read back, and begun again: decisions, log and books are the same."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.reconciliation import reconcile, retract
from admitone.boundary.restore.read_back import read_back
from admitone.evidence import open_evidence_store, open_evidence_writer
from admitone.infra.crash_points import LEDGER_POINTS, RESOLUTION_POINTS, RESTORE_POINTS, arm
from admitone.ledger.books import books
from tests.faults.harness import Fault, processes
from tests.support.logs import on_the_log
from tests.support.pipeline import Pipeline, event
from tests.support.read_back import (
    SECTIONS,
    by_position,
    copied_in_flight,
    deliver,
    one_of_unknown_fate,
    without_moments,
)
from tests.support.released import FUTURE, release_all

_POINTS = (
    "boundary.owned", "boundary.fenced", *RESTORE_POINTS, *LEDGER_POINTS, *RESOLUTION_POINTS,
)  # fmt: skip
_ONCE = (
    "restore.begun", "restore.adopted", "restore.aborted", "restore.found", "restore.planned", "restore.ended",
)  # fmt: skip
_STRIKES = [(p, passage) for p in _POINTS for passage in (1, 2) if passage == 1 or p not in _ONCE]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a restored ledger that knows no slot, no release, no late publish and nothing that was given up."""
    home = tmp_path_factory.mktemp("restored")
    pipeline = Pipeline(home, **SECTIONS)
    with pytest.MonkeyPatch.context() as patch:
        restore = copied_in_flight(pipeline, home, patch)
    pipeline.run()
    deliver(pipeline, [(1, event("future", **FUTURE)), (2, event("d")), (2, b"no json")])
    pipeline.run()
    slot = DoorSlot(pipeline.boundary, 0)
    list(slot.admit([Delivery(event("e")), Delivery(event("f", **FUTURE)), Delivery(event("a"))]))
    one_of_unknown_fate(pipeline, [(0, event("late")), (0, event("later"))])
    list(reconcile(pipeline.boundary))
    one_of_unknown_fate(pipeline, [(1, event("given up"))])
    (block,) = [block for block in pipeline.ledger.blocks() if block.state == "AMBIGUOUS"]
    retract(pipeline.boundary, block.block_id, "ann", "not wanted")
    mended = {**SECTIONS, "pipeline": {**SECTIONS["pipeline"], "future_tolerance": "50000d"}}
    release_all(Pipeline(home, **mended))
    deliver(pipeline, [(1, event("given up")), (2, event("late")), (0, event("g"))])
    pipeline.run()
    open_evidence_writer(pipeline.settings, pipeline.ledger).write_pending(1)
    assert sorted(on_the_log(pipeline)) == sorted(
        ["a", "b", "c", "d", "e", "f", "future", "g", "late", "later"]
    )
    pipeline.ledger.close()
    restore()
    return home


@pytest.fixture(scope="module")
def uninterrupted(template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("whole") / "home"
    shutil.copytree(template, home)
    return finished(home)


def finished(home: Path) -> dict[str, Any]:
    """Read a ledger back and go on; return what is decided, what is on the log, and the books."""
    pipeline = Pipeline(home, **SECTIONS)
    read_back(pipeline.boundary, pipeline.topic, open_evidence_store(pipeline.settings))
    pipeline.run()
    assert pipeline.problems() == []
    return {
        "decisions": without_moments(by_position(pipeline)),
        "log": on_the_log(pipeline),
        "books": books(pipeline.ledger)["runs"],
    }


def attempt(home: Path, fault: str) -> None:
    arm(fault)
    pipeline = Pipeline(home, **SECTIONS)
    read_back(pipeline.boundary, pipeline.topic, open_evidence_store(pipeline.settings))
    os._exit(0)


def test_what_was_decided_comes_back(uninterrupted: dict[str, Any]) -> None:
    said = {verdict[0] for verdict in uninterrupted["decisions"].values()}
    assert said == {"ADMITTED", "DUPLICATE", "QUARANTINED"}
    assert len(set(uninterrupted["log"])) == len(uninterrupted["log"]) == 10


@pytest.mark.parametrize(("point", "passage"), _STRIKES)
def test_reading_back_can_be_killed_anywhere(
    point: str, passage: int, template: Path, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(template, home)
    strike(home, Fault(point, passage, "kill"))

    assert finished(home) == uninterrupted


def test_reading_back_can_be_killed_again_and_again(
    template: Path, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(template, home)
    for point in RESTORE_POINTS:
        strike(home, Fault(point, 1, "kill"))

    assert finished(home) == uninterrupted


def strike(home: Path, fault: Fault) -> None:
    marker = home / f"struck-{fault.point}"
    process = processes.Process(target=attempt, args=(home, fault.spec(marker)))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
