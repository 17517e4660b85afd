"""A pipeline through the command line: in one go, or beside a test that gives it trouble.

What runs in one go runs in this process, on a Spark session that all tests of the process share: starting Spark takes
longer than most of what is tested. What is killed, suspended or configured otherwise is a process of its own.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import SparkSession

from admitone.cli import main
from admitone.ledger import open_ledger
from admitone.settings import FILE_NAME, Settings, load_settings
from admitone.spark.session import open_session
from tests.servers.kafka import KafkaBroker
from tests.support.pipeline import Pipeline

PATIENCE_S = 300.0
_TOPICS = """
[[topics]]
family = "traffic"
topic = "{topic}"
event_types = ["page_view", "product_view", "api_request", "search", "purchase"]
"""


def kafka_pipeline(
    home: Path,
    broker: KafkaBroker,
    *,
    bootstrap: str | None = None,
    ledger: str = "sqlite:data/ledger.db",
    max_block: int = 1_000,
    max_per_trigger: int = 5_000,
    more: str = "",
) -> Pipeline:
    """Make a home folder with topics of its own on a broker; `more` is appended to its configuration."""
    number = uuid.uuid4().hex[:8]
    home.mkdir(parents=True, exist_ok=True)
    (home / FILE_NAME).write_text(
        f'ledger.url = "{ledger}"\ntransport.kafka.bootstrap = "{bootstrap or broker.bootstrap}"\n'
        f"pipeline.max_block = {max_block}\ntopk.max_per_trigger = {max_per_trigger}\n"
        f'transport.kind = "kafka"\ntransport.raw_topic = "raw-{number}"\n'
        f"transport.max_per_trigger = {max_per_trigger}\ntransport.raw_partitions = 4\n"
        f"{more}\n{_TOPICS.format(topic=f'admitted-{number}')}"
    )
    return Pipeline(home, transport={})


def change_settings(home: Path, before: str, after: str) -> None:
    """Replace a line of the configuration."""
    file = home / FILE_NAME
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def start_pipeline(home: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the pipeline and return at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "admitone", "run", *arguments, "--home", str(home)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )


@cache
def shared_spark() -> SparkSession:
    """Return the session of this process; it ends with the process."""
    home = Path(tempfile.mkdtemp(prefix="spark-"))
    return open_session(load_settings(home, transport={"kind": "kafka"}))


def borrowed_spark(_: Settings) -> SparkSession:
    """Return a session of the shared one that cannot be stopped."""
    session = shared_spark().newSession()
    session.stop = lambda: None  # type: ignore[method-assign]
    return session


def run_pipeline(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in this process until the pipeline is idle."""
    words = ["admitone", "run", *arguments, "--until-idle", "--home", str(home)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", words),
        patch("admitone.spark.session.open_session", borrowed_spark),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(
        words, code, out.getvalue(), " ".join(err.getvalue().split())
    )


def outcome(child: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait until a pipeline has ended by itself; whatever it says, it says it without a traceback."""
    try:
        out, err = child.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.terminate()
        _, err = child.communicate(timeout=PATIENCE_S)
        raise AssertionError(f"it did not end: {err[-2000:]}") from None
    assert "Traceback" not in err
    return subprocess.CompletedProcess(child.args, child.returncode, out, " ".join(err.split()))


def await_that(condition: Callable[[], object], child: subprocess.Popen[str]) -> None:
    """Wait until something holds while a pipeline runs."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def decided(home: Path) -> int:
    """Return how many deliveries are decided."""
    return sum(info.decided for info in open_ledger(load_settings(home)).sources())
