"""Somebody who does what a page says: with a shell that stays open, an editor, Python and a database."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from pyspark.sql import SparkSession

from admitone.settings import FILE_NAME, load_settings
from tests.support.page_steps import Kind, Step, printed_as_said, with_settings

PATIENCE_S = 300.0
ASK_FOR_CODE = "echo $?"
_ENDLESS = re.compile(r"^admitone( --home \S+)? serve\b")
_READY = "serving http://"
_ENDED_BY_CTRL_C = {0, 128 + signal.SIGINT}


class Wrong(AssertionError):
    """A page that does not do what it says."""


class Shell:
    """One bash: folders, variables and exit codes last from one command to the next."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._scripts = Path(tempfile.mkdtemp(prefix="steps-", dir=folder.parent))
        self._steps = 0
        self._code = 0
        self._endless: list[int] = []
        # Its own answers come on stdout; what commands print goes to files.
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "COLUMNS": "250",
                **environment,
            },
            start_new_session=True,
        )

    @property
    def folder(self) -> Path:
        """Return the current folder."""
        return Path(self._ask("pwd"))

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end; return its exit code and what it printed."""
        script, printed = self._script(command)
        self._code = int(
            self._ask(
                f"(exit {self._code}); . {script} </dev/null >{printed} 2>&1; code=$?; echo $code"
            )
        )
        return self._code, printed.read_text("utf-8")

    def start(self, command: str) -> tuple[int, str]:
        """Start a command that only a refusal or Ctrl-C ends, and wait until it is ready."""
        script, printed = self._script(command)
        pid = int(self._ask(f"set -m; . {script} </dev/null >{printed} 2>&1 & set +m; echo $!"))
        deadline = time.monotonic() + PATIENCE_S
        while psutil.pid_exists(pid) and _READY not in printed.read_text("utf-8"):
            assert time.monotonic() < deadline, f"waited in vain for {command}"
            time.sleep(0.05)
        if _READY in printed.read_text("utf-8"):
            self._endless.append(pid)
            self._code = 0
        else:
            self._code = int(self._ask(f"wait {pid}; echo $?"))
        return self._code, printed.read_text("utf-8")

    def press_ctrl_c(self) -> list[int]:
        """End what only Ctrl-C ends; return the exit codes."""
        codes = []
        for pid in self._endless:
            os.killpg(pid, signal.SIGINT)
            codes.append(int(self._ask(f"wait {pid}; echo $?")))
        self._endless.clear()
        return codes

    def close(self) -> None:
        """End whatever still runs."""
        family = psutil.Process(self._bash.pid).children(recursive=True)
        for process in [*family, self._bash]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=30)
        self._bash.communicate()

    def _script(self, command: str) -> tuple[Path, Path]:
        self._steps += 1
        script = self._scripts / f"{self._steps}.sh"
        script.write_text(command + "\n", "utf-8")
        printed = script.with_suffix(".out")
        printed.touch()
        return script, printed

    def _ask(self, line: str) -> str:
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(line + "\n")
        self._bash.stdin.flush()
        return self._bash.stdout.readline().strip()


@dataclass
class Reader:
    """What a page leaves to its reader: names of servers and things, what is there before, and what is skipped.

    `environment` has variables for commands with a word in them, those of "" for all. `names` are what stands in a page
    for something real; a function finds it when it is needed. `before` is done before a command, `skipped` is not done;
    `afterwards` looks at what a page leaves behind.
    """

    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names: Mapping[str, str | Callable[[Shell], str]] = field(default_factory=dict)
    before: Mapping[str, Callable[[Shell], None]] = field(default_factory=dict)
    python: dict[str, Any] = field(default_factory=dict)
    database: str = ""
    skipped: tuple[str, ...] = ()
    afterwards: Callable[[], None] = lambda: None

    def read(self, page: str, steps: list[Step], folder: Path) -> None:
        """Do all of it in an empty folder; what is not as the page says is raised, with its line."""
        shell = Shell(folder, self.environment.get("", {}))
        following = [*steps[1:], None]
        try:
            for step, after in zip(steps, following, strict=True):
                if step.what in self.skipped:
                    continue
                try:
                    self._do(step, shell, asked=after is not None and after.text == ASK_FOR_CODE)
                except Exception as reason:
                    raise Wrong(f"{page}:{step.line}: {step.text}\n{reason}") from reason
            self.afterwards()
            if wrong := set(shell.press_ctrl_c()) - _ENDED_BY_CTRL_C:
                raise Wrong(f"{page}: Ctrl-C ended something with {wrong}")
        finally:
            shell.close()

    def _do(self, step: Step, shell: Shell, asked: bool) -> None:
        if prepare := self.before.get(step.what):
            prepare(shell)
        text = self._named(step.text, shell)
        match step.kind:
            case Kind.COMMAND:
                says = [self._named(line, shell) for line in step.says]
                do = shell.start if _ENDLESS.match(text) else shell.run
                code, printed = do(self._with_variables(text))
                if code != step.exit_code and not asked:
                    raise Wrong(f"exit code {code} instead of {step.exit_code}: {printed}")
                if not printed_as_said(says, printed):
                    raise Wrong("\n".join(["the page says", *says, "printed was", printed]))
            case Kind.CONFIGURATION:
                with_settings(shell.folder / FILE_NAME, text)
                load_settings(shell.folder)
            case Kind.PYTHON:
                exec(compile(text, "page", "exec"), self.python)
                if "spark" in self.python:
                    finish_queries(self.python["spark"])
            case Kind.SQL:
                with psycopg.connect(self.database) as connection:
                    if not connection.execute(text.encode()).fetchall():
                        raise Wrong("no rows")

    def _named(self, text: str, shell: Shell) -> str:
        for name, real in self.names.items():
            if name in text:
                text = text.replace(name, real if isinstance(real, str) else real(shell))
        return text

    def _with_variables(self, command: str) -> str:
        given = (self.environment[word] for word in self.environment if word and word in command)
        lines = [f"export {n}={shlex.quote(v)}" for each in given for n, v in each.items()]
        return "\n".join(["(", *lines, command, ")"]) if lines else command


def finish_queries(spark: SparkSession) -> None:
    """Let streams read what there is, and stop them."""
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
