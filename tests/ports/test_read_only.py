"""What only reads cannot write: the store refuses it, whatever is asked."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from admitone.analytics.sqlite.sketch_store import SqliteSketchStore
from admitone.core.errors import ConfigurationError
from admitone.infra.sqlite import Database
from admitone.ledger import open_ledger_reader
from admitone.ledger.books import books
from admitone.ledger.stored_ledger import StoredLedger
from admitone.settings import load_settings
from tests.servers.postgres import PostgresServer
from tests.support.command_line import Cli, cli, home
from tests.support.homes import count_everything
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


def test_the_postgres_ledger_s_reader_cannot_write(tmp_path, postgres_server: PostgresServer):
    url = postgres_server.new_schema()
    reader = open_ledger_reader(load_settings(tmp_path, ledger={"url": url}))
    assert reader.runs() == {}
    with (
        reader.snapshot() as db,
        pytest.raises(psycopg.errors.ReadOnlySqlTransaction),
    ):
        db.change("INSERT INTO generation VALUES ('p', 1)")


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
}


@pytest.mark.parametrize("words", READING)
def test_a_command_that_only_reads_opens_nothing_to_write_with(
    words: str, cli: Cli, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*words.split(), *READING[words], "--home", home, "--json"]
    count_everything(load_settings(Path(home)))
    expected = cli(*arguments)

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a command that only reads opened a store to write to")

    monkeypatch.setattr(StoredLedger, "__init__", refuse)
    monkeypatch.setattr(SqliteSketchStore, "__init__", refuse)
    assert expected.code in (0, 5)
    assert cli(*arguments) == expected


@pytest.mark.parametrize("words", [*READING, "reconcile"])
def test_a_command_that_only_reads_makes_no_store(words: str, cli: Cli, tmp_path: Path) -> None:
    done = cli(*words.split(), *READING.get(words, ["--dry-run"]), "--home", str(tmp_path))

    assert done.code in (0, 1, 7)
    assert done.code == 0 or "try" in done.err or words == "topics check"
    assert [file.name for file in tmp_path.rglob("*.db") if file.name != "manifest.db"] == []
