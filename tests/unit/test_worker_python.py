"""What Spark's workers are started with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from admitone.spark.session import use_installed_modules


def test_workers_import_the_installed_modules_of_spark_and_not_its_zip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PYSPARK_PYTHON", "ADMITONE_WORKER_PYTHON", "ADMITONE_WORKER_PYTHONPATH"):
        monkeypatch.setenv(name, "")  # Put back what was there when the test ends.
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    use_installed_modules()
    launcher = os.environ["PYSPARK_PYTHON"]
    with_zip = os.environ | {"PYTHONPATH": f"pyspark.zip:{tmp_path}"}
    said = subprocess.run(
        [launcher, "-c", "import json, sys; print(json.dumps([sys.executable, sys.path, sys.argv[1]]))", "a b"],
        env=with_zip, capture_output=True, check=True,
    ).stdout  # fmt: skip
    executable, path, argument = json.loads(said)

    assert executable == sys.executable
    assert str(tmp_path) in path
    assert not [entry for entry in path if "pyspark.zip" in entry]
    assert argument == "a b"


def test_an_interpreter_that_was_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    use_installed_modules()
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
