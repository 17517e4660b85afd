"""The command line in this process, and a home that it filled."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from admitone.cli import app, main
from tests.support.pipeline import Pipeline, event


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Done]


def commands(group: Any = None, before: str = "") -> dict[str, Any]:
    """Return every command there is, by its words."""
    found: dict[str, Any] = {}
    for name, command in (group or typer.main.get_command(app)).commands.items():
        words = f"{before} {name}".strip()
        found |= commands(command, words) if hasattr(command, "commands") else {words: command}
    return found


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["admitone", *arguments])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1 if ended.code else 0
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return run


@pytest.fixture
def home(tmp_path: Path) -> str:
    """A home folder with two admissions, a duplicate, a contradiction and a malformed delivery."""
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.ingest(
        event("e1"),
        event("e1"),
        event("e1", {"pageId": "other"}),
        b"no json",
        event("e2"),
        run="r1",
    )
    pipeline.run()
    return str(tmp_path)
