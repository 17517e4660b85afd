"""`admitone demo --serve`: the whole story, and then the dashboard over its data."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

PATIENCE_S = 300.0


def test_the_demo_leaves_its_dashboard_up_and_says_where(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "admitone", "demo", "--events", "2000", "--serve", "--home", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    try:
        assert demo.stdout is not None
        said = []
        for line in demo.stdout:
            said.append(line)
            if line.startswith("serving "):
                break
        address = re.search(r"http://127[.]0[.]0[.]1:[0-9]+/", said[-1])
        assert address, "".join(said)
        assert said[0].startswith("2,000 deliveries"), said[0]
        killed = re.search(
            "SIGKILL to .*: ([0-9,]+) deliveries decided, ([0-9]+) in blocks", "".join(said)
        )
        assert killed, "".join(said)
        assert 0 < int(killed[1].replace(",", "")) < 2_000
        assert int(killed[2]) > 0
        assert any("all true" in line for line in said), "".join(said)
        with httpx.Client(base_url=address[0], timeout=PATIENCE_S) as client:
            page = client.get("/")
            (run,) = client.get("/v1/runs").json()["runs"]
            top = client.get("/v1/topk", params={"dimension": "url", "window": "all"}).json()
    finally:
        os.killpg(demo.pid, signal.SIGTERM)
        assert demo.wait(60) in (0, -signal.SIGTERM)

    assert "<title>" in page.text
    assert run["run_id"] == "demo"
    assert top["total"] > 300
