"""Strikes the whole pipeline, Spark included, at a crash point of either query, and compares with the oracle.

`kill` ends the process that gets there: a worker, whose task Spark tries again, or the driver. `stop` suspends it; then
everything around it is killed, a successor finishes the work, and the sleeper wakes up as a zombie.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from admitone.infra.crash_points import (
    ANALYTICS_POINTS,
    BOUNDARY_POINTS,
    LEDGER_POINTS,
    STORE_POINTS,
    VARIABLE,
)
from admitone.settings import FILE_NAME, load_settings
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.topic_contract import raw_topic
from tests.support.store_check import check

BETWEEN = ("nothing", "checkpoint deleted", "old checkpoint restored", "batch size changed")
_PATIENCE_S = 180.0


@dataclass(frozen=True)
class SparkCase:
    """One fault, and what happens to the folder before the pipeline is started again."""

    point: str
    passage: int
    action: str
    between: str
    seed: int


def random_spark_case(rng: random.Random, number: int) -> SparkCase:
    """Walk through all points and all things that can happen in between, with random details."""
    kill_only = LEDGER_POINTS + STORE_POINTS
    points = BOUNDARY_POINTS + ANALYTICS_POINTS * 2 + kill_only
    point = points[number % len(points)]
    return SparkCase(
        point,
        rng.choice((1, 1, 2)),
        "kill" if point in kill_only else rng.choice(("kill", "stop")),
        BETWEEN[(number // len(points) + number) % len(BETWEEN)],
        rng.randrange(1 << 30),
    )


def run_spark_case(case: SparkCase, home: Path, events: int = 3_000) -> tuple[int, list[str]]:
    """Run a case; return how many faults struck and what is wrong afterwards."""
    truth = _prepare(home, case.seed, events)
    marker = home / "struck"
    struck, zombie, problems = 0, None, []
    if case.point.startswith("recovery."):
        # Something must be in flight for a recovery to have a point to be struck at.
        first = home / "struck-first"
        _attempt(home, f"boundary.published@1:stop:{first}", first)
        struck += first.exists()
        _kill(first)
    status = _attempt(home, f"{case.point}@{case.passage}:{case.action}:{marker}", marker)
    struck += marker.exists()
    if case.action == "stop" and marker.exists():
        zombie = psutil.Process(int(marker.read_text()))
    elif not marker.exists() and status != 0:
        problems.append(f"the pipeline ended with {status} before it was struck")
    _between(case.between, home)
    status = _attempt(home, None, None)
    if status != 0:
        problems.append(f"the successor ended with {status}: {_tail(home)}")
    problems += _verify(home, truth)
    if zombie is not None:
        zombie.send_signal(signal.SIGCONT)
        psutil.wait_procs([zombie], timeout=_PATIENCE_S)
        if zombie.is_running():
            problems.append("the zombie never ended")
            zombie.kill()
        problems += [f"after the zombie: {problem}" for problem in _verify(home, truth)]
    if not problems:
        shutil.rmtree(home, ignore_errors=True)
    return struck, problems


def _prepare(home: Path, seed: int, events: int) -> Truth:
    home.mkdir(parents=True)
    _configure(home, max_block=200, max_per_trigger=1_500)
    settings = load_settings(home)
    transport = open_transport(settings)
    topic = raw_topic(settings, transport)
    options = GeneratorOptions(events, seed=seed)
    recorder = TruthRecorder(options)
    for _ in ingest_lines(transport, topic, (d.line for d in recorder.watch(generate(options)))):
        pass
    return recorder.truth()


def _configure(home: Path, max_block: int, max_per_trigger: int) -> None:
    (home / FILE_NAME).write_text(
        f"[pipeline]\nmax_block = {max_block}\n"
        f"[transport]\nraw_partitions = 2\nmax_per_trigger = {max_per_trigger}\n"
        f"[topk]\nmax_per_trigger = {max_per_trigger}\n"
        '[spark]\ndriver_memory = "1g"\n'
    )


def _attempt(home: Path, fault: str | None, marker: Path | None) -> int | None:
    """Run the pipeline until it ends, or until a process of it stopped itself and the rest is killed."""
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if fault is not None:
        environment[VARIABLE] = fault
    with (home / "pipeline.log").open("ab") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "admitone", "--home", str(home), "run", "--until-idle"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
    deadline = time.monotonic() + _PATIENCE_S
    while child.poll() is None:
        if time.monotonic() > deadline:
            _kill_family(child, spare=None)
            return None
        if fault is not None and ":stop:" in fault and marker is not None and marker.exists():
            _wait_until_stopped(marker)
            if not (home / "checkpoints-copy").exists():
                shutil.copytree(home / "data" / "checkpoints", home / "checkpoints-copy")
            _kill_family(child, spare=int(marker.read_text()))
            return None
        time.sleep(0.05)
    return child.returncode


def _wait_until_stopped(marker: Path) -> None:
    while not marker.read_text():
        time.sleep(0.01)
    sleeper = psutil.Process(int(marker.read_text()))
    while sleeper.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def _kill_family(child: subprocess.Popen[bytes], spare: int | None) -> None:
    family = [psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True)]
    for process in family:
        if process.pid != spare:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
    if child.pid != spare:
        child.wait(timeout=30)


def _kill(marker: Path) -> None:
    try:
        psutil.Process(int(marker.read_text())).kill()
    except (FileNotFoundError, psutil.NoSuchProcess):
        return


def _between(what: str, home: Path) -> None:
    checkpoints = home / "data" / "checkpoints"
    if what == "checkpoint deleted":
        shutil.rmtree(checkpoints, ignore_errors=True)
    elif what == "old checkpoint restored" and (home / "checkpoints-copy").exists():
        shutil.rmtree(checkpoints, ignore_errors=True)
        shutil.copytree(home / "checkpoints-copy", checkpoints)
    elif what == "batch size changed":
        _configure(home, max_block=317, max_per_trigger=777)


def _verify(home: Path, truth: Truth) -> list[str]:
    return check(load_settings(home), truth).problems


def _tail(home: Path) -> str:
    return (home / "pipeline.log").read_text(errors="replace")[-600:]
