"""Do the tests pass every time? Repeats them: quiet, beside other work, and across midnight; `make endurance`.

    python -m tests.endurance                       everything: 5 complete runs, 20 of the services, 3 times of the day
    python -m tests.endurance --suite 2 --busy 1    2 complete runs, the second beside other work
    python -m tests.endurance --services 20         only the tests of brokers, browsers and clocks

Other work is one process for each core that never waits. A time of the day is made with libfaketime, which moves the
clocks of the tests and of all they start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree as Xml

from rich.console import Console
from rich.table import Table

from tests.support.kept_results import KEPT, Result, today

NAME = "endurance"
STRIKES = "the tests themselves, again and again: quiet, beside other work, near midnight"
SUITE = ("--numprocesses=4", "--dist=loadfile", "--no-loadscope-reorder")
CLOCKS = (
    "tests/browser", "tests/http", "tests/unit/test_windows.py", "tests/unit/test_answers.py",
    "tests/unit/test_cli.py", "tests/unit/test_traffic_truth.py", "tests/protocol/test_heavy_hitters.py",
    "tests/protocol/test_items_configured.py", "tests/protocol/test_recompute.py",
    "tests/ports/test_outlets.py", "tests/ports/test_redis_results.py", "tests/ports/test_history.py",
)  # fmt: skip
"""The tests that deal with time: windows, what is newest, what is shown as so many seconds old."""
BROKERS = (
    "tests/docs/test_guides.py",
    "tests/ports/test_kafka_broker.py", "tests/ports/test_kafka_log.py", "tests/ports/test_kafka_security.py",
    "tests/protocol/test_kafka_contract.py", "tests/protocol/test_kafka_lag.py",
    "tests/protocol/test_kafka_source_trouble.py", "tests/faults/test_kafka_failures.py",
    "tests/faults/test_kafka_faults.py", "tests/spark/test_kafka_trouble.py",
)  # fmt: skip
BEFORE_MIDNIGHT_S = {"five seconds": 5, "a minute": 60, "an hour": 3_600}
_DAY_S = 86_400


class Run(NamedTuple):
    """What came of one run."""

    kind: str
    what: str
    passed: int
    failed: list[str]
    minutes: float


def run(
    kind: str, what: str, arguments: Sequence[str], environment: dict[str, str] | None = None
) -> Run:
    """Run pytest once and read its report."""
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        done = subprocess.run(
            command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
        )  # fmt: skip
        took = (time.monotonic() - began) / 60
        if not report.exists():
            return Run(kind, what, 0, [done.stderr[-2_000:] or done.stdout[-2_000:]], took)
        cases = list(Xml.parse(report).iter("testcase"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}\n{problem.text}"
        for case in cases
        for problem in (*case.findall("failure"), *case.findall("error"))
    ]
    return Run(kind, what, len(cases) - len(failed), failed, took)


@contextmanager
def other_work() -> Iterator[None]:
    """Keep every core busy for as long as it is needed."""
    endless = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(endless) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def at_that_time(seconds_before_midnight: int) -> dict[str, str]:
    """Return an environment in which it will be midnight UTC so soon."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")
    ahead = (_DAY_S - seconds_before_midnight - int(time.time())) % _DAY_S
    return {"LD_PRELOAD": str(library), "FAKETIME": f"+{ahead}s", "NO_FAKE_STAT": "1", "TZ": "UTC"}


def runs(suite: int, busy: int, services: int, *, midnight: bool) -> Iterator[Run]:
    """Make the runs one after the other."""
    for number in range(suite):
        if number < suite - busy:
            yield run("complete runs", f"complete run {number + 1}", SUITE)
        else:
            with other_work():
                what = f"complete run {number + 1}, beside other work"
                yield run("complete runs beside other work", what, SUITE)
    for number in range(services):
        kind = "runs of brokers, browsers and clocks"
        name = f"brokers, browsers, clocks {number + 1}"
        if number % 2:
            with other_work():
                yield run(kind, f"{name}, beside other work", [*SUITE, *BROKERS, *CLOCKS])
        else:
            yield run(kind, name, [*SUITE, *BROKERS, *CLOCKS])
    if midnight:
        for name, seconds in BEFORE_MIDNIGHT_S.items():
            for tests in CLOCKS:
                what = f"{tests}, {name} to midnight"
                yield run("runs near midnight", what, [tests], at_that_time(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", type=int, default=0, help="complete runs")
    parser.add_argument("--busy", type=int, default=0, help="how many of them beside other work")
    parser.add_argument("--services", type=int, default=0, help="runs of brokers, browsers, clocks")
    parser.add_argument("--midnight", action="store_true", help="the tests of time, near midnight")
    parser.add_argument("--results", type=Path, default=KEPT, help="where the result is kept")
    wanted = parser.parse_args()
    if not (wanted.suite or wanted.services or wanted.midnight):
        wanted.suite, wanted.busy, wanted.services, wanted.midnight = 5, 2, 20, True
    console, shown, findings = Console(), Table("run", "passed", "failed", "minutes"), 0
    began, kinds = time.monotonic(), Counter[str]()
    for done in runs(wanted.suite, wanted.busy, wanted.services, midnight=wanted.midnight):
        line = (done.what, f"{done.passed:,}", str(len(done.failed)), f"{done.minutes:.1f}")
        shown.add_row(*line)
        console.print("  ".join(line))
        findings += len(done.failed)
        kinds[done.kind] += 1
        for failure in done.failed:
            console.print(failure, markup=False, highlight=False)
    console.print(shown)
    Result(
        campaign=NAME,
        count=kinds.total(),
        counted="runs",
        struck=dict(kinds),
        findings=findings,
        seed=None,
        minutes=round((time.monotonic() - began) / 60, 1),
        command=_command(wanted),
        date=today(),
    ).keep(wanted.results)
    sys.exit(bool(findings))


def _command(wanted: argparse.Namespace) -> str:
    counts = {name: getattr(wanted, name) for name in ("suite", "busy", "services")}
    options = [f"--{name} {count}" for name, count in counts.items() if count]
    options += ["--midnight"] if wanted.midnight else []
    return " ".join(("python -m tests.endurance", *options))


if __name__ == "__main__":
    main()
