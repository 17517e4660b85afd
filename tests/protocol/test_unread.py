"""Deliveries of a run that nobody decided yet: counted before a closing, waited for where that is wanted."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from admitone.core.errors import RunIsRed
from admitone.ops import unread as module
from admitone.ops.stores import Stores
from admitone.ops.unread import unread, wait_until_read
from tests.support.closing import open_run
from tests.support.command_line import Cli, cli
from tests.support.pipeline import Pipeline, event

__all__ = ["cli"]


def waiting(home: Path) -> Pipeline:
    (home / "admitone.toml").write_text(
        '[pipeline]\nrun_id = "r"\nquarantine_limit = 1.0\n[transport]\nraw_partitions = 1\n'
    )
    pipeline = open_run(home, quarantine_limit=1.0)
    pipeline.ingest(event("a"), b"no json", event("b", runId="s"), event("c", runId="r"))
    pipeline.ingest(event("d"), run="s")
    return pipeline


def test_they_are_counted_by_the_run_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores(waiting(tmp_path).settings)
    assert unread(stores, "r") == module.Unread(of_run=3, others=2, not_looked_at=0)
    assert unread(stores, "s") == module.Unread(of_run=2, others=3, not_looked_at=0)
    monkeypatch.setattr(module, "_LOOKED_AT", 2)
    found = unread(stores, "s")
    assert (found.of_run + found.others, found.not_looked_at, found.any) == (2, 3, True)
    assert "up to 3 not looked at" in str(found)


def test_nothing_waits_where_everything_is_decided_or_nothing_ever_came(tmp_path: Path) -> None:
    assert not unread(Stores(open_run(tmp_path).settings), "r").any
    (tmp_path / "new").mkdir()
    from admitone.settings import load_settings

    assert not unread(Stores(load_settings(tmp_path / "new")), "r").any


def test_closing_says_how_many_and_waits_where_it_is_told_to(tmp_path: Path, cli: Cli) -> None:
    pipeline = waiting(tmp_path)
    where = ("--home", str(tmp_path))
    found = cli("close", "r", "--dry-run", *where)
    assert "3 of its deliveries lie unread on the raw log" in found.err
    refused = cli("close", "r", "--wait", "--patience", "1s", *where)
    assert refused.code == RunIsRed.exit_code
    assert "5 offsets of the raw log are still undecided" in refused.err.replace("\n", " ")
    deciding = threading.Thread(target=lambda: (time.sleep(0.3), pipeline.run()))
    deciding.start()
    waited = cli("close", "r", "--wait", "--patience", "60s", "--json", *where)
    deciding.join()

    assert waited.code == RunIsRed.exit_code  # the delivery that is no JSON is in quarantine
    assert json.loads(waited.out)["gate"] == "red"
    assert not unread(Stores(pipeline.settings), "r").any
    assert cli("close", "r", "--patience", "soon", "--wait", *where).code == 2


def test_what_comes_while_it_waits_is_not_waited_for(tmp_path: Path) -> None:
    pipeline = waiting(tmp_path)
    told: list[str] = []

    def one_more(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            pipeline.run()
            pipeline.ingest(event("later"))

    wait_until_read(Stores(pipeline.settings), "r", 60, one_more)
    assert len(told) == 1
