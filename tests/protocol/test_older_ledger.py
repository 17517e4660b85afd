"""On a ledger that is older than its log nothing works but reading and reading back; and evidence is never deleted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from admitone.boundary.admission import Boundary
from admitone.core.decisions import Action, BlockState
from admitone.core.errors import IntegrityError
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.repair import repair_run
from admitone.evidence.evidence_store import EvidenceStore, FolderStore, FsspecStore
from admitone.evidence.set_aside import every_file, set_aside, write_beside
from admitone.ops.reconcile import reconcile
from admitone.service.door.maintenance import Maintenance
from admitone.spark.analytics_query import accept_new_topics
from tests.servers.copies import copy_of
from tests.support.closing import close_green
from tests.support.command_line import Cli, cli
from tests.support.homes import serving
from tests.support.logs import on_the_log
from tests.support.pipeline import Pipeline, event
from tests.support.read_back import SECTIONS, deliver, one_of_unknown_fate

__all__ = ["cli"]

_TOML = """\
[transport]
raw_partitions = 3

[pipeline]
quarantine_limit = 1.0
"""


@pytest.fixture
def older(tmp_path: Path) -> Pipeline:
    """A home whose ledger knows something quarantined and something of unknown fate, and less than the log holds."""
    (tmp_path / "admitone.toml").write_text(_TOML)
    pipeline = Pipeline(tmp_path, **SECTIONS)
    deliver(pipeline, [(0, event("a")), (0, b"no json")])
    pipeline.run()
    one_of_unknown_fate(pipeline, [(1, event("u"))])
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, [(2, event("b"))])
    pipeline.run()
    pipeline.ledger.close()
    restore()
    return Pipeline(tmp_path, **SECTIONS)


def quarantined_id(pipeline: Pipeline) -> str:
    (row,) = pipeline.decisions(verdict="QUARANTINED")
    return str(row["id"])


def test_every_command_that_changes_an_older_ledger_is_refused(older: Pipeline, cli: Cli) -> None:
    (block,) = older.ledger.blocks(states=[BlockState.AMBIGUOUS])
    refused = [
        ("close", "default"),
        ("verify", "default", "--repair"),
        ("quarantine", "release", quarantined_id(older), "--reason", "why"),
        ("quarantine", "discard", quarantined_id(older), "--reason", "why"),
        ("quarantine", "discard", "--block", str(block.block_id), "--reason", "why"),
        ("reconcile",),
        ("topics", "create"),
        ("topics", "accept", "admitted.traffic", "--reason", "why"),
    ]
    home, before = ("--home", str(older.settings.home)), list(older.decisions())
    files = open_evidence_store(older.settings).list("")
    for words in refused:
        done = cli(*words, *home)
        assert done.code == 7, (words, done)
        assert "admitone reconcile --restored" in done.err, (words, done)
    for words in (
        ("books",),
        ("decisions",),
        ("close", "default", "--dry-run"),
        ("reconcile", "--dry-run"),
    ):
        assert "older than the log" not in cli(*words, *home).err

    assert list(older.decisions()) == before
    assert open_evidence_store(older.settings).list("") == files
    assert on_the_log(older) == ["a", "b", "u"]


def test_counting_accepts_no_topic_into_an_older_ledger(older: Pipeline) -> None:
    before = older.ledger.accepted_topics(older.transport.cluster)
    with pytest.raises(IntegrityError, match="older than the log"):
        accept_new_topics(older.settings, older.transport)
    assert older.ledger.accepted_topics(older.transport.cluster) == before


def test_a_service_writes_no_evidence_into_an_older_ledger(older: Pipeline) -> None:
    block, ordinal = map(int, quarantined_id(older).split("-"))
    older.ledger.dispose(block, [ordinal], Action.DISCARDED, 1, "ann", "before it was restored")
    _maintain_once(older)
    assert older.ledger.pending_resolutions()
    reconcile(older.settings, restored=True)
    _maintain_once(older)
    assert not older.ledger.pending_resolutions()


def test_a_service_at_work_writes_no_evidence_while_its_ledger_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, upkeep = threading.Event(), Boundary.upkeep

    def watched(*given: Any) -> None:
        upkeep(*given)
        done.set()

    monkeypatch.setattr(Boundary, "upkeep", watched)
    pipeline = Pipeline(tmp_path, **SECTIONS)
    deliver(pipeline, [(0, b"no json"), (0, b"none either")])
    pipeline.run()
    (block,) = pipeline.ledger.blocks()
    service = Maintenance(pipeline.settings)
    service.start()
    pipeline.ledger.dispose(block.block_id, [0], Action.DISCARDED, 1, "ann", "why")
    service.wake()
    assert done.wait(60)
    assert not pipeline.ledger.pending_resolutions()

    pipeline.ledger.begin_reading_back(pipeline.settings.pipeline.name, {}, 1)
    pipeline.ledger.dispose(block.block_id, [1], Action.DISCARDED, 1, "ann", "why")
    service.close()
    assert pipeline.ledger.pending_resolutions()
    pipeline.ledger.end_reading_back(pipeline.settings.pipeline.name, [])
    _maintain_once(pipeline)
    assert not pipeline.ledger.pending_resolutions()


def _maintain_once(pipeline: Pipeline) -> None:
    service = Maintenance(pipeline.settings)
    service.start()
    service.close()


@pytest.fixture
def client(older: Pipeline) -> Iterator[httpx.Client]:
    with serving(older.settings.home) as running, running.client() as made:
        yield made


def test_the_service_refuses_the_same_and_says_why(older: Pipeline, client: httpx.Client) -> None:
    record = quarantined_id(older)
    why = {"reason": "why", "author": "ann"}
    for path, body in (
        ("/v1/runs/default/close", {}),
        (f"/v1/quarantine/{record}/release", why),
        (f"/v1/quarantine/{record}/discard", why),
    ):
        said = client.post(path, json=body)
        assert (said.status_code, said.json()["code"]) == (500, "INTEGRITY"), said.text
        assert "admitone reconcile --restored" in said.json()["remedy"]
    said = client.post("/v1/events", json=json.loads(event("b")))
    assert (said.status_code, said.json()["code"]) == (500, "INTEGRITY"), said.text
    assert "admitone reconcile --restored" in said.json()["remedy"]
    assert client.get("/v1/runs/default").status_code == 200
    assert on_the_log(older) == ["a", "b", "u"]


def test_evidence_that_a_restored_ledger_does_not_know_is_set_aside_and_read_again(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path, **SECTIONS)
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, [(1, event("b")), (0, event("c"))])
    pipeline.run()
    close_green("default", pipeline.ledger, pipeline.transport, pipeline.settings)
    store = open_evidence_store(pipeline.settings)
    before = {path: store.read(path) for path in every_file(store)}
    pipeline.ledger.close()
    restore()

    behind = Pipeline(tmp_path, **SECTIONS)
    reconcile(behind.settings, restored=True)
    behind.run()
    done = repair_run("default", behind.ledger, store)
    close_green("default", behind.ledger, behind.transport, behind.settings)

    kept = {store.read(path) for path in every_file(store)}
    assert kept >= set(before.values())
    assert all(path.startswith("set-aside/runs/default/") for path in done.set_aside)
    assert behind.problems() == []


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> EvidenceStore:
    return (
        FolderStore(tmp_path)
        if request.param == "folder"
        else FsspecStore(f"memory://{tmp_path.name}")
    )


def test_what_is_set_aside_is_kept_whatever_comes_to_its_path_later(store: EvidenceStore) -> None:
    path = "runs/r/receipts/x.parquet"
    for data in (b"one", b"two", b"two", b"three"):
        write_beside(store, path, data)
    assert store.read(path) == b"three"
    assert set_aside(store, path) is not None
    assert set_aside(store, path) is None

    assert sorted(map(store.read, every_file(store))) == [b"one", b"three", b"two"]
    assert all(name.startswith("set-aside/runs/r/receipts/x") for name in every_file(store))
