"""Runs the boundary in processes of its own, strikes at crash points, and compares with the oracle.

A case is a list of attempts at one home folder. Each attempt is a process that may be armed with a fault: `kill` ends
it at the crash point, `stop` suspends it there and leaves it as a zombie. Afterwards a last, unarmed attempt
finishes the work; then the zombies wake up, do what they can, and everything is compared with the truth.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from admitone.boundary import open_boundary
from admitone.boundary.admission import Boundary
from admitone.boundary.batches import Batches, Begun
from admitone.core.errors import Fenced, IntegrityError, MarkMoved, ServiceUnreachable
from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate
from admitone.evidence import open_evidence_writer
from admitone.infra.clock import wall_clock
from admitone.infra.crash_points import BOUNDARY_POINTS, LEDGER_POINTS, arm
from admitone.ledger.books import books
from admitone.ledger.decision_rows import decisions
from admitone.ledger.model import Filter
from admitone.settings import Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.ingest import ingest_lines
from admitone.transport.port import Topic
from admitone.transport.topic_contract import raw_topic
from tests.support.store_check import check_evidence, check_log

FINISHED, FENCED, OVERTAKEN, UNREACHABLE, CONTRADICTED = 0, 42, 43, 44, 45
_PATIENCE_S = 60.0

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.faults.harness"])


@dataclass(frozen=True)
class Fault:
    """Where and how an attempt is struck."""

    point: str
    passage: int
    action: str

    def spec(self, marker: Path) -> str:
        return f"{self.point}@{self.passage}:{self.action}:{marker}"


@dataclass(frozen=True)
class Case:
    """Faults for one attempt after another, and the size of blocks each of them uses."""

    seed: int
    faults: tuple[Fault, ...]
    block_sizes: tuple[int, ...]


def settings_for(home: Path, max_block: int = 50) -> Settings:
    return load_settings(
        home,
        transport={"raw_partitions": 2},
        pipeline={"max_block": max_block, "claim_lease": 60_000},
    )


def prepare(home: Path, seed: int, events: int = 240) -> Truth:
    """Ingest generated traffic into a new home folder and return what is true about it."""
    home.mkdir(parents=True, exist_ok=True)
    settings = settings_for(home)
    transport = open_transport(settings)
    topic = raw_topic(settings, transport)
    options = GeneratorOptions(
        events, seed=seed, duplicates=0.25, contradictions=0.03, malformed=0.06, late=0.03
    )
    recorder = TruthRecorder(options)
    for _ in ingest_lines(transport, topic, (d.line for d in recorder.watch(generate(options)))):
        pass
    transport.close()
    return recorder.truth()


def decide_everything(boundary: Boundary, topic: Topic) -> None:
    """Begin a new generation and read every partition of a topic from its beginning, in one batch."""
    database = boundary.ledger.database()
    batches = Batches(boundary, topic, boundary.start(topic), database)

    def tasks(begun: Begun) -> None:
        for partition, end in enumerate(boundary.transport.ends(topic)):
            owned = boundary.own(topic, partition, begun.generation, database=begun.database)
            for batch in boundary.transport.read(topic, partition, 0, end):
                for _ in owned.admit(pa.Table.from_batches([batch])):
                    pass

    batches.decide(tasks, dict)


def attempt(home: Path, max_block: int, fault: str | None) -> None:
    """Do what a pipeline does, from taking a generation to writing the evidence."""
    arm(fault)
    settings = settings_for(home, max_block)
    boundary = open_boundary(settings)
    try:
        topic = raw_topic(settings, boundary.transport)
    except ServiceUnreachable:
        os._exit(UNREACHABLE)
    finish(settings, boundary, topic)


def finish(settings: Settings, boundary: Boundary, topic: Topic) -> NoReturn:
    """Decide everything and write its evidence; the exit status says how it went."""
    try:
        decide_everything(boundary, topic)
        open_evidence_writer(settings, boundary.ledger, boundary.options.pipeline).write_pending(
            wall_clock()
        )
    except Fenced:
        os._exit(FENCED)
    except MarkMoved:
        os._exit(OVERTAKEN)
    except ServiceUnreachable:
        os._exit(UNREACHABLE)
    except IntegrityError:
        os._exit(CONTRADICTED)
    os._exit(FINISHED)


def start(home: Path, max_block: int, fault: str | None) -> BaseProcess:
    process = processes.Process(target=attempt, args=(home, max_block, fault))
    process.start()
    return process


def use_ledger(home: Path, url: str) -> None:
    """Let a home folder have its ledger somewhere else."""
    (home / "admitone.toml").write_text(f'[ledger]\nurl = "{url}"\n')


def run_case(
    case: Case, template: Path, home: Path, truth: Truth, ledger_url: str | None = None
) -> tuple[int, list[str]]:
    """Run a case on a copy of a prepared home; return how many faults struck and what is wrong."""
    shutil.copytree(template, home)
    if ledger_url is not None:
        use_ledger(home, ledger_url)
    return strike(case, home, lambda: verify(home, truth))


def strike(
    case: Case,
    home: Path,
    check: Callable[[], list[str]],
    begin: Callable[[Path, int, str | None], BaseProcess] = start,
) -> tuple[int, list[str]]:
    """Strike one attempt after the other, finish the work, wake the zombies up; `check` says what is wrong then."""
    zombies: list[BaseProcess] = []
    problems: list[str] = []
    struck = 0
    for number, (fault, size) in enumerate(zip(case.faults, case.block_sizes, strict=False)):
        marker = home / f"struck-{number}"
        process = begin(home, size, fault.spec(marker))
        if fault.action == "stop":
            if stopped(process, marker):
                zombies.append(process)
        else:
            process.join(_PATIENCE_S)
            expected = -signal.SIGKILL if marker.exists() else FINISHED
            if process.exitcode != expected:
                problems.append(
                    f"attempt {number} ended with {process.exitcode}, expected {expected}"
                )
        struck += marker.exists()
    last = begin(home, case.block_sizes[-1], None)
    last.join(_PATIENCE_S)
    if last.exitcode != FINISHED:
        problems.append(f"the last attempt ended with {last.exitcode}")
    problems += check()
    for zombie in zombies:
        assert zombie.pid is not None
        os.kill(zombie.pid, signal.SIGCONT)
        zombie.join(_PATIENCE_S)
        if zombie.exitcode not in (FINISHED, FENCED, OVERTAKEN):
            problems.append(f"a zombie ended with {zombie.exitcode}")
    if zombies:
        problems += [f"after the zombies: {problem}" for problem in check()]
    if not problems:
        shutil.rmtree(home)
    return struck, problems


def stopped(process: BaseProcess, marker: Path) -> bool:
    """Wait until the process is suspended, or has ended without passing the crash point."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if marker.exists() and marker.read_bytes():
            state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "T":
                return True
        if process.exitcode is not None:
            return False
        time.sleep(0.002)
    raise TimeoutError(f"process {process.pid} neither stopped nor ended")


