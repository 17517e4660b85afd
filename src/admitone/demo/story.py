"""The demo: traffic, a pipeline that is killed and started again, and a comparison with the truth.

It does what a user can do: it runs commands as processes, reads the documents they print, and imports no more than
`admitone` offers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import admitone
from admitone.demo.check import check, check_evidence
from admitone.demo.traffic import GeneratorOptions, Truth, TruthRecorder, generate

if TYPE_CHECKING:
    from rich.console import Console

RUN = "demo"
_BLOCKS = 33
_PATIENCE_S = 300.0
_FAULT = "ADMITONE_FAULT"
_EXIT_RED = 5
_CONFIGURATION = """\
# Small blocks, so that there is a middle to be killed in.
[pipeline]
run_id = "{run}"
max_block = {max_block}
"""
_PLAN = """\
{events:,} deliveries of five event types, among them duplicates, contradictions, malformed and late ones:
  1  made, and appended to the raw log
  2  decided by the pipeline, which is killed when a block is published and not yet settled
  3  Spark's checkpoints deleted
  4  the pipeline started again, until all is decided and counted
  5  every decision, record, evidence file and bound compared with what the traffic deserved
It takes about {seconds} seconds on two idle cores. Everything is kept in {home}
"""
Report = Callable[[int], None]


class Killed(NamedTuple):
    """What was left behind when the pipeline was killed."""

    decided: int
    in_flight: int
    processes: int


def tell(home: Path, events: int, seed: int, out: Console, err: Console) -> bool:
    """Do it all in an empty home folder; return whether everything is as the traffic deserves."""
    began = time.monotonic()
    prepare(home, events)
    seconds = 50 + events // 2_500
    err.print(
        _PLAN.format(events=events, seconds=seconds, home=home),
        markup=False,
        end="",
        soft_wrap=True,
    )
    with _step(err, "1/5", "making traffic", events) as report:
        truth = make_traffic(home, events, seed, report)
    verdicts = sorted(truth.verdicts.items())
    err.print("    " + ", ".join(f"{count:,} {verdict}" for verdict, count in verdicts))
    with _step(err, "2/5", "running it, to be killed in the middle of a block", events) as report:
        killed = run_and_kill(home, report)
    err.print(
        f"    SIGKILL to {killed.processes} processes: {killed.decided:,} deliveries decided,"
        f" {killed.in_flight:,} in blocks that were claimed or published, not settled",
        soft_wrap=True,
    )
    err.print(f"[bold]3/5[/] Spark's checkpoints deleted ({delete_checkpoints(home)} files)")
    with _step(err, "4/5", "resuming", events) as report:
        done = resume(home, report)
    err.print(
        f"    {done['decided']:,} decided, {done['re_read']:,} read again and recognised,"
        f" {done['undecided'] + done['ambiguous']:,} left open"
    )
    _show(home, out, "books")
    _show(home, out, "top", "--dimension", "url", "--window", "1d", "-k", "10")
    _show(home, out, "close", RUN, "--dry-run", expected=_EXIT_RED)
    with _step(err, "5/5", "comparing everything with the generator's truth", 1):
        rows = [json.loads(line) for line in _ask(home, "decisions", "--jsonl").splitlines()]
        settings = admitone.load_settings(home)
        found = check(settings, truth, rows, json.loads(_ask(home, "books", "--json")))
        problems = found.problems + check_evidence(settings.resolve(settings.evidence.path), rows)
    for problem in problems[:20]:
        err.print(f"wrong {problem}", markup=False)
    if problems:
        err.print(f"[bold red]{len(problems)} differences from the truth[/]")
        return False
    out.print(
        f"[bold green]all true[/]: {found.decisions:,} decisions, one record on the log for each admission at"
        f" its pinned place, evidence complete, books balanced, {found.bounds:,} bounds in {found.answers:,}"
        f" answers ({time.monotonic() - began:.0f} s)",
        soft_wrap=True,
    )
    return True


def prepare(home: Path, events: int) -> None:
    """Write the demo's configuration into an empty home folder."""
    home.mkdir(parents=True, exist_ok=True)
    if any(home.iterdir()):
        raise admitone.AdmitoneError(
            f"{home} is not empty.", "choose an empty folder, or leave --home out"
        )
    text = _CONFIGURATION.format(run=RUN, max_block=max(1, events // _BLOCKS))
    (home / "admitone.toml").write_text(text, encoding="utf-8")


def make_traffic(home: Path, events: int, seed: int, report: Report) -> Truth:
    """Generate deliveries, hand them to `admitone ingest`, and return the truth about them."""
    options = GeneratorOptions(
        events,
        seed=seed,
        run=RUN,
        contradictions=0.004,
        malformed=0.01,
        late=0.01,
        end_ms=time.time_ns() // 1_000_000 - 60_000,
    )
    recorder = TruthRecorder(options)
    ingest = _start(home, "ingest", "-", "--run", RUN, stdin=subprocess.PIPE)
    assert ingest.stdin is not None
    for done, delivery in enumerate(recorder.watch(generate(options)), 1):
        ingest.stdin.write(delivery.line + b"\n")
        if done % 1_000 == 0:
            report(done)
    _said(home, ingest)
    return recorder.truth()


def run_and_kill(home: Path, report: Report) -> Killed:
    """Run the pipeline until one of its workers has published a block and not settled it; kill all of it."""
    marker = home.resolve() / "killed-here"
    pipeline = _start(home, "run", "--until-idle", fault=f"boundary.published@3:stop:{marker}")
    deadline = time.monotonic() + _PATIENCE_S
    for decided in _decided(home):
        report(decided)
        if marker.exists():
            break
        if pipeline.poll() is not None or time.monotonic() > deadline:
            raise admitone.AdmitoneError(
                "The pipeline ended before it could be killed.",
                f"see {_log(home)} for its messages",
            )
    processes = _kill_tree(pipeline)
    left = json.loads(_ask(home, "status", "--json"))
    return Killed(next(_decided(home)), left["in_flight"], processes)


def delete_checkpoints(home: Path) -> int:
    """Delete Spark's checkpoints; return how many files are gone."""
    folder = home / "data" / "checkpoints"
    files = sum(1 for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return files


def resume(home: Path, report: Report) -> dict[str, int]:
    """Run the pipeline again until everything is decided and counted; return what it says at its end."""
    pipeline = _start(home, "run", "--until-idle", "--json")
    for decided in _decided(home):
        report(decided)
        if pipeline.poll() is not None:
            break
    document: dict[str, int] = json.loads(_said(home, pipeline))
    return document


def _decided(home: Path) -> Iterator[int]:
    """Yield how many deliveries are decided, a few times a second."""
    ledger = admitone.open_ledger_reader(admitone.load_settings(home))
    while True:
        yield sum(source.decided for source in ledger.sources())
        time.sleep(0.2)


def _command(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "admitone", "--home", str(home), *arguments]


def _ask(home: Path, *arguments: str) -> bytes:
    """Return what a command prints."""
    done = subprocess.run(_command(home, *arguments), stdout=subprocess.PIPE, check=True)
    return done.stdout


def _show(home: Path, out: Console, *arguments: str, expected: int = 0) -> None:
    """Let a command print for the person who watches."""
    out.print(f"[dim]$[/] [bold]admitone {' '.join(arguments)}[/]")
    out.file.flush()
    code = subprocess.run(_command(home, *arguments), check=False).returncode
    if code != expected:
        raise admitone.AdmitoneError(f"admitone {arguments[0]} ended with {code}, not {expected}.")


def _start(
    home: Path, *arguments: str, fault: str = "", stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a command whose messages go to a file, in a session of its own."""
    with _log(home).open("ab") as log:
        return subprocess.Popen(
            _command(home, *arguments),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, _FAULT: fault},
            start_new_session=True,
        )


def _said(home: Path, process: subprocess.Popen[bytes]) -> bytes:
    """Wait for a command to end well, and return what it printed."""
    said, _ = process.communicate()
    if process.returncode != 0:
        raise admitone.AdmitoneError(
            f"A command of the demo ended with {process.returncode}.",
            f"see {_log(home)} for its messages",
        )
    return said


def _log(home: Path) -> Path:
    return home.resolve() / "pipeline.log"


def _kill_tree(process: subprocess.Popen[bytes]) -> int:
    """Kill a driver, its JVM and its workers at once, as a lost machine would; return how many there were."""
    import psutil

    driver = psutil.Process(process.pid)
    family = [driver, *driver.children(recursive=True)]
    for member in family:
        try:
            member.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=30)
    process.wait()
    return len(family)


@contextmanager
def _step(console: Console, step: str, what: str, total: int) -> Iterator[Report]:
    """Show a step with a bar for a person, or as a line in a log."""
    if not console.is_terminal:
        console.print(f"{step} {what}")
        yield lambda _done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn(f"[bold]{step}[/] {what}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
        progress.update(task, completed=total)
