"""Closing and verifying: no edit, deletion or addition goes unnoticed, and nothing slips in while a run is closed."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from admitone.boundary.reconcile import reconcile
from admitone.cli import main
from admitone.core.decisions import Action, BlockState
from admitone.core.errors import IntegrityError, NotFound, RunIsRed
from admitone.evidence.closure import close_run, gate_of
from admitone.evidence.files import closure_path, from_parquet, run_folder, to_parquet
from admitone.evidence.open import open_evidence, open_store
from admitone.evidence.rows import ARCHIVE, QUARANTINE, RECEIPTS, RESOLUTIONS
from admitone.evidence.store import FolderStore
from admitone.evidence.verify import Verification, repair_and_verify, verify_run
from admitone.ledger.port import Block, Outcome, Resolved
from tests.support import Pipeline, event

EDITS = 220


def closed_run(home: Path) -> Pipeline:
    """Return a closed run with every kind of evidence, and deliveries that came after the closing."""
    pipeline = Pipeline(
        home,
        transport={"raw_partitions": 1},
        pipeline={"quarantine_limit": 1.0, "max_block": 7, "run_id": "r"},
    )
    conclude = pipeline.ledger.conclude

    def unknown_instead(block: Block, epoch: int, outcome: Outcome) -> None:
        conclude(block, epoch, Outcome(BlockState.AMBIGUOUS, None, None, outcome.decided_at))

    pipeline.ingest(event("u1"), event("u2"), event("u1"))
    pipeline.ledger.conclude = unknown_instead  # type: ignore[method-assign]
    pipeline.run()
    pipeline.ledger.conclude = conclude  # type: ignore[method-assign]
    for block in pipeline.ledger.blocks(states=[BlockState.AMBIGUOUS]):
        epoch = pipeline.ledger.take_epoch(block.source, None)
        found = Resolved(BlockState.SETTLED, Action.FOUND, np.array([0, 1]), 77, 99, "ann", "seen")
        pipeline.ledger.resolve(block, epoch, found)
    lines = [event(f"e{number}", {"loadTimeMs": number}) for number in range(9)]
    pipeline.ingest(*lines, lines[0], event("e1", {"pageId": "x"}), b"no json", b'{"a": 1}')
    pipeline.run()
    chosen: dict[tuple[int, Action], list[int]] = defaultdict(list)
    for row in pipeline.decisions(verdict="QUARANTINED"):
        number, ordinal = map(int, row["id"].split("-"))
        contradicts = row["reason"] == "PAYLOAD_MISMATCH"
        chosen[number, Action.KEPT_FIRST if contradicts else Action.DISCARDED].append(ordinal)
    for (number, action), ordinals in chosen.items():
        pipeline.ledger.dispose(number, ordinals, action, 120, "bob", "looked at it")
    open_evidence(pipeline.settings, pipeline.ledger).write_pending(130)
    close_run("r", *stores_of(pipeline))
    pipeline.ingest(event("late"), b"late and malformed")
    pipeline.run()
    return pipeline


def stores_of(pipeline: Pipeline) -> Any:
    return pipeline.ledger, pipeline.transport, pipeline.settings


def verified(pipeline: Pipeline) -> Verification:
    return verify_run("r", *stores_of(pipeline))


def differences(found: Verification) -> list[str]:
    return [difference for each in found.comparisons for difference in each.differences]


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


# --- tampering ----------------------------------------------------------------------------------------------

Edit = Callable[[random.Random, Path, list[Path]], None]


def flip_a_bit(chance: random.Random, target: Path, _: list[Path]) -> None:
    data = bytearray(target.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    target.write_bytes(bytes(data))


def cut_off(chance: random.Random, target: Path, _: list[Path]) -> None:
    data = target.read_bytes()
    target.write_bytes(data[: chance.randrange(len(data))])


def append_bytes(chance: random.Random, target: Path, _: list[Path]) -> None:
    target.write_bytes(target.read_bytes() + chance.randbytes(chance.randint(1, 9)))


def insert_a_byte(chance: random.Random, target: Path, _: list[Path]) -> None:
    data = target.read_bytes()
    place = chance.randrange(len(data))
    target.write_bytes(data[:place] + chance.randbytes(1) + data[place:])


def put_another_file_in_its_place(chance: random.Random, target: Path, files: list[Path]) -> None:
    other = chance.choice([file for file in files if file.read_bytes() != target.read_bytes()])
    target.write_bytes(other.read_bytes())


def delete(_: random.Random, target: Path, __: list[Path]) -> None:
    target.unlink()


def rename(chance: random.Random, target: Path, _: list[Path]) -> None:
    target.rename(target.with_name(f"{chance.randrange(10**12):012d}-{'0' * 16}{target.suffix}"))


def add_a_copy_named_as_ours(chance: random.Random, target: Path, _: list[Path]) -> None:
    name = f"{chance.randrange(10**12):012d}-{chance.getrandbits(64):016x}.parquet"
    shutil.copy(target, target.with_name(name))


def add_a_copy_in_another_folder(chance: random.Random, target: Path, _: list[Path]) -> None:
    folder = target.parents[1 if target.suffix == ".parquet" else 0]
    kind = chance.choice([RECEIPTS, QUARANTINE, ARCHIVE, RESOLUTIONS, "more"])
    (folder / kind).mkdir(exist_ok=True)
    shutil.copy(target, folder / kind / f"{chance.getrandbits(32)}-{target.name}")


def add_something_else(chance: random.Random, target: Path, _: list[Path]) -> None:
    target.with_name(f"note{chance.getrandbits(32)}").write_bytes(b"")


BYTE_EDITS: list[Edit] = [
    flip_a_bit, cut_off, append_bytes, insert_a_byte, put_another_file_in_its_place, delete, rename,
    add_a_copy_named_as_ours, add_a_copy_in_another_folder, add_something_else,
]  # fmt: skip


def edit_a_cell(chance: random.Random, rows: pa.Table) -> pa.Table:
    name = chance.choice(rows.column_names)
    values = rows[name].to_pylist()
    place = chance.randrange(len(values))
    values[place] = _another(values[place], rows.schema.field(name).type)
    index = rows.column_names.index(name)
    return rows.set_column(
        index, rows.schema.field(name), pa.array(values, rows.schema.types[index])
    )


def _another(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        if pa.types.is_list(kind):
            return [{"key": "a", "value": b"b"}]
        return 7 if pa.types.is_integer(kind) else pa.scalar("x" * 32).cast(kind).as_py()
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return [*value, {"key": "a", "value": None}]
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"x"
    return f"{value} "


def delete_a_row(chance: random.Random, rows: pa.Table) -> pa.Table:
    place = chance.randrange(rows.num_rows)
    return pa.concat_tables([rows.slice(0, place), rows.slice(place + 1)])


def repeat_a_row(chance: random.Random, rows: pa.Table) -> pa.Table:
    place = chance.randrange(rows.num_rows)
    return pa.concat_tables([rows, rows.slice(place, 1)])


def swap_two_rows(chance: random.Random, rows: pa.Table) -> pa.Table:
    order = list(range(rows.num_rows))
    one, other = chance.sample(order, 2)
    order[one], order[other] = other, one
    return rows.take(order)


ROW_EDITS = [edit_a_cell, edit_a_cell, delete_a_row, repeat_a_row, swap_two_rows]


def edit_a_field(chance: random.Random, target: Path, _: list[Path]) -> None:
    document = json.loads(target.read_bytes())
    holder, key = chance.choice(list(_fields(document)))
    value = holder[key]
    if isinstance(value, bool) or value is None:
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = value + chance.choice([-1, 1])
    elif isinstance(value, str):
        holder[key] = value[:-1] + ("0" if value[-1:] != "0" else "1")
    elif isinstance(value, list):
        holder[key] = [*value, 1]
    target.write_bytes(json.dumps(document, sort_keys=True, separators=(",", ":")).encode())


def spell_differently(_: random.Random, target: Path, __: list[Path]) -> None:
    target.write_bytes(json.dumps(json.loads(target.read_bytes()), indent=1).encode())


def _fields(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        if isinstance(value[key], dict) or (isinstance(value[key], list) and value[key]):
            yield from _fields(value[key])
        else:
            yield value, key


def tamper(chance: random.Random, files: list[Path]) -> str:
    """Make one change to a run's folder; return what it was."""
    target = chance.choice(files)
    if target.suffix == ".json":
        edit = chance.choice([*BYTE_EDITS, edit_a_field, edit_a_field, spell_differently])
        edit(chance, target, files)
        return f"{edit.__name__} {target.name}"
    if chance.random() < 0.5:
        edit = chance.choice(BYTE_EDITS)
        edit(chance, target, files)
        return f"{edit.__name__} {target.parent.name}"
    rows = from_parquet(target.read_bytes(), target.parent.name)
    possible = ROW_EDITS if rows.num_rows > 1 else ROW_EDITS[:-1]
    change = chance.choice(possible)
    target.write_bytes(to_parquet(change(chance, rows)))
    return f"{change.__name__} {target.parent.name}"


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


