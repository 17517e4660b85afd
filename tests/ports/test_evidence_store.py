"""What every evidence store guarantees."""

from __future__ import annotations

from pathlib import Path

import pytest

from admitone.core.errors import ConfigurationError, NotFound
from admitone.evidence import open_evidence_store
from admitone.evidence.evidence_file import run_folder
from admitone.evidence.evidence_store import EvidenceStore, FolderStore, FsspecStore
from admitone.settings import load_settings

HOSTILE_NAMES = ["a b", "%2E%2E", "ж%%é", "*[x]?", "~", "$HOME"]


@pytest.fixture
def store(url: str, tmp_path: Path) -> EvidenceStore:
    return open_evidence_store(load_settings(tmp_path, evidence={"path": url}))


def test_what_was_written_is_read_whole_and_replaced_whole(store: EvidenceStore) -> None:
    store.write("runs/r/receipts/a.parquet", b"one")
    store.write("runs/r/receipts/a.parquet", b"two, longer")
    store.write("runs/r/empty", b"")

    assert store.read("runs/r/receipts/a.parquet") == b"two, longer"
    assert store.read("runs/r/empty") == b""


def test_what_is_not_there_is_not_found(store: EvidenceStore) -> None:
    store.write("runs/r/a/b", b"x")
    for path in ("runs/r/a/c", "nowhere/at/all", "runs/r/a"):
        with pytest.raises(NotFound):
            store.read(path)


def test_a_prefix_lists_all_below_it_in_order_and_nothing_beside_it(store: EvidenceStore) -> None:
    for path in ("runs/r/b/2", "runs/r/a/1", "runs/r/top", "runs/r2/other", "elsewhere"):
        store.write(path, b"x")

    assert store.list("runs/r") == ["runs/r/a/1", "runs/r/b/2", "runs/r/top"]
    assert store.list("runs/none") == []


def test_a_removed_object_is_gone_and_removing_it_again_is_harmless(store: EvidenceStore) -> None:
    store.write("runs/r/a", b"x")
    store.delete("runs/r/a")
    store.delete("runs/r/a")

    assert store.list("runs") == []
    with pytest.raises(NotFound):
        store.read("runs/r/a")


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_any_name_a_run_can_have_is_a_path(store: EvidenceStore, name: str) -> None:
    path = f"{run_folder(name)}/receipts/x.parquet"
    store.write(path, name.encode())

    assert store.read(path) == name.encode()
    assert store.list(run_folder(name)) == [path]


def test_an_interrupted_write_leaves_nothing_to_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    store.write("runs/r/a", b"before")
    (tmp_path / "runs/r/.0123.partial").write_bytes(b"half")
    monkeypatch.setattr("os.fsync", _fail)
    with pytest.raises(Exception, match="no space"):
        store.write("runs/r/a", b"after")

    assert store.read("runs/r/a") == b"before"
    assert store.list("runs/r") == ["runs/r/a"]


def _fail(*_: object) -> None:
    raise OSError("no space left on the device")


def test_a_url_that_nobody_can_open_is_a_matter_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nosuch"):
        FsspecStore("nosuch://bucket").read("a")
    with pytest.raises(ConfigurationError, match="evidence"):
        load_settings(tmp_path, evidence={"path": "://bucket"})
