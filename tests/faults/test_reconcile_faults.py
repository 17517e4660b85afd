"""Killed and suspended in the middle of a late publish: it happens once, whoever finishes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from admitone.boundary.reconciliation import reconcile
from admitone.core.errors import AdmitoneError, Fenced
from admitone.infra.crash_points import (
    LATE_REFUSAL_POINTS,
    RECONCILE_POINTS,
    RESOLUTION_POINTS,
    arm,
)
from tests.faults.harness import Fault, processes, stopped
from tests.support.flaky import flaky
from tests.support.logs import on_the_log
from tests.support.pipeline import event

_STRIKES = [
    *((point, "kill") for point in RECONCILE_POINTS + RESOLUTION_POINTS),
    *((point, "stop") for point in RECONCILE_POINTS),
]


def attempt(home: Path, fault: str | None, *plan: str) -> None:
    arm(fault)
    try:
        list(reconcile(flaky(home, *plan)[0].boundary))
    except AdmitoneError as error:
        os._exit(40 + error.exit_code)
    os._exit(0)


@pytest.mark.parametrize(("point", "action"), _STRIKES)
def test_a_late_publish_happens_once(point: str, action: str, tmp_path: Path) -> None:
    pipeline, transport = flaky(tmp_path, "down-before")
    pipeline.ingest(event("a"), event("b"), event("a"))
    with pytest.raises(AdmitoneError):
        pipeline.run()
    transport.heal()
    marker = tmp_path / "struck"
    process = processes.Process(
        target=attempt, args=(tmp_path, Fault(point, 1, action).spec(marker))
    )
    process.start()
    if action == "stop":
        assert stopped(process, marker)
    else:
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
    pipeline.run()
    assert on_the_log(pipeline) == ["a", "b"]
    if action == "stop":
        assert process.pid is not None
        os.kill(process.pid, signal.SIGCONT)
        process.join(60)
        # Fenced, or overtaken: whoever was suspended finds that it is no longer its turn.
        assert process.exitcode in (0, 40 + Fenced.exit_code)
        pipeline.run()
    assert on_the_log(pipeline) == ["a", "b"]
    assert pipeline.verdicts("a") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert pipeline.problems() == []


@pytest.mark.parametrize(
    "point", [*LATE_REFUSAL_POINTS, "reconcile.planned", "reconcile.published"]
)
def test_what_the_broker_refused_of_a_late_publish_stays_refused_after_a_crash(
    point: str, tmp_path: Path
) -> None:
    pipeline, transport = flaky(tmp_path, "down-before")
    pipeline.ingest(event("a"), event("b"), event("c"), event("a"))
    with pytest.raises(AdmitoneError):
        pipeline.run()
    transport.heal()
    # Planned once before the refusal, and again after it.
    fault = Fault(point, 2 if point == "reconcile.planned" else 1, "kill").spec(tmp_path / "struck")
    process = processes.Process(target=attempt, args=(tmp_path, fault, "refuse"))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    pipeline.run()

    assert on_the_log(pipeline) == ["b", "c"]
    assert pipeline.verdicts("a") == [("QUARANTINED", "PUBLISH_FAILED")] * 2
    assert pipeline.problems() == []