def _restore(folder: Path, before: dict[Path, bytes]) -> None:
    for file in [file for file in folder.rglob("*") if file.is_file() and file not in before]:
        file.unlink()
    for file, data in before.items():
        if not file.exists() or file.read_bytes() != data:
            file.write_bytes(data)


@pytest.mark.parametrize("kind", [RECEIPTS, QUARANTINE, ARCHIVE, RESOLUTIONS])
def test_an_edit_that_also_mends_what_the_ledger_notes_of_the_file_is_found(
    tmp_path: Path, kind: str
) -> None:
    import hashlib

    from admitone.ledger.columns import logical_digest

    run = closed_run(tmp_path)
    file = next(file for file in run.ledger.evidence_files("r") if file.kind == kind)
    store = open_store(run.settings)
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


LEDGER_EDITS = {
    "artifact": "UPDATE run SET artifact = CAST(replace(CAST(artifact AS TEXT), '\"rows\":', '\"rows\":1') AS BLOB)",
    "no artifact": "UPDATE run SET artifact = NULL",
    "a mark in the artifact": "UPDATE run SET artifact = CAST(replace(CAST(artifact AS TEXT), '\"offset\":', "
    "'\"offset\":-') AS BLOB)",
    "verdicts": "UPDATE verdicts SET verdicts = (SELECT verdicts FROM verdicts WHERE block_id = 2) WHERE block_id = 3",
    "facts": "UPDATE facts SET facts = (SELECT facts FROM facts WHERE block_id = 2) WHERE block_id = 3",
    "a resolution's author": "UPDATE resolution SET author = 'eve' WHERE resolution_id = 2",
    "a resolution": "DELETE FROM resolution WHERE resolution_id = 2",
    "a block": "DELETE FROM block WHERE block_id = 3",
    "a file": "DELETE FROM evidence WHERE kind = 'quarantine'",
    "a publish time": "UPDATE block SET published_at = published_at + 1 WHERE block_id = 2",
}


