"""The classes of Spark are kept: a session takes them from the archive that was made for this Java."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from admitone.spark.class_archive import shared_classes, spark_archive
from tests.support.running import shared_spark


def test_a_session_maps_the_archive_into_its_java() -> None:
    archive = spark_archive()
    assert archive.exists(), "run scripts/setup.sh services"
    java = shared_spark()._jvm.java.lang.ProcessHandle.current().pid()

    assert str(archive) in Path(f"/proc/{java}/maps").read_text()


def test_there_is_one_archive_for_each_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "an environment"))
    paths = []
    for home in (tmp_path / "one", tmp_path / "other"):
        java = home / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.touch(0o755)
        monkeypatch.setenv("JAVA_HOME", str(home))
        paths.append(spark_archive())
        assert shared_classes() == ()

    assert len({*paths}) == len(paths)
    paths[-1].parent.mkdir(parents=True)
    paths[-1].touch()
    assert shared_classes() == (f"-XX:SharedArchiveFile='{paths[-1]}'",)
