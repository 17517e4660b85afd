"""The steps of the demo, each a plain function; the command line tells the story around them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from admitone.analytics.answers import open_answers
from admitone.core.errors import AdmitoneError, NotFound
from admitone.faults import VARIABLE
from admitone.ledger.books import books
from admitone.ledger.decisions import decisions
from admitone.ledger.model import Filter
from admitone.ledger.open import open_ledger
from admitone.ops.check import check_evidence, check_log
from admitone.ops.lag import Lag, LagMeter
from admitone.settings import FILE_NAME, Settings, load_settings
from admitone.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from admitone.traffic.windows import window_span
from admitone.transport.contract import raw_topic
from admitone.transport.ingest import ingest_lines
from admitone.transport.open import open_transport

RUN = "demo"
_PATIENCE_S = 180.0
_DAY_MS = 86_400_000
_CONFIGURATION = f"""\
# Small blocks, so that there is a middle to be killed in.
[pipeline]
run_id = "{RUN}"
max_block = 1500
"""


@dataclass(frozen=True, slots=True)
class Killed:
    """What was left behind when the pipeline was killed."""

    decided: int
    in_flight: int
    processes: int


def prepare(home: Path) -> Settings:
    """Write the demo's configuration into an empty home folder."""
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise AdmitoneError(f"{home} is not empty.", "choose an empty folder, or leave --home out")
    (home / FILE_NAME).write_text(_CONFIGURATION, encoding="utf-8")
    return load_settings(home)


def make_traffic(
    settings: Settings, events: int, seed: int, now: int, report: Callable[[int], None]
) -> Truth:
    """Generate deliveries, append them to the raw log, and return the truth about them."""
    options = GeneratorOptions(
        events,
        seed=seed,
        run=RUN,
        contradictions=0.004,
        malformed=0.01,
        late=0.01,
        end_ms=now - 60_000,
    )
    recorder = TruthRecorder(options)
    transport = open_transport(settings)
    topic = raw_topic(settings, transport)
    lines = (delivery.line for delivery in recorder.watch(generate(options)))
    for total in ingest_lines(transport, topic, lines, RUN):
        report(total.deliveries)
    return recorder.truth()


def run_and_kill(settings: Settings, report: Callable[[Lag], None]) -> Killed:
    """Run the pipeline until one of its workers has published a block and not settled it; kill all of it."""
    marker = settings.home.resolve() / "killed-here"
    child = _start_pipeline(settings, f"boundary.published@3:stop:{marker}")
    meter = LagMeter(settings)
    deadline = time.monotonic() + _PATIENCE_S
    while not marker.exists():
        if child.poll() is not None or time.monotonic() > deadline:
            raise AdmitoneError(
                "The pipeline ended before it could be killed.",
                f"see {_log(settings)} for its messages",
            )
        report(meter.measure())
        time.sleep(0.1)
    killed = _kill_tree(child)
    lag = meter.measure()
    report(lag)
    return Killed(lag.decided, lag.in_flight, killed)


def delete_checkpoints(settings: Settings) -> int:
    """Delete Spark's checkpoints; return how many files are gone."""
    folder = settings.resolve(settings.spark.checkpoints)
    files = sum(1 for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return files


def resume(settings: Settings, report: Callable[[Lag], None]) -> Lag:
    """Run the pipeline again until everything is decided and counted."""
    child = _start_pipeline(settings, None)
    meter = LagMeter(settings)
    while child.poll() is None:
        report(meter.measure())
        time.sleep(0.1)
    if child.returncode != 0:
        raise AdmitoneError("The pipeline failed.", f"see {_log(settings)} for its messages")
    lag = meter.measure()
    report(lag)
    return lag


def check(settings: Settings, truth: Truth) -> tuple[dict[str, int], list[str]]:
    """Compare everything with the generator's truth; return what was compared, and what differs."""
    ledger, transport = open_ledger(settings), open_transport(settings)
    rows = list(decisions(ledger, Filter()))
    problems = [
        *truth.check_decisions(rows),
        *truth.check_books(books(ledger)),
        *check_log(ledger, transport, settings),
        *check_evidence(ledger, settings),
    ]
    answers = open_answers(settings)
    compared = bounds = 0
    for name in sorted(truth.lists):
        dimension, _, where = name.partition("|")
        for size in ("minute", "hour", "day", "week", "month", "global"):
            for window in kept_windows(truth, name, size):
                try:
                    answer = answers.top(dimension, window, where or None)
                except NotFound as missing:
                    problems.append(f"{window} {name}: {missing.problem}")
                    continue
                compared += 1
                bounds += len(answer["items"])
                problems += [f"{window} {name}: {problem}" for problem in truth.check_top(answer)]
    answers.close()
    return {"decisions": len(rows), "answers": compared, "bounds": bounds}, problems


def kept_windows(truth: Truth, name: str, size: str) -> list[str]:
    """Return a list's windows without the minutes that late events fell into: minutes are not kept that long."""
    windows = truth.windows(name, size)
    if size != "minute":
        return windows
    newest = max(max(minutes, default=0) for minutes in truth.counts.values())
    return [window for window in windows if window_span(window)[0] > newest - _DAY_MS]


def _start_pipeline(settings: Settings, fault: str | None) -> subprocess.Popen[bytes]:
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if fault is not None:
        environment[VARIABLE] = fault
    with _log(settings).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "admitone", "--home", str(settings.home), "run", "--until-idle"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )


def _log(settings: Settings) -> Path:
    return settings.home.resolve() / "pipeline.log"


def _kill_tree(child: subprocess.Popen[bytes]) -> int:
    """Kill the driver, its JVM and its workers at once, as a lost machine would."""
    import psutil

    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    for process in family:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=30)
    child.wait()
    return len(family)
