"""Starts and stops `admitone serve` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

PATIENCE_S = 60.0


@dataclass(slots=True)
class Running:
    """A service in a process of its own."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, **options)

    def stop(self) -> None:
        """End it as an operator would, and wait until it has."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """End it and its workers as a lost machine would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)


def start_service(home: Path, port: int = 0, fault: str | None = None, **env: str) -> Running:
    """Start `admitone serve` and return once it answers."""
    log = home / "serve.log"
    environment = {**os.environ, **env, **({"ADMITONE_FAULT": fault} if fault else {})}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "admitone", "--home", str(home), "serve", "--json", "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )  # fmt: skip
    assert process.stdout is not None
    text = b""
    while not text.rstrip().endswith(b"}"):
        line = process.stdout.readline()
        assert line, log.read_text()
        text += line
    running = Running(process, json.loads(text)["url"].rstrip("/"), log)
    wait_until(lambda: _answers(running), f"{running.url} answers")
    return running


def wait_until(condition: Any, what: str, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


def _answers(running: Running) -> bool:
    assert running.process.poll() is None, running.log.read_text()
    try:
        return httpx.get(f"{running.url}/healthz", timeout=2).status_code == 200
    except httpx.TransportError:
        return False
