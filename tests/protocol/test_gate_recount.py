"""The gate recounts: for each of its clauses a run that would be closed if the ledger were simply believed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from admitone.core.decisions import Action, BlockState
from admitone.core.wire import Header
from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.audit.verify import verify_run
from admitone.ledger import open_ledger_reader
from admitone.ledger.block_rows import row_digest
from admitone.ledger.columns import logical_digest, pack
from admitone.transport.port import OUTGOING_SCHEMA
from tests.support.closing import differences, open_run, sql, stores_of
from tests.support.pipeline import Pipeline, event

LEDGER = "data/ledger.db"


def red(pipeline: Pipeline) -> list[str]:
    """Return what blocks the run, which must not close."""
    closing = close_run("r", *stores_of(pipeline), author="ann")
    assert closing.refused
    return [blocker.what for blocker in closing.gate.blockers]


def forget_every_key(pipeline: Pipeline) -> None:
    db = sqlite3.connect(pipeline.settings.home / LEDGER)
    tables = db.execute(
        "SELECT name FROM sqlite_master WHERE name GLOB 'admission.*' AND type = 'table'"
    ).fetchall()
    db.close()
    assert tables
    sql(pipeline, *(f'DELETE FROM "{name}"' for (name,) in tables))  # noqa: S608


def test_an_identity_that_a_damaged_ledger_admitted_twice_is_found_by_sorting(
    tmp_path: Path,
) -> None:
    pipeline = open_run(tmp_path, future_tolerance=86_400_000)
    forget_every_key(pipeline)
    pipeline.ingest(event("e1"))
    pipeline.run()
    assert pipeline.verdicts("e1") == [("ADMITTED", None)] * 2

    assert red(pipeline) == ["identities were admitted twice: 1-0 and 2-0"]


def test_what_a_recount_finds_is_wrong_while_the_run_is_open_too(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path, future_tolerance=86_400_000)
    assert verify_run("r", *stores_of(pipeline)).verified
    forget_every_key(pipeline)
    pipeline.ingest(event("e1"))
    pipeline.run()
    sql(pipeline, "UPDATE source SET mark = mark + 1")
    found = "; ".join(differences(verify_run("r", *stores_of(pipeline))))

    assert "identities were admitted twice: 1-0 and 2-0" in found
    assert "the blocks of a source do not chain" in found


def test_without_an_archive_it_is_found_from_the_ledgers_columns(tmp_path: Path) -> None:
    pipeline = Pipeline(
        tmp_path,
        transport={"raw_partitions": 1},
        pipeline={"run_id": "r"},
        evidence={"archive": False},
    )
    pipeline.ingest(event("e1"), event("e2"))
    pipeline.run()
    assert gate_of("r", *stores_of(pipeline)).green
    forget_every_key(pipeline)
    pipeline.ingest(event("e1"))
    pipeline.run()

    assert red(pipeline) == ["identities were admitted twice: 1-0 and 2-0"]


def admitted_file(pipeline: Pipeline) -> Path:
    (file,) = [
        path
        for path in (pipeline.settings.home / "data/log").rglob("*.parquet")
        if b"payload-hash" in path.read_bytes()
    ]
    return file


def test_a_second_copy_of_an_admitted_record_is_seen(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    records = pq.read_table(admitted_file(pipeline)).slice(0, 1)
    log, topic = pipeline.transport, pipeline.transport.topic("admitted.traffic")
    (partition,) = [number for number, end in enumerate(log.ends(topic)) if end]
    copy = records.add_column(0, "partition", pa.array([partition], pa.int32()))
    epoch = log.init_producer("somebody")
    log.append("somebody", epoch, {"admitted.traffic": copy})

    (found,) = red(pipeline)
    assert found.startswith("records of ours are on the log that the ledger does not know: ")
    assert f"admitted.traffic:{partition}:2" in found


def test_records_of_other_programs_on_the_topic_do_no_harm(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    columns = [[0, 0], [b"k", None], [b"{}", None], [[], None]]
    names = ("partition", "key", "value", "headers")
    log = pipeline.transport
    epoch = log.init_producer("somebody")
    foreign = pa.table(dict(zip(names, columns, strict=True)), schema=OUTGOING_SCHEMA)
    log.append("somebody", epoch, {"admitted.traffic": foreign})
    pipeline.ingest(event("e3"))
    pipeline.run()

    assert gate_of("r", *stores_of(pipeline)).green


def test_records_of_another_run_between_those_of_this_one_are_known(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    for run, name in (("s", "e3"), ("r", "e4"), ("s", "e5")):
        pipeline.ingest(event(name), run=run)
        pipeline.run()
    gate = gate_of("r", *stores_of(pipeline))

    assert gate.green, gate.blockers
    assert "3 records on the log compared" in gate.checks[2].evidence


def test_what_is_being_published_by_another_run_meanwhile_is_not_a_stranger(tmp_path: Path) -> None:
    """Its block is in flight, or it came after the ledger was looked at."""
    pipeline = open_run(tmp_path)
    conclude = pipeline.ledger.conclude

    def crash(*_: object) -> None:
        raise ConnectionError("the worker is gone")

    pipeline.ingest(event("e3"), run="s")
    pipeline.ledger.conclude = crash  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        pipeline.run()
    pipeline.ledger.conclude = conclude  # type: ignore[method-assign]
    assert len(pipeline.ledger.blocks(states=[BlockState.IN_FLIGHT])) == 1
    gate = gate_of("r", *stores_of(pipeline))
    assert gate.green, gate.blockers
    ledger = open_ledger_reader(pipeline.settings)
    with ledger.snapshot():
        ledger.runs()
        pipeline.run()
        pipeline.ingest(event("e4"), run="s")
        pipeline.run()
        gate = gate_of("r", ledger, pipeline.transport, pipeline.settings)
        assert gate.green, gate.blockers


def another_value(rows: pa.Table) -> pa.Table:
    values = rows["value"].to_pylist()
    values[0] = values[0].replace(b"test", b"tost")
    return rows.set_column(1, "value", pa.array(values, pa.binary()))


def another_key(rows: pa.Table) -> pa.Table:
    keys = rows["key"].to_pylist()
    keys[0] = keys[0][:-1] + b"\x09"
    return rows.set_column(0, "key", pa.array(keys, pa.binary()))


def another_header(name: str) -> Callable[[pa.Table], pa.Table]:
    def changed(rows: pa.Table) -> pa.Table:
        headers = rows["headers"].to_pylist()
        for header in headers[0]:
            if header["key"] == name:
                header["value"] = b"\x00" + header["value"][1:]
        return rows.set_column(2, "headers", pa.array(headers, rows["headers"].type))

    changed.__name__ = name
    return changed


def one_header_more(rows: pa.Table) -> pa.Table:
    headers = rows["headers"].to_pylist()
    headers[0].append({"key": "trace", "value": b"1"})
    return rows.set_column(2, "headers", pa.array(headers, rows["headers"].type))


HEADERS = [value for name, value in vars(Header).items() if not name.startswith("_")]
WRITTEN = ["identity", "run", "class", "event-id", "payload-hash", "rules", "business-key",
           "admitted-at", "event-time", "stream-time", "block"]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [another_value, another_key, one_header_more, *map(another_header, WRITTEN)],
    ids=lambda change: change.__name__,
)
def test_every_part_of_a_record_is_compared(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table]
) -> None:
    assert set(WRITTEN) < set(HEADERS)
    pipeline = open_run(tmp_path)
    file = admitted_file(pipeline)
    rows = pq.read_table(file)
    pq.write_table(change(rows), file)

    (found,) = red(pipeline)[-1:]
    assert "on the log" in found


def test_what_is_gone_from_a_folder_log_without_a_truncation_is_missed(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path)
    pipeline.ingest(event("e3"))
    pipeline.run()
    with sqlite3.connect(tmp_path / "data/log/manifest.db") as db:
        topic = pipeline.transport.topic("admitted.traffic")
        db.execute("DELETE FROM file WHERE topic_id = ? AND base_offset = 0", (topic.topic_id,))
    db.close()

    (found,) = red(pipeline)
    assert found.startswith("admissions are not on the log as they were decided")


@pytest.mark.parametrize(
    ("edits", "found"),
    [
        (["DELETE FROM block WHERE block_id = 1", "DELETE FROM block_run WHERE block_id = 1"], "do not chain"),
        (["UPDATE source SET mark = mark + 1"], "do not chain"),
        (["UPDATE source SET decided = decided + 1"], "stream times of sources are wrong"),
        (["UPDATE block SET after_offset = 0 WHERE block_id = 2"], "do not chain"),
        (["UPDATE block SET deliveries = deliveries + 1 WHERE block_id = 2"], "not as they were decided"),
        (["DELETE FROM block_run WHERE block_id = 2"], "are not found under it"),
        (["UPDATE block SET runs = '{\"s\": 1}' WHERE block_id = 2"], "rows of blocks do not say"),
        (["UPDATE block SET row_hash = NULL WHERE block_id = 2"], "rows of blocks do not say"),
        (["UPDATE block SET claimed_at = claimed_at + 1 WHERE block_id = 2"], "rows of blocks do not say"),
    ],
)  # fmt: skip
def test_books_that_do_not_balance_keep_a_run_open(
    tmp_path: Path, edits: list[str], found: str
) -> None:
    pipeline = open_run(tmp_path)
    pipeline.ingest(event("e3"))
    pipeline.run()
    assert gate_of("r", *stores_of(pipeline)).green
    sql(pipeline, *edits)

    assert found in "; ".join(red(pipeline))


@pytest.mark.parametrize("first", [(1, 1), (3, 0), (2, 1)])
def test_a_duplicate_refers_to_an_earlier_admission_of_its_own_identity(
    tmp_path: Path, first: tuple[int, int]
) -> None:
    """Another event, a later block, or itself: the columns are changed, and so are the hashes over them."""
    pipeline = open_run(tmp_path)
    pipeline.ingest(event("e5"), event("e1"), event("e6"))
    pipeline.run()
    pipeline.ingest(event("e7"))
    pipeline.run()
    facts, verdicts, bus = pipeline.ledger.columns(2)
    assert bus is not None
    columns = verdicts.to_pydict()
    columns["first_block"][1], columns["first_ordinal"][1] = first
    changed = pa.table(columns, schema=verdicts.schema)
    (block,) = pipeline.ledger.blocks(ids=[2])
    digest = logical_digest(facts, changed, bus)
    row = row_digest(replace(block, evidence_hash=digest))
    db = sqlite3.connect(tmp_path / LEDGER)
    db.execute("UPDATE verdicts SET verdicts = ? WHERE block_id = 2", (pack(changed),))
    db.execute("UPDATE block SET evidence_hash = ?, row_hash = ? WHERE block_id = 2", (digest, row))
    db.commit()
    db.close()

    assert red(pipeline) == [
        "duplicates or contradictions that their first admission does not bear out"
    ]


def test_every_try_is_kept_from_red_to_green(tmp_path: Path) -> None:
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    pipeline.ingest(b"no json")
    pipeline.run()
    assert close_run("r", *stores_of(pipeline), author="ann", now=10).refused
    pipeline.ledger.dispose(2, [0], Action.DISCARDED, 11, "bob", "no event")
    assert close_run("r", *stores_of(pipeline), author="eve", now=20).closed
    assert close_run("r", *stores_of(pipeline), author="eve", now=30).already
    tries = pipeline.ledger.attempts("r")

    assert [(one.at, one.author, one.closed) for one in tries] == [
        (10, "ann", False),
        (20, "eve", True),
    ]
    assert "quarantined, NOT_JSON" in tries[0].document
    assert pipeline.ledger.attempts("other") == []


def test_another_outcome_for_the_same_delivery_has_another_hash_of_rules(tmp_path: Path) -> None:
    """The ledger keeps both documents; what was decided names the one it was decided by."""
    pipeline = open_run(tmp_path, quarantine_limit=1.0)
    long = event("e3", {"title": "x" * 2_000})
    pipeline.ingest(long)
    pipeline.run()
    stricter = Pipeline(
        tmp_path,
        transport={"raw_partitions": 1},
        pipeline={"run_id": "r", "quarantine_limit": 1.0, "max_event_bytes": 1_500},
    )
    stricter.ingest(long)
    stricter.run()
    first, second = (
        pipeline.decisions(event_id="e3"),
        stricter.decisions(reason="PAYLOAD_TOO_LARGE"),
    )

    assert [row["verdict"] for row in (*first, *second)] == ["ADMITTED", "QUARANTINED"]
    assert first[0]["rules"] != second[0]["rules"]
    kept = {each.hex() for each in pipeline.ledger.rules()}
    assert kept == {first[0]["rules"], second[0]["rules"]}
    sql(pipeline, f"DELETE FROM rules WHERE hash = x'{second[0]['rules']}'")  # noqa: S608
    assert f"rules that decisions name are not kept: {second[0]['rules']}" in red(pipeline)