@pytest.mark.parametrize("what", LEDGER_EDITS)
def test_edits_of_the_ledger_are_found(tmp_path: Path, what: str) -> None:
    run = closed_run(tmp_path)
    run.ledger.close()
    db = sqlite3.connect(tmp_path / "data/ledger.db")
    for (trigger,) in db.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
        db.execute(f"DROP TRIGGER {trigger}")
    db.execute(LEDGER_EDITS[what])
    db.commit()
    db.close()

    try:
        assert not verified(run).verified
    except IntegrityError as error:
        assert "do not fit together" in error.problem


# --- repair -------------------------------------------------------------------------------------------------


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
    assert len(found.repaired.removed) == 1
    assert len(found.repaired.rewritten) == len(run.ledger.evidence_files("r")) + 1
    assert found.repaired.lost == []


def test_an_edited_artifact_in_the_ledger_is_not_spread_by_a_repair(tmp_path: Path) -> None:
    run = closed_run(tmp_path)
    before = open_store(run.settings).read(closure_path("r"))
    db = sqlite3.connect(tmp_path / "data/ledger.db")
    db.execute("DROP TRIGGER closed_runs_stay_closed")
    db.execute(LEDGER_EDITS["artifact"])
    db.commit()
    db.close()

    assert not repair_and_verify("r", *stores_of(run)).verified
    assert open_store(run.settings).read(closure_path("r")) == before


def test_a_file_of_somebody_else_is_reported_and_left_alone(tmp_path: Path) -> None:
    run = closed_run(tmp_path)
    open_store(run.settings).write(f"{run_folder('r')}/notes.txt", b"mine")
    found = repair_and_verify("r", *stores_of(run))

    assert any("notes.txt is listed nowhere" in difference for difference in differences(found))
    assert open_store(run.settings).read(f"{run_folder('r')}/notes.txt") == b"mine"


