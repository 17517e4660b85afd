"""What only reads cannot write: the store refuses it, whatever is asked."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from admitone.analytics.sqlite.sketch_store import SqliteSketchStore
from admitone.boundary import open_boundary
from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.release import Signature
from admitone.core.errors import ConfigurationError, NotFound
from admitone.core.windows import GLOBAL
from admitone.infra import postgres
from admitone.infra.sqlite import Database
from admitone.ledger import open_ledger, open_ledger_reader
from admitone.ledger.books import books
from admitone.ledger.postgres.schema import MIGRATIONS as POSTGRES_MIGRATIONS
from admitone.ledger.stored_ledger import StoredLedger
from admitone.ops.quarantine import discard, release
from admitone.ops.stores import Stores
from admitone.results.history import HistoryReader
from admitone.settings import load_settings
from tests.servers.postgres import PostgresServer
from tests.support.command_line import Cli, cli, home
from tests.support.homes import count_everything, publish_everything, serving
from tests.support.pipeline import Pipeline, event

__all__ = ["cli", "home"]

MIGRATIONS = ("CREATE TABLE one (number INTEGER)", "CREATE TABLE two (number INTEGER)")


def read_only(path: Path) -> Database:
    return Database(path, MIGRATIONS, read_only=True)


def numbers(database: Database) -> list[int]:
    with database.snapshot() as db:
        return [number for (number,) in db.execute("SELECT number FROM one")]


def test_a_reader_makes_no_file_and_sees_what_a_writer_makes_later(tmp_path):
    path = tmp_path / "folder" / "store.db"
    reader = read_only(path)
    assert numbers(reader) == []
    assert list(tmp_path.iterdir()) == []

    with Database(path, MIGRATIONS).transaction() as db:
        db.execute("INSERT INTO one VALUES (7)")
    assert numbers(reader) == [7]


def test_a_reader_that_is_within_a_snapshot_goes_on_reading_what_it_saw(tmp_path):
    reader = read_only(tmp_path / "store.db")
    with reader.snapshot():
        assert numbers(reader) == []
        with Database(tmp_path / "store.db", MIGRATIONS).transaction() as db:
            db.execute("INSERT INTO one VALUES (7)")
        assert numbers(reader) == []
    assert numbers(reader) == [7]


@pytest.mark.parametrize("made", [False, True], ids=["nothing there yet", "made"])
def test_a_write_through_a_reader_s_connection_is_refused(made, tmp_path):
    if made:
        with Database(tmp_path / "store.db", MIGRATIONS).transaction():
            pass
    with (
        read_only(tmp_path / "store.db").snapshot() as db,
        pytest.raises(sqlite3.OperationalError, match="readonly database"),
    ):
        db.execute("INSERT INTO one VALUES (1)")


def test_an_older_store_is_not_brought_up_to_date_by_a_reader(tmp_path):
    with Database(tmp_path / "store.db", MIGRATIONS[:1]).transaction():
        pass
    with pytest.raises(ConfigurationError, match=r"has version 1, this program reads 2.*reconcile"):
        numbers(read_only(tmp_path / "store.db"))


def test_the_embedded_ledger_s_reader_cannot_write(tmp_path):
    settings = load_settings(tmp_path)
    reader = open_ledger_reader(settings)
    assert books(reader) == {"runs": []}
    assert not (tmp_path / "data").exists()

    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("a"))
    pipeline.run()
    assert books(reader) == books(pipeline.ledger)
    with (
        reader.snapshot() as db,
        pytest.raises(sqlite3.OperationalError, match="readonly database"),
    ):
        db.change("UPDATE run SET state = 'CLOSED'")


def test_the_postgres_ledger_s_reader_makes_no_table_and_sees_what_a_writer_makes_later(
    tmp_path: Path, postgres_url: str, postgres_server: PostgresServer
) -> None:
    settings = load_settings(tmp_path, ledger={"url": postgres_url})
    reader = open_ledger_reader(settings)
    with reader.snapshot():
        assert books(reader) == {"runs": []}
        assert postgres_server.tables(postgres_url) == []
        pipeline = Pipeline(tmp_path, ledger={"url": postgres_url})
        pipeline.ingest(event("a"))
        pipeline.run()
        assert books(reader) == {"runs": []}
    assert books(reader) == books(pipeline.ledger)
    assert [run["admitted"] for run in books(reader)["runs"]] == [1]


def test_the_postgres_ledger_s_reader_cannot_write(tmp_path: Path, postgres_url: str) -> None:
    settings = load_settings(tmp_path, ledger={"url": postgres_url})
    open_ledger(settings).take_generation("p")
    with (
        open_ledger_reader(settings).snapshot() as db,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        db.change("INSERT INTO generation VALUES ('q', 1)")


def test_an_older_database_is_not_brought_up_to_date_by_a_reader(
    tmp_path: Path, postgres_url: str
) -> None:
    postgres.Database(postgres_url, "ledger", POSTGRES_MIGRATIONS[:1]).read(lambda _: None)
    known = len(POSTGRES_MIGRATIONS)
    reader = open_ledger_reader(load_settings(tmp_path, ledger={"url": postgres_url}))
    with pytest.raises(ConfigurationError, match=f"version 1, this program reads {known}.*run"):
        reader.runs()


def test_the_history_s_reader_makes_no_table(
    postgres_url: str, postgres_server: PostgresServer
) -> None:
    reader = HistoryReader(postgres_url)
    assert (reader.windows(), reader.result(GLOBAL, "url")) == ({}, None)
    assert postgres_server.tables(postgres_url) == []


READING = {
    "books": [],
    "decisions": [],
    "receipt": ["e1"],
    "status": [],
    "quarantine list": [],
    "quarantine show": ["1-2"],
    "verify": ["r1"],
    "close": ["r1", "--dry-run"],
    "topics check": [],
    "top": ["--dimension", "url"],
    "item": ["url", "/a"],
    "trend": ["--dimension", "url"],
    "windows": [],
    "size": [],
    "reconcile": ["--dry-run"],
}


def keep_in_postgres(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let every home have its ledger and its history in a database."""
    monkeypatch.setenv("ADMITONE_LEDGER__URL", url)
    monkeypatch.setenv("ADMITONE_HISTORY__KIND", "postgresql")
    monkeypatch.setenv("ADMITONE_HISTORY__URL", url)


