"""The API keeps to its own description: Schemathesis asks it everything, good and bad."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.servers.service import Running

# A live stream has no end to wait for; what it says has tests of its own.
_WORDS = (
    "--phases", "examples,coverage,fuzzing", "--max-examples", "6", "--seed", "1", "--checks", "all",
    "--exclude-path", "/v1/live", "--request-timeout", "20", "--no-color", "--warnings", "off",
)  # fmt: skip


def test_every_answer_is_as_described(service: Running, tmp_path: Path):
    program = Path(sys.executable).parent / "schemathesis"
    asked = subprocess.run(
        [program, "run", f"{service.url}/openapi.json", *_WORDS],
        cwd=tmp_path,
        capture_output=True,
        timeout=300,
        check=False,
        text=True,
    )

    assert asked.returncode == 0, asked.stdout[-8_000:]
    tested = re.search(r"Tested: (\d+)", asked.stdout)
    assert tested is not None
    assert int(tested[1]) == 21