def test_a_file_rewritten_in_other_bytes_is_noted_and_still_verifies(tmp_path: Path) -> None:
    run = closed_run(tmp_path)
    file = next(file for file in run.ledger.evidence_files("r") if file.kind == RECEIPTS)
    open_store(run.settings).delete(file.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("admitone.evidence.files._REPEATING", set())
        found = repair_and_verify("r", *stores_of(run))

    assert found.verified
    assert found.notes == [f"{file.path} was written again since the closing, with the same rows"]


# --- closing ------------------------------------------------------------------------------------------------


def open_run(home: Path, **pipeline: Any) -> Pipeline:
    made = Pipeline(home, transport={"raw_partitions": 1}, pipeline={"run_id": "r", **pipeline})
    made.ingest(event("e1"), event("e2"))
    made.run()
    return made


def test_a_claim_between_the_check_and_the_closing_stops_it_and_leaves_no_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = open_run(tmp_path)
    write = FolderStore.write

    def claim_first(self: FolderStore, path: str, data: bytes) -> None:
        write(self, path, data)
        if path == closure_path("r"):
            pipeline.ingest(event("e3"))
            generation = pipeline.boundary.start(pipeline.topic)
            list(pipeline.own(0, generation).admit(pipeline.records(0)))

    with monkeypatch.context() as patch:
        patch.setattr(FolderStore, "write", claim_first)
        with pytest.raises(RunIsRed, match="took deliveries"):
            close_run("r", *stores_of(pipeline))

    assert pipeline.ledger.runs() == {"r": "OPEN"}
    assert pipeline.verdicts("e3") == [("ADMITTED", None)]
    with pytest.raises(NotFound):
        open_store(pipeline.settings).read(closure_path("r"))


def test_no_claim_slips_in_while_a_run_is_being_closed(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    stop = threading.Event()

    def deliver() -> None:
        feeding = Pipeline(
            tmp_path,
            transport={"raw_partitions": 1},
            pipeline={"run_id": "r", "quarantine_limit": 1.0},
        )
        for number in range(10, 40):
            if stop.wait(number % 7 * 0.05):
                return
            feeding.ingest(event(f"e{number}"))
            feeding.run()

    feeder = threading.Thread(target=deliver)
    feeder.start()
    artifact = None
    try:
        while artifact is None:
            try:
                artifact = close_run("r", *stores_of(pipeline))
            except RunIsRed:
                continue
    finally:
        stop.set()
        feeder.join(60)
    pipeline.ingest(event("afterwards"))
    pipeline.run()
    rows = pipeline.decisions()

    assert artifact["books"]["admitted"] == sum(row["verdict"] == "ADMITTED" for row in rows)
    assert {row["reason"] for row in rows if row["verdict"] != "ADMITTED"} == {"RUN_CLOSED"}
    assert differences(verified(pipeline)) == []


def test_a_crash_before_the_ledger_closes_leaves_an_open_run_that_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = open_run(tmp_path)

    def crash(*_: object) -> None:
        raise ConnectionError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ledger, "close_run", crash)
        with pytest.raises(ConnectionError):
            close_run("r", *stores_of(pipeline))
    stray = open_store(pipeline.settings).read(closure_path("r"))
    found = verified(pipeline)
    assert (found.verified, found.state, len(found.notes)) == (True, "OPEN", 1)
    pipeline.ingest(event("e3"))
    pipeline.run()
    artifact = close_run("r", *stores_of(pipeline))

    assert artifact["books"]["admitted"] == 3
    assert open_store(pipeline.settings).read(closure_path("r")) != stray
    assert verified(pipeline).verified


def test_of_two_who_close_at_once_the_second_leaves_the_firsts_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = open_run(tmp_path)
    close = pipeline.ledger.close_run

    def somebody_else_first(run_id: str, data: bytes, newest: int) -> None:
        close(run_id, data.replace(b'"closed_at":', b'"closed_at":1'), newest)
        close(run_id, data, newest)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline.ledger, "close_run", somebody_else_first)
        with pytest.raises(RunIsRed):
            close_run("r", *stores_of(pipeline))
    assert verified(pipeline).verified


