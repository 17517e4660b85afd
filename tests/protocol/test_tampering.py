"""Whatever is changed about a closed run, `verify` finds it."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from admitone.core.errors import IntegrityError
from admitone.evidence import open_evidence_store
from admitone.evidence.evidence_file import from_parquet, run_folder, to_parquet
from admitone.evidence.evidence_rows import ARCHIVE, QUARANTINE, RECEIPTS, RESOLUTIONS
from tests.support.closing import closed_run, differences, sql, verified
from tests.support.pipeline import Pipeline
from tests.support.tampering import (
    LEDGER_EDITS,
    edit_a_cell,
    tamper,
)

EDITS = 220


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return closed_run(tmp_path_factory.mktemp("closed"))


def test_an_untouched_run_verifies_clean(run: Pipeline) -> None:
    found = verified(run)

    assert differences(found) == []
    assert found.state == "CLOSED"
    kinds = {file.kind for file in run.ledger.evidence_files("r")}
    assert kinds == {RECEIPTS, QUARANTINE, ARCHIVE, RESOLUTIONS}
    assert found.notes == []


def _restore(folder: Path, before: dict[Path, bytes]) -> None:
    for file in [file for file in folder.rglob("*") if file.is_file() and file not in before]:
        file.unlink()
    for file, data in before.items():
        if not file.exists() or file.read_bytes() != data:
            file.write_bytes(data)


def test_every_edit_deletion_and_addition_is_found(run: Pipeline) -> None:
    folder = run.settings.resolve(run.settings.evidence.path) / run_folder("r")
    before = {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}
    chance = random.Random(2026)
    made: set[str] = set()
    for number in range(EDITS):
        what = tamper(chance, list(before))
        made.add(what)
        assert not verified(run).verified, f"edit {number}, {what}, went unnoticed"
        _restore(folder, before)

    assert verified(run).verified
    assert len(made) > 40
    for kind in (RECEIPTS, QUARANTINE, ARCHIVE, RESOLUTIONS, "closure.json"):
        assert any(what.endswith(kind) for what in made)


@pytest.mark.parametrize("kind", [RECEIPTS, QUARANTINE, ARCHIVE, RESOLUTIONS])
def test_an_edit_that_also_mends_what_the_ledger_notes_of_the_file_is_found(
    tmp_path: Path, kind: str
) -> None:
    import hashlib

    from admitone.ledger.columns import logical_digest

    run = closed_run(tmp_path)
    file = next(file for file in run.ledger.evidence_files("r") if file.kind == kind)
    store = open_evidence_store(run.settings)
    rows = edit_a_cell(random.Random(3), from_parquet(store.read(file.path), kind))
    data = to_parquet(rows)
    store.write(file.path, data)
    with sqlite3.connect(tmp_path / "data/ledger.db") as db:
        db.execute(
            "UPDATE evidence SET digest = ?, checksum = ? WHERE path = ?",
            (logical_digest(rows), hashlib.sha256(data).digest(), file.path),
        )
    db.close()

    assert f"{file.path} is listed with other rows than at the closing" in differences(
        verified(run)
    )


@pytest.mark.parametrize("what", LEDGER_EDITS)
def test_edits_of_the_ledger_are_found(tmp_path: Path, what: str) -> None:
    run = closed_run(tmp_path)
    run.ledger.close()
    sql(run, LEDGER_EDITS[what])

    try:
        assert not verified(run).verified
    except IntegrityError as error:
        assert "do not fit together" in error.problem