def verify(home: Path, truth: Truth) -> list[str]:
    """Compare decisions, books, log and evidence with the truth."""
    settings = settings_for(home)
    boundary = open_boundary(settings)
    ledger, transport = boundary.ledger, boundary.transport
    rows = list(decisions(ledger, Filter()))
    problems = [
        *truth.check_decisions(rows),
        *truth.check_books(books(ledger)),
        *check_log(ledger, transport, settings),
        *check_evidence(ledger, settings),
    ]
    ledger.close()
    transport.close()
    return problems


def random_case(rng: random.Random, more_points: tuple[str, ...] = ()) -> Case:
    """Return one to three faults at random points; recovery's own points get something to recover from."""
    faults = []
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        point = rng.choice(BOUNDARY_POINTS + LEDGER_POINTS + more_points)
        action = "kill" if point in LEDGER_POINTS else rng.choice(("kill", "stop"))
        faults.append(Fault(point, rng.randint(1, 5), action))
        if point.startswith("recovery."):
            faults[-1] = Fault(point, 1, faults[-1].action)
            faults.insert(
                -1, Fault("boundary.published", rng.randint(1, 3), rng.choice(("kill", "stop")))
            )
    sizes = tuple(rng.choice((9, 20, 50, 130)) for _ in range(len(faults) + 1))
    return Case(rng.randrange(1 << 30), tuple(faults), sizes)