def test_closing_removes_what_an_interrupted_writer_left(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    left = f"{run_folder('r')}/receipts/000000000001-0123456789abcdef.parquet"
    open_store(pipeline.settings).write(left, b"half of it")
    close_run("r", *stores_of(pipeline))

    assert left not in open_store(pipeline.settings).list("runs")
    assert verified(pipeline).verified


def test_the_artifact_says_what_was_closed_and_under_which_rules(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    artifact = close_run("r", *stores_of(pipeline))
    files = pipeline.ledger.evidence_files("r")

    assert artifact["books"]["admitted"] == artifact["receipts"] == 2
    assert [entry["path"] for entry in artifact["evidence"]] == [file.path for file in files]
    assert [entry["checksum"] for entry in artifact["evidence"]] == [
        file.checksum.hex() for file in files
    ]
    assert [mark["offset"] for mark in artifact["marks"]] == [1]
    assert artifact["parameters"]["retention_ms"] == pipeline.settings.dedup.retention
    assert artifact["gate"]["gate"] == "green"
    assert artifact["waived"] == []


def test_a_required_family_can_be_waived_by_name_only(tmp_path: Path) -> None:
    (tmp_path / "admitone.toml").write_text(
        '[[topics]]\nfamily = "traffic"\ntopic = "t"\nevent_types = ["page_view"]\n'
        '[[topics]]\nfamily = "orders"\ntopic = "o"\nevent_types = ["purchase"]\nrequired = true\n'
    )
    pipeline = open_run(tmp_path)
    with pytest.raises(RunIsRed, match="family 'orders' has no admissions"):
        close_run("r", *stores_of(pipeline))
    with pytest.raises(NotFound, match="'order'"):
        close_run("r", *stores_of(pipeline), waived=["order"])
    artifact = close_run("r", *stores_of(pipeline), waived=["orders"])

    assert artifact["waived"] == ["orders"]
    assert differences(verified(pipeline)) == []


# --- the gate, criterion by criterion -----------------------------------------------------------------------


def blockers(pipeline: Pipeline) -> dict[str, list[tuple[str, int]]]:
    return {
        str(check.criterion).split()[0]: [(b.kind, b.count) for b in check.blockers]
        for check in gate_of("r", *stores_of(pipeline)).checks
        if check.blockers
    }


def sql(pipeline: Pipeline, statement: str) -> None:
    with sqlite3.connect(pipeline.settings.home / "data/ledger.db") as db:
        db.execute(statement)
    db.close()


def test_a_contradiction_whose_anomaly_was_made_to_vanish_is_recounted(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    pipeline.ingest(event("e1", {"pageId": "other"}))
    pipeline.run()
    assert blockers(pipeline)["contradictions"] == [("contradiction", 1)]
    sql(pipeline, "DELETE FROM anomaly")

    assert blockers(pipeline)["contradictions"] == [("contradiction", 1)]
    assert blockers(pipeline)["evidence"] == [("quarantined", 1)]


def test_a_record_that_is_not_where_the_ledger_says_is_drift(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    (file,) = [
        path for path in (tmp_path / "data/log").rglob("*.parquet")
        if b"payload-hash" in path.read_bytes()
    ]  # fmt: skip
    import pyarrow.parquet as pq

    rows = pq.read_table(file)
    pq.write_table(rows.take([1, 0]), file)

    assert blockers(pipeline) == {"no": [("drift", 2)]}


def test_places_that_the_log_no_longer_has_are_counted_not_missed(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    topic = pipeline.transport.topic("admitted.traffic")
    for partition, end in enumerate(pipeline.transport.ends(topic)):
        pipeline.transport.truncate(topic, partition, end)  # type: ignore[attr-defined]
    gate = gate_of("r", *stores_of(pipeline))
    assert gate.green
    assert "0 places on the log read, 2 no longer there" in gate.checks[2].evidence
    close_run("r", *stores_of(pipeline))
    pipeline.transport.delete_topic("admitted.traffic")

    found = verified(pipeline)
    assert found.verified
    assert found.notes == ["today topic 'admitted.traffic' does not exist"]


def test_late_publishes_are_known_by_their_origin(tmp_path: Path) -> None:
    """A block that never got to the log is published late; its places there are compared like all others."""
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1}, pipeline={"run_id": "r"})
    pipeline.ingest(event("e1"), event("e2"))

    def lose(*_: object) -> None:
        raise ConnectionError("no answer")

    conclude = pipeline.ledger.conclude

    def unknown_instead(block: Block, epoch: int, outcome: Outcome) -> None:
        conclude(block, epoch, Outcome(BlockState.AMBIGUOUS, None, None, outcome.decided_at))

    generation = pipeline.boundary.start(pipeline.topic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline.transport, "append", lose)
        patch.setattr(pipeline.ledger, "conclude", unknown_instead)
        with pytest.raises(ConnectionError):
            list(pipeline.own(0, generation).admit(pipeline.records(0)))
    list(reconcile(pipeline.boundary))
    (resolution,) = pipeline.ledger.resolutions()
    assert resolution.action is Action.PUBLISHED_LATE
    pipeline.run()
    gate = gate_of("r", *stores_of(pipeline))

    assert gate.green
    assert "2 places on the log read, 0 no longer there" in gate.checks[2].evidence
    close_run("r", *stores_of(pipeline))
    assert verified(pipeline).verified
    assert pipeline.problems() == []


# --- the command --------------------------------------------------------------------------------------------


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
    open_store(run.settings).delete(file.path)
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
    open_store(run.settings).delete(file.path)
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
