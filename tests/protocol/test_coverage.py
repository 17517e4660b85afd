"""The table of what `verify` covers is true: it names every column there is, and every edit it calls found is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from admitone.core.errors import AdmitoneError
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.artifact import Artifact
from admitone.evidence.audit.coverage import ARTIFACT, EVIDENCE, LEDGER, RECORD, By, not_covered
from admitone.evidence.evidence_file import (
    CLOSURE,
    SEAL,
    closure_path,
    from_parquet,
    run_folder,
    to_parquet,
)
from admitone.evidence.evidence_rows import SCHEMAS
from admitone.transport.port import RECORD_SCHEMA
from tests.servers.postgres import PostgresServer
from tests.support import pipeline as support
from tests.support.closing import closed_run, verified
from tests.support.ledger_edits import PACKED, EditedLedger, Row, another, other_tables
from tests.support.pipeline import Pipeline

LEAST = 300
"""So many edits must be found on each store."""
ROWS = 4
"""Of each table, so many rows are edited."""


IN_ONE_STORE = {
    "run.run_key", "anomaly.run_key", "closing.run_key", "closing_attempt.run_key", "block_run.run_id",
    "block_run.block_id", "anomaly.run_id", "closing.run_id", "closing_attempt.run_id",
    "schema_version.component", "schema_version.version", "last_transaction.connection",
    "last_transaction.number", "last_transaction.at",
}  # fmt: skip
"""What only SQLite or only PostgreSQL has."""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def closed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Pipeline, EditedLedger]]:
    home = tmp_path_factory.mktemp("closed")
    url = str(home / "data/ledger.db")
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.new_schema()
        support.new_ledger = lambda: url
    try:
        run = closed_run(home)
    finally:
        support.new_ledger = None
    ledger = EditedLedger(url)
    yield run, ledger
    ledger.close()


def test_every_column_of_every_table_is_in_the_table(closed: tuple[Pipeline, EditedLedger]) -> None:
    _, ledger = closed
    there = ledger.tables()
    segments = {table for table in there if "." in table}
    assert segments
    for table, columns in there.items():
        if table not in segments:
            assert set(columns) <= LEDGER[table].keys(), table
    every = {(table, name) for table, names in LEDGER.items() for name in names}
    known = {(table, name) for table, names in there.items() for name in names}
    assert {f"{table}.{name}" for table, name in every - known} <= IN_ONE_STORE


def test_every_part_of_a_record_is_in_the_table() -> None:
    assert {*RECORD_SCHEMA.names} - {"timestampType"} == RECORD.keys()
    whys = {each["why"] for each in not_covered()}
    assert len(whys) > 3
    assert not whys & {str(by) for by in By}


def test_every_field_of_the_artifact_and_kind_of_evidence_is_in_the_table() -> None:
    assert ARTIFACT.keys() == Artifact.__annotations__.keys()
    assert {*SCHEMAS, CLOSURE, SEAL} == EVIDENCE.keys()


def other_field(value: Any) -> Any:
    if isinstance(value, dict):
        name = next(iter(value))
        return {**value, name: other_field(value[name])}
    if isinstance(value, list):
        return [*value, value[0]] if value else [{"at": 1, "author": "eve", "gate": ""}]
    return another(value, "") if value != "" else "eve"


def test_every_field_of_the_artifact_is_protected_in_the_ledger_and_beside_it_at_once(
    closed: tuple[Pipeline, EditedLedger],
) -> None:
    run, ledger = closed
    store = open_evidence_store(run.settings)
    before = store.read(closure_path("r"))
    rows = ledger.rows("run")
    (number,) = [n for n, row in enumerate(rows) if row["artifact"] is not None]
    for name in ARTIFACT:
        artifact = orjson.loads(before)
        artifact[name] = other_field(artifact[name])
        data = orjson.dumps(artifact, option=orjson.OPT_SORT_KEYS)
        assert data != before
        with ledger.edited("run", _with(rows, number, "artifact", data)):
            store.write(closure_path("r"), data)
            try:
                assert is_found(run), name
            finally:
                store.write(closure_path("r"), before)
    assert not is_found(run)


def test_an_older_copy_of_every_evidence_file_is_found(
    closed: tuple[Pipeline, EditedLedger],
) -> None:
    """Each kind in turn: gone, cut, emptied of a row and written again as it would be, or another file of its kind."""
    run, _ = closed
    store, tried = open_evidence_store(run.settings), set()
    for path in store.list(run_folder("r")):
        kind = path.rpartition("/")[2] if path.endswith(".json") else path.split("/")[-2]
        before = store.read(path)
        copies = [None, before[:-1], b""]
        if kind in SCHEMAS:
            rows = from_parquet(before, kind)
            copies.append(to_parquet(rows.slice(1)))
        for data in copies:
            if data is None:
                store.delete(path)
            else:
                store.write(path, data)
            try:
                assert is_found(run), (kind, data and len(data))
            finally:
                store.write(path, before)
        tried.add(kind)
    assert tried == EVIDENCE.keys()


def edits(table: str, rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield single edits of a table: what changes, and its rows then."""
    covered = LEDGER[table]
    for index, row in list(enumerate(rows))[:ROWS]:
        for name in row:
            if (table, name) in PACKED and row[name] is not None:
                for cell, packed in other_tables(row[name]):
                    if (name, cell) not in NOT_IN_A_JOURNAL:
                        yield f"change {name}.{cell}", _with(rows, index, name, packed)
                yield f"cut {name}", _with(rows, index, name, bytes(row[name])[:-9])
            elif covered[name].found and not (name == "evidence_at" and row[name] is not None):
                yield f"change {name}", _with(rows, index, name, another(row[name], name))
            if covered[name].found and name == "evidence_at" and row[name] is not None:
                yield f"unset {name}", _with(rows, index, name, None)
        if any(each.found for each in covered.values()):
            yield "delete a row", rows[:index] + rows[index + 1 :]
    if len(rows) > 1:
        for name in rows[0]:
            if covered[name].found and name != "evidence_at" and rows[0][name] != rows[1][name]:
                swapped = _with(rows, 0, name, rows[1][name])
                yield f"swap {name}", _with(swapped, 1, name, rows[0][name])


