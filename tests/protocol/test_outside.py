"""What lies outside the ledger: seals, the chain of closings, and its heads in second places."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from admitone.core.errors import ConfigurationError, NotFound
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.seal import head_of
from admitone.evidence.audit.verify import Verification, verify_run
from admitone.evidence.evidence_file import closure_path, seal_path
from admitone.governance.key_ring import KeyRing, open_key_ring
from admitone.settings import load_settings
from tests.support.closing import close_green, differences, open_run, stores_of
from tests.support.ledger_edits import EditedLedger
from tests.support.pipeline import Pipeline, event

PLACE = "elsewhere/heads.jsonl"


def closed(home: Path, **closing: Any) -> Pipeline:
    """Return a closed run that told its head to a second place."""
    (home / "admitone.toml").write_text(f'[closing]\nheads = ["{PLACE}"]\n')
    pipeline = open_run(home) if not closing else _with(home, closing)
    close_green("r", *stores_of(pipeline))
    return pipeline


def _with(home: Path, closing: dict[str, Any]) -> Pipeline:
    pipeline = Pipeline(
        home, transport={"raw_partitions": 1}, pipeline={"run_id": "r"}, closing=closing
    )
    pipeline.ingest(event("e1"), event("e2"))
    pipeline.run()
    return pipeline


def looked(pipeline: Pipeline, head: str | None = None) -> Verification:
    return verify_run("r", *stores_of(pipeline), head)


@pytest.fixture
def run(tmp_path: Path) -> Pipeline:
    return closed(tmp_path)


@pytest.fixture
def ledger(run: Pipeline) -> Iterator[EditedLedger]:
    edited = EditedLedger(str(run.settings.home / "data/ledger.db"))
    yield edited
    edited.close()


def heads(pipeline: Pipeline) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (pipeline.settings.home / PLACE).read_text().splitlines()]


def test_a_closing_is_signed_chained_and_told(run: Pipeline) -> None:
    pipeline, (first,) = run, run.ledger.closings()
    pipeline.ingest(event("e9"), run="s")
    pipeline.run()
    close_green("s", *stores_of(pipeline), author="bob")
    second = pipeline.ledger.closings()[1]
    said = orjson.loads(second.statement)

    assert (said["number"], said["previous"], said["author"]) == (2, first.head.hex(), "bob")
    assert [(line["number"], line["head"]) for line in heads(pipeline)] == [
        (1, first.head.hex()), (2, second.head.hex()),
    ]  # fmt: skip
    found = looked(pipeline, first.head.hex().upper())
    assert found.verified, differences(found)
    assert found.notes == []


def test_a_run_that_was_reopened_is_found(run: Pipeline, ledger: EditedLedger) -> None:
    (row,) = ledger.rows("run")
    ledger.replace("run", [{**row, "state": "OPEN", "artifact": None}])

    assert differences(looked(run)) == ["run 'r' was closed, and the ledger says that it is open"]


def test_a_closing_that_vanished_whole_is_found_by_its_head(
    run: Pipeline, ledger: EditedLedger
) -> None:
    """The run is open, the chain, the tries and the files are gone: nothing within the stores says so."""
    (row,) = ledger.rows("run")
    ledger.replace("run", [{**row, "state": "OPEN", "artifact": None}])
    ledger.replace("closing", [])
    ledger.replace("closing_attempt", [])
    store = open_evidence_store(run.settings)
    store.delete(closure_path("r"))
    store.delete(seal_path("r"))

    assert differences(looked(run)) == [f"closing 1 is not the one that {PLACE} was told of"]
    (head,) = heads(run)
    (run.settings.home / PLACE).unlink()
    assert looked(run).verified
    assert differences(looked(run, head["head"])) == [
        f"head {head['head']} is of no closing of this ledger"
    ]


def rewritten(run: Pipeline, ledger: EditedLedger, ring: KeyRing) -> None:
    """Close the run in another name: artifact, statement, seal, head, files and tries all fit together."""
    from admitone.evidence.audit.seal import _DOMAIN, ED25519

    (row,) = ledger.rows("run")
    artifact = orjson.loads(row["artifact"])
    artifact["author"] = "eve"
    data = orjson.dumps(artifact, option=orjson.OPT_SORT_KEYS)
    (closing,) = ledger.rows("closing")
    statement = orjson.loads(closing["statement"])
    import hashlib

    statement |= {"author": "eve", "artifact": hashlib.sha256(data).hexdigest()}
    signed = orjson.dumps(statement, option=orjson.OPT_SORT_KEYS)
    signer = ring.signer(artifact["closed_at"])
    seal = {
        "algorithm": ED25519, "key": signer.key.id, "public_key": signer.key.public,
        "signature": signer.sign(_DOMAIN + signed).hex(),
    }  # fmt: skip
    ledger.replace("run", [{**row, "artifact": data}])
    text = orjson.dumps(seal, option=orjson.OPT_SORT_KEYS).decode()
    ledger.replace(
        "closing", [{**closing, "statement": signed, "seal": text, "head": head_of(signed)}]
    )
    (attempt,) = ledger.rows("closing_attempt")
    ledger.replace("closing_attempt", [{**attempt, "author": "eve"}])
    store = open_evidence_store(run.settings)
    store.write(closure_path("r"), data)
    document = {"statement": statement, "seal": seal}
    store.write(seal_path("r"), orjson.dumps(document, option=orjson.OPT_SORT_KEYS))


def test_a_closing_that_was_signed_again_with_the_ledgers_own_key_is_found_by_its_head(
    run: Pipeline, ledger: EditedLedger
) -> None:
    rewritten(run, ledger, open_key_ring(run.settings))

    assert differences(looked(run)) == [f"closing 1 is not the one that {PLACE} was told of"]


def test_a_closing_that_was_signed_with_another_key_is_found(
    run: Pipeline, ledger: EditedLedger, tmp_path: Path
) -> None:
    (head,) = heads(run)
    (run.settings.home / PLACE).unlink()
    rewritten(run, ledger, KeyRing(tmp_path / "eve"))
    (found,) = differences(looked(run))
    assert found.startswith("closing 1 is signed with key")
    assert found.endswith("which the key ring does not know")
    assert len(differences(looked(run, head["head"]))) == 2


def test_an_older_copy_of_the_ledger_is_found_by_the_head(tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text(f'[closing]\nheads = ["{PLACE}"]\n')
    pipeline = open_run(tmp_path)
    pipeline.ledger.close()
    copy = tmp_path / "older.db"
    shutil.copy(tmp_path / "data/ledger.db", copy)
    close_green("r", *stores_of(pipeline))
    pipeline.ledger.close()
    for file in (tmp_path / "data").glob("ledger.db*"):
        file.unlink()
    shutil.copy(copy, tmp_path / "data/ledger.db")

    assert f"closing 1 is not the one that {PLACE} was told of" in differences(looked(pipeline))


def test_heads_are_told_to_a_topic_and_a_store_and_again_where_one_was_away(tmp_path: Path) -> None:
    places = ["topic:heads", "memory://outside/heads.jsonl", "blocked/heads.jsonl"]
    (tmp_path / "blocked").write_bytes(b"no folder")
    pipeline = _with(tmp_path, {"heads": places})
    closing = close_run("r", *stores_of(pipeline), author="ann")
    assert closing.closed
    assert [each.partition(":")[0] for each in closing.untold] == ["topic", "blocked/heads.jsonl"]
    found = looked(pipeline)
    assert found.verified
    assert len(found.notes) == 2
    pipeline.transport.create_topic("heads", 1)
    (tmp_path / "blocked").unlink()
    pipeline.ingest(event("e9"), run="s")
    pipeline.run()
    assert close_run("s", *stores_of(pipeline), author="ann").untold == []

    assert looked(pipeline).notes == []
    assert len((tmp_path / "blocked/heads.jsonl").read_bytes().splitlines()) == 2
    with fsspec.open(places[1], "rb") as file:
        assert len(file.read().splitlines()) == 2


def test_keys_are_rotated_and_retired_and_what_they_signed_stays_good(run: Pipeline) -> None:
    ring = open_key_ring(run.settings)
    (old,) = ring.known()
    new = ring.rotate(old.made_at + 10**9)
    assert looked(run).verified
    assert [key["signs"] for key in ring.documents()] == [False, True]
    run.ingest(event("e9"), run="s")
    run.run()
    close_green("s", *stores_of(run))
    seal = json.loads(run.ledger.closings()[1].seal or "")
    assert seal["key"] == new.id
    ring.retire(new.id, old.made_at)
    (found,) = differences(looked(run))
    assert found == f"closing 2 is signed with key {new.id} after that was retired"
    with pytest.raises(NotFound):
        ring.retire("nobody", 0)


def test_nobody_signs_where_the_configuration_says_so_and_the_statement_tells_it(
    tmp_path: Path,
) -> None:
    pipeline = _with(tmp_path, {"sign": False})
    close_green("r", *stores_of(pipeline))
    (closing,) = pipeline.ledger.closings()

    assert closing.seal is None
    assert orjson.loads(closing.statement)["signed"] is False
    assert not (tmp_path / "keys").exists()
    found = looked(pipeline)
    assert found.verified
    assert found.notes == ["the closing is not signed, as the configuration said"]


def pem(key: Ed25519PrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()  # fmt: skip


def test_a_signing_key_can_come_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Ed25519PrivateKey.generate()
    monkeypatch.setenv("ADMITONE_KEYS__SIGNING_KEY", pem(key))
    pipeline = _with(tmp_path, {"heads": []})
    close_green("r", *stores_of(pipeline))
    (known,) = open_key_ring(pipeline.settings).known()
    assert known.public == key.public_key().public_bytes_raw().hex()
    assert list((tmp_path / "keys").glob("*.key")) == []
    assert looked(pipeline).verified
    with pytest.raises(ConfigurationError, match="not rotated here"):
        open_key_ring(pipeline.settings).rotate(1)
    open_key_ring(pipeline.settings).retire(known.id, 1)
    with pytest.raises(ConfigurationError, match="was retired"):
        open_key_ring(pipeline.settings).signer(2)
    monkeypatch.setenv("ADMITONE_KEYS__SIGNING_KEY", "no key")
    with pytest.raises(ConfigurationError, match="Expected an Ed25519 private key") as refused:
        open_key_ring(load_settings(tmp_path)).signer(2)
    assert "no key" not in str(refused.value)
    monkeypatch.delenv("ADMITONE_KEYS__SIGNING_KEY")
    with pytest.raises(ConfigurationError, match="Cannot read the signing key"):
        open_key_ring(load_settings(tmp_path, keys={"signing_key_file": "nowhere.pem"}))
    (tmp_path / "own.pem").write_text(pem(Ed25519PrivateKey.generate()))
    assert open_key_ring(load_settings(tmp_path, keys={"signing_key_file": "own.pem"})).signer(3)


def test_the_private_half_is_for_its_owner_only(run: Pipeline) -> None:
    (file,) = (run.settings.home / "keys").glob("*.key")

    assert file.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in (run.settings.home / "keys/ring.json").read_bytes()