def _refuse(*_: object) -> NoReturn:
    raise AssertionError("what only reads opened a store to write to, or wrote")


@pytest.mark.parametrize("words", READING)
def test_a_command_that_only_reads_opens_nothing_to_write_with(
    words: str, cli: Cli, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*words.split(), *READING[words], "--home", home, "--json"]
    count_everything(load_settings(Path(home)))
    expected = cli(*arguments)

    monkeypatch.setattr(StoredLedger, "__init__", _refuse)
    monkeypatch.setattr(SqliteSketchStore, "__init__", _refuse)
    assert expected.code in (0, 5)
    assert cli(*arguments) == expected


@pytest.mark.parametrize("words", READING)
def test_a_command_that_only_reads_makes_no_store(words: str, cli: Cli, tmp_path: Path) -> None:
    done = cli(*words.split(), *READING[words], "--home", str(tmp_path))

    assert done.code in (0, 1, 7)
    assert done.code == 0 or "try" in done.err or words == "topics check"
    assert [file.name for file in tmp_path.rglob("*.db") if file.name != "manifest.db"] == []


@pytest.mark.parametrize("words", READING)
def test_a_command_that_only_reads_makes_no_table(
    words: str,
    cli: Cli,
    tmp_path: Path,
    postgres_url: str,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_in_postgres(monkeypatch, postgres_url)
    done = cli(*words.split(), *READING[words], "--home", str(tmp_path))

    assert done.code in (0, 1, 7)
    assert done.code == 0 or "try" in done.err or words == "topics check"
    assert postgres_server.tables(postgres_url) == []


def test_a_role_that_may_only_select_is_answered_the_same(
    cli: Cli,
    tmp_path: Path,
    postgres_url: str,
    postgres_server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep_in_postgres(monkeypatch, postgres_url)
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"), event("e1", {"url": "/other"}), run="r1")
    pipeline.run()
    count_everything(pipeline.settings)
    publish_everything(pipeline.settings)

    asked = [
        [*words.split(), *more, "--home", str(tmp_path), "--json"]
        for words, more in READING.items()
    ]
    expected = [cli(*words) for words in asked]
    keep_in_postgres(monkeypatch, postgres_server.reader_of(postgres_url))
    assert [cli(*words) for words in asked] == expected
    # The run is red, nothing was quarantined under the id that is asked for, no topic was made by `topics create`.
    codes = {words: done.code for words, done in zip(READING, expected, strict=True) if done.code}
    assert codes == {"close": 5, "quarantine show": 1, "topics check": 7}


def test_a_dry_run_looks_at_what_a_door_left_in_flight_with_a_reader(
    cli: Cli, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = DoorSlot(open_boundary(load_settings(Path(home))), 0)

    def end_here(name: str) -> None:
        if name == "boundary.claimed":
            raise KeyboardInterrupt

    monkeypatch.setattr("admitone.boundary.partition.crash_point", end_here)
    with pytest.raises(KeyboardInterrupt):
        list(slot.admit([Delivery(event("e9"))]))

    monkeypatch.setattr(StoredLedger, "__init__", _refuse)
    monkeypatch.setenv("ADMITONE_PIPELINE__CLAIM_LEASE", "1d")
    looked = ["reconcile", "--dry-run", "--home", home, "--json"]
    assert (cli(*looked).document["blocks"], cli(*looked).document["remaining"]) == ([], 1)
    monkeypatch.setenv("ADMITONE_PIPELINE__CLAIM_LEASE", "1ms")
    (block,) = cli(*looked).document["blocks"]
    assert (block["state"], block["found"]) == ("IN_FLIGHT", "absent")


def test_what_is_to_be_released_or_discarded_is_looked_up_with_a_reader(tmp_path: Path) -> None:
    stores, why = Stores(load_settings(tmp_path)), Signature("ann", "why")
    with pytest.raises(NotFound):
        discard(stores, ["1-0"], why)
    with pytest.raises(NotFound):
        release(stores, ["1-0"], why, None)
    assert list(tmp_path.rglob("*.db")) == []


def test_a_service_that_is_only_asked_makes_no_store(tmp_path: Path) -> None:
    with (
        serving(tmp_path, ADMITONE_SERVICE__EVIDENCE_INTERVAL="10ms") as running,
        running.client() as client,
    ):
        for path in ("status", "runs", "decisions", "quarantine", "dimensions"):
            assert client.get(f"/v1/{path}").status_code == 200
        refused = client.post("/v1/quarantine/1-0/discard", json={"reason": "why"})
        assert refused.status_code == 404
    assert [file.name for file in tmp_path.rglob("*.db") if file.name != "manifest.db"] == []
