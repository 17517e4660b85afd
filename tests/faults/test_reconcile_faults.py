"""Killed and suspended in the middle of a late publish: it happens once, whoever finishes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from admitone.boundary.reconciliation import reconcile
from admitone.core.errors import AdmitoneError
from admitone.infra.crash_points import RECONCILE_POINTS, RESOLUTION_POINTS, arm
from tests.faults.harness import Fault, processes, stopped
from tests.protocol.test_ambiguity import flaky, on_the_log
from tests.support.pipeline import Pipeline, event

_STRIKES = [
    *((point, "kill") for point in RECONCILE_POINTS + RESOLUTION_POINTS),
    *((point, "stop") for point in RECONCILE_POINTS),
]


def attempt(home: Path, fault: str | None) -> None:
    arm(fault)
    try:
        list(reconcile(Pipeline(home, transport={"raw_partitions": 1}).boundary))
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
        assert process.exitcode in (0, 41)
        pipeline.run()
    assert on_the_log(pipeline) == ["a", "b"]
    assert pipeline.verdicts("a") == [("ADMITTED", None), ("DUPLICATE", None)]
    assert pipeline.problems() == []