def _with(rows: list[Row], index: int, name: str, value: Any) -> list[Row]:
    return [*rows[:index], {**rows[index], name: value}, *rows[index + 1 :]]


def is_found(run: Pipeline) -> bool:
    try:
        return not verified(run).verified
    except AdmitoneError:
        return True


NOT_IN_A_JOURNAL = {("deliveries", "timestamp"), ("deliveries", "headers"), ("deliveries", "key")}
"""Of the originals the events are compared; they are there until they expire."""
EXPIRES = {("journal", "delete a row")}
"""What happens to a ledger that nobody edits, too."""


def test_every_edit_that_the_table_calls_found_is_found(
    closed: tuple[Pipeline, EditedLedger], capsys: pytest.CaptureFixture[str]
) -> None:
    run, ledger = closed
    assert not is_found(run)
    tried, missed, impossible = 0, [], 0
    for table in LEDGER:
        rows = ledger.rows(table) if table in ledger.tables() else []
        for what, after in edits(table, rows):
            if (table, what) in EXPIRES or sorted(map(str, after)) == sorted(map(str, rows)):
                continue
            try:
                with ledger.edited(table, after):
                    tried += 1
                    try:
                        if not is_found(run):
                            missed.append(f"{table}: {what}")
                    except Exception as error:
                        missed.append(f"{table}: {what}: {type(error).__name__} {error}")
            except Exception as error:  # the database itself refuses it
                if "constraint" not in str(error).lower() and "unique" not in str(error).lower():
                    raise
                impossible += 1
    with capsys.disabled():
        print(f"\n{tried} edits of the ledger, {len(missed)} missed, {impossible} impossible")
        print(*missed, sep="\n")

    assert missed == []
    assert tried >= LEAST
    assert not is_found(run)
