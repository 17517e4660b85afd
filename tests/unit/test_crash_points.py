"""A crash point that is armed exists, and each that exists can be armed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import admitone
from admitone.core.errors import ConfigurationError
from admitone.infra.crash_points import VARIABLE, arm

PASSED = re.compile(r'crash_point\("([\w.]+)"\)')
SOURCES = [path.read_text() for path in Path(admitone.__file__).parent.rglob("*.py")]
POINTS = {name for source in SOURCES for name in PASSED.findall(source)}


def test_every_point_that_is_passed_can_be_armed() -> None:
    assert len(POINTS) > 40
    for name in POINTS:
        arm(f"{name}@1:kill")
    arm(None)


def test_a_name_that_is_no_crash_point_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"boundary\.publishd.*boundary\.published"):
        arm("boundary.publishd@1:kill")


def test_a_process_does_not_start_with_such_a_name() -> None:
    started = subprocess.run(
        [sys.executable, "-c", "import admitone.infra.crash_points"],
        env={**os.environ, VARIABLE: "boundary.publishd@1:kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode != 0
    assert "boundary.publishd" in started.stderr
