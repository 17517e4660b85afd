"""What a stranger can check: by the shipped program, run by itself, and by another implementation of Ed25519."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from admitone.core.errors import AdmitoneError, NotFound
from admitone.evidence import verify_receipt
from admitone.evidence.audit.proof import ClosedRun, export, prove, verifier
from admitone.governance.key_ring import open_key_ring
from admitone.ops import proofs
from admitone.ops.stores import Stores
from tests.support.closing import close_green, closed_run, open_run, sql, stores_of
from tests.support.pipeline import Pipeline, event

HOLDS, WRONG, UNREADABLE = 0, 7, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return closed_run(tmp_path_factory.mktemp("closed"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("program") / "verify_receipt.py"
    file.write_text(verifier())
    return file


def checked(program: Path, what: Path, *more: str) -> tuple[int, str]:
    """Run the program as a stranger does: without this package."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", program, what, *more], capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.stderr == ""
    return done.returncode, done.stdout


def proof_of(run: Pipeline, event_id: str) -> dict[str, Any]:
    return json.loads(json.dumps(proofs.proof(Stores(run.settings), event_id)))


def public_key(run: Pipeline) -> str:
    (key,) = open_key_ring(run.settings).known()
    return key.public


def test_every_receipt_of_a_run_is_proved_to_a_stranger(
    run: Pipeline, program: Path, tmp_path: Path
) -> None:
    names = {row["event_id"] for row in run.decisions(verdict="ADMITTED")}
    assert len(names) == 11
    for name in names:
        document = proof_of(run, name)
        assert verify_receipt.check_proof(document, public_key(run))
    (tmp_path / "proof.json").write_text(json.dumps(document))
    code, said = checked(program, tmp_path / "proof.json", "--key", public_key(run))

    assert code == HOLDS, said
    assert f"event {name} was ADMITTED" in said
    assert "closed by ann, closing 1" in said
    code, said = checked(program, tmp_path / "proof.json", "--key", "00" * 32)
    assert (code, "not with the key you gave" in said) == (WRONG, True)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        names = value if isinstance(value, dict) else range(len(value))
        return [each for name in names for each in leaves(value[name], (*path, name))]
    return [path]


def changed(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return ("1" if value[:1] == "0" else "0") + value[1:]
    return [*value, 1]


NOT_VOUCHED_FOR = {"version", "number", "block", "reason", "offset_kind"}
"""What a proof says besides; the last three explain a receipt, and are in the signed artifact's files only."""


def test_no_part_of_a_proof_can_be_changed(run: Pipeline) -> None:
    whole = proof_of(run, "e3")
    tried = 0
    for path in leaves(whole):
        document = json.loads(json.dumps(whole))
        holder = document
        for name in path[:-1]:
            holder = holder[name]
        holder[path[-1]] = changed(holder[path[-1]])
        if path[0] != "closing" and path[-1] in NOT_VOUCHED_FOR:
            continue
        if path[-2:] in {("seal", "key")}:
            continue
        tried += 1
        with pytest.raises((verify_receipt.Wrong, ValueError, KeyError, TypeError)):
            verify_receipt.check_proof(document, public_key(run))
    assert tried > 40


def test_an_exported_run_is_checked_the_same_way(
    run: Pipeline, program: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    stores = run.ledger, Stores(run.settings).evidence
    written = export(ClosedRun("r", *stores), folder)
    code, said = checked(program, folder, "--key", public_key(run))
    assert code == HOLDS, said
    assert f"{written} receipts are those of the run" in said
    with pytest.raises(AdmitoneError, match="is there already"):
        export(ClosedRun("r", *stores), folder)

    lines = gzip.decompress((folder / "receipts.jsonl.gz").read_bytes()).splitlines(keepends=True)
    edits: list[Callable[[], list[bytes]]] = [
        lambda: lines[1:],
        lambda: [*lines, lines[-1]],
        lambda: [lines[1], lines[0], *lines[2:]],
        lambda: [lines[0].replace(b'"ADMITTED"', b'"DUPLICATE"'), *lines[1:]],
        lambda: [*lines[:-1], lines[-1].replace(b'"offset":', b'"offset":1')],
    ]
    for edit in edits:
        after = edit()
        assert after != lines
        (folder / "receipts.jsonl.gz").write_bytes(gzip.compress(b"".join(after)))
        assert checked(program, folder)[0] == WRONG
    (folder / "receipts.jsonl.gz").write_bytes(gzip.compress(b"".join(lines)))
    for name in ("closure.json", "seal.json"):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(before.replace(b'"run_id":"r"', b'"run_id":"s"'))
        assert checked(program, folder)[0] == WRONG
        (folder / name).write_bytes(before)
    (folder / "seal.json").write_bytes(b"no json")
    assert checked(program, folder)[0] == UNREADABLE


def test_the_programs_ed25519_is_the_librarys() -> None:
    for number in range(20):
        key = Ed25519PrivateKey.generate()
        public, message = key.public_key().public_bytes_raw(), b"m" * number
        signature = key.sign(message)
        verify_receipt.check_signature(public, signature, message)
        for wrong in (
            (public, signature, message + b"x"),
            (public, signature[:-1] + bytes([signature[-1] ^ 1]), message),
            (public, bytes([signature[0] ^ 1]) + signature[1:], message),
            (Ed25519PrivateKey.generate().public_key().public_bytes_raw(), signature, message),
        ):
            with pytest.raises(verify_receipt.Wrong):
                verify_receipt.check_signature(*wrong)
            with pytest.raises(InvalidSignature):
                _library(*wrong)


def _library(public: bytes, signature: bytes, message: bytes) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    Ed25519PublicKey.from_public_bytes(public).verify(signature, message)


def test_nothing_is_proved_of_an_open_run_or_of_what_was_never_admitted(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    with pytest.raises(AdmitoneError, match="is open"):
        proof_of(pipeline, "e1")
    close_green("r", *stores_of(pipeline))
    pipeline.ingest(event("late"))
    pipeline.run()
    with pytest.raises(AdmitoneError, match="never admitted"):
        proof_of(pipeline, "late")
    with pytest.raises(NotFound):
        proof_of(pipeline, "nobody")
    run = ClosedRun("r", pipeline.ledger, Stores(pipeline.settings).evidence)
    with pytest.raises(NotFound, match="has no receipt"):
        prove(run, 2, 0, "QUARANTINED")


def test_a_damaged_ledger_proves_nothing(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    close_green("r", *stores_of(pipeline))
    sql(pipeline, "DELETE FROM evidence WHERE kind = 'receipts'")
    with pytest.raises(AdmitoneError, match="is not listed"):
        proof_of(pipeline, "e1")
