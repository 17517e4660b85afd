"""A ledger restored from an older copy, on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.command_line import Cli, cli
from tests.support.logs import on_the_log
from tests.support.pipeline import Pipeline, event

__all__ = ["cli"]


def test_a_restored_ledger_is_refused_until_it_was_read_back(cli: Cli, tmp_path: Path) -> None:
    home, ledger = str(tmp_path), tmp_path / "data" / "ledger.db"
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.ingest(event("a"))
    pipeline.run()
    pipeline.ledger.close()
    shutil.copy(ledger, tmp_path / "older.db")
    pipeline.ingest(event("b"), event("c"))
    pipeline.run()
    pipeline.ledger.close()
    for file in ledger.parent.glob("ledger.db*"):
        file.unlink()
    shutil.copy(tmp_path / "older.db", ledger)

    refused = cli("reconcile", "--home", home)
    assert refused.code == 7
    assert "admitone reconcile --restored" in refused.err
    wrong = cli("reconcile", "--home", home, "--restored", "--dry-run")
    assert wrong.code == 2

    done = cli("reconcile", "--home", home, "--restored", "--json")
    assert done.code == 0
    assert sum(part["admitted"] for part in done.document["restored"]) == 2
    assert done.document["remaining"] == 0
    again = cli("reconcile", "--home", home, "--restored")
    assert again.code == 0
    assert "nothing that the ledger does not know" in again.err
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 4})
    pipeline.run()
    assert on_the_log(pipeline) == ["a", "b", "c"]
    assert pipeline.problems() == []
