"""Verifying and repairing closed and open runs."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from admitone.cli import main
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.verify import repair_and_verify
from admitone.evidence.evidence_file import closure_path, run_folder
from admitone.evidence.evidence_rows import ARCHIVE, QUARANTINE, RECEIPTS
from tests.support.closing import closed_run, differences, open_run, sql, stores_of
from tests.support.tampering import LEDGER_EDITS


def test_repair_brings_a_closed_run_back(tmp_path: Path) -> None:
    run = closed_run(tmp_path)
    folder = run.settings.resolve(run.settings.evidence.path) / run_folder("r")
    for file in list(folder.rglob("*.parquet")):
        file.write_bytes(file.read_bytes()[:-1])
    (folder / "closure.json").unlink()
    shutil.copy(
        next(folder.rglob("*.parquet")), folder / RECEIPTS / f"{'9' * 12}-{'a' * 16}.parquet"
    )
    found = repair_and_verify("r", *stores_of(run))

    assert found.verified
    assert found.repaired is not None
    assert len(found.repaired.set_aside) == 1
    assert len(found.repaired.rewritten) == len(run.ledger.evidence_files("r")) + 1
    assert found.repaired.lost == []


def test_an_edited_artifact_in_the_ledger_is_not_spread_by_a_repair(tmp_path: Path) -> None:
    run = closed_run(tmp_path)
    before = open_evidence_store(run.settings).read(closure_path("r"))
    sql(run, LEDGER_EDITS["artifact"])

    assert not repair_and_verify("r", *stores_of(run)).verified
    assert open_evidence_store(run.settings).read(closure_path("r")) == before


def test_a_file_of_somebody_else_is_reported_and_left_alone(tmp_path: Path) -> None:
    run = closed_run(tmp_path)
    open_evidence_store(run.settings).write(f"{run_folder('r')}/notes.txt", b"mine")
    found = repair_and_verify("r", *stores_of(run))

    assert any("notes.txt is listed nowhere" in difference for difference in differences(found))
    assert open_evidence_store(run.settings).read(f"{run_folder('r')}/notes.txt") == b"mine"


def test_a_file_rewritten_in_other_bytes_is_noted_and_still_verifies(tmp_path: Path) -> None:
    run = closed_run(tmp_path)
    file = next(file for file in run.ledger.evidence_files("r") if file.kind == RECEIPTS)
    open_evidence_store(run.settings).delete(file.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("admitone.evidence.evidence_file._REPEATING", set())
        found = repair_and_verify("r", *stores_of(run))

    assert found.verified
    assert found.notes == [f"{file.path} was written again since the closing, with the same rows"]


def cli(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["admitone", *arguments])
        capfd.readouterr()
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    captured = capfd.readouterr()
    return code, captured.out + captured.err


def test_the_command_exits_with_seven_until_it_is_repaired(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = closed_run(tmp_path)
    at = ("--home", str(tmp_path))
    code, text = cli(capfd, "verify", "r", *at)
    assert (code, "differs" in text) == (0, False)
    file = next(file for file in run.ledger.evidence_files("r") if file.kind == ARCHIVE)
    open_evidence_store(run.settings).delete(file.path)
    code, text = cli(capfd, "verify", "r", *at)
    assert code == 7
    assert "is missing or was changed" in text.replace("\n", " ")
    assert "--repair" in text
    code, text = cli(capfd, "verify", "r", "--json", *at)
    assert (code, json.loads(text)["verified"]) == (7, False)
    code, text = cli(capfd, "verify", "r", "--repair", "--json", *at)
    assert (code, json.loads(text)["repaired"]["rewritten"]) == (0, [file.path])


def test_what_is_lost_is_said_and_exits_with_seven(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = closed_run(tmp_path)
    run.ledger.expire_journal(1_000)
    file = next(file for file in run.ledger.evidence_files("r") if file.kind == QUARANTINE)
    open_evidence_store(run.settings).delete(file.path)
    code, text = cli(capfd, "verify", "r", "--repair", "--home", str(tmp_path))

    assert code == 7
    assert "is lost" in text.replace("\n", " ")


def test_an_open_run_is_compared_with_the_ledger_and_red_is_not_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    pipeline.ingest(b"no json")
    pipeline.run()
    assert cli(capfd, "verify", "r", "--home", str(tmp_path))[0] == 0
    assert cli(capfd, "close", "r", "--home", str(tmp_path))[0] == 5
    assert cli(capfd, "verify", "nobody", "--home", str(tmp_path))[0] == 1
