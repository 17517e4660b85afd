"""What holds for the SQLite ledger alone: the file itself."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from admitone.core.errors import ConfigurationError, IntegrityError
from admitone.ledger.books import books
from admitone.ledger.port import (
    Ledger,
)
from admitone.ledger.stored_ledger import StoredLedger
from tests.support.ledgers import (
    DAY,
    NOW,
    ONE,
    RETENTION,
    OpenLedger,
    claim,
    facts,
    granted,
    settle,
    sqlite_ledger,
)
from tests.support.pipeline import Pipeline, event


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(file: Path) -> StoredLedger:
    ledger = sqlite_ledger(file)
    ledger.register_source(ONE, "pipeline", "raw", "topic-1")
    ledger.take_generation("pipeline")
    return ledger


def test_the_books_notice_a_decision_that_is_missing(ledger: Ledger, file: Path) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "x")))))
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("c", "x"), start=2))))
    assert books(ledger)["runs"][0]["balanced"]
    ledger.close()
    with sqlite3.connect(file) as db:
        db.execute("DELETE FROM block WHERE block_id = 1")
    db.close()

    assert not books(ledger)["runs"][0]["balanced"]


def test_the_store_itself_refuses_a_state_the_table_does_not_allow(
    ledger: Ledger, file: Path
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
    ledger.close()
    db = sqlite3.connect(file)
    for statement in (
        "UPDATE block SET state = 'ABORTED'",
        "UPDATE block SET state = 'IN_FLIGHT'",
        "UPDATE source SET mark = -1",
        "UPDATE source SET stream_time = 1 WHERE stream_time IS NOT NULL",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(statement)
    db.close()


def test_a_newer_store_is_refused(open_ledger: OpenLedger, ledger: Ledger, file: Path) -> None:
    ledger.close()
    db = sqlite3.connect(file)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigurationError, match="has version 99"):
        sqlite_ledger(file).runs()


def test_an_empty_ledger_in_the_place_of_one_that_was_lost_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("e1"))
    pipeline.run()
    pipeline.ledger.close()
    for file in (tmp_path / "data").glob("ledger.db*"):
        file.unlink()
    with pytest.raises(IntegrityError, match="belongs to ledger"):
        Pipeline(tmp_path).run()


def test_a_copy_of_the_ledger_that_is_older_by_one_block_is_refused(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, transport={"raw_partitions": 1})
    pipeline.ingest(event("e1"), event("e2"))
    owned = pipeline.own(0, pipeline.boundary.start(pipeline.topic))
    records, present, older = (
        pipeline.records(0), tmp_path / "data" / "ledger.db", tmp_path / "older.db",
    )  # fmt: skip
    list(owned.admit(records.slice(0, 1)))
    pipeline.ledger.close()
    shutil.copy(present, older)
    list(owned.admit(records.slice(1)))
    pipeline.ledger.close()
    older.replace(present)
    with pytest.raises(IntegrityError, match="older than the log"):
        Pipeline(tmp_path, transport={"raw_partitions": 1}).run()


def test_expiry_deletes_in_small_transactions_and_lets_others_in_between(
    ledger: StoredLedger, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    for start in range(0, 35_000, 5_000):
        names = [(f"e{number}", "x", NOW) for number in range(start, start + 5_000)]
        settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(*names, start=start))))
    later = facts(("later", "x", NOW + 200 * DAY), start=35_000)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, later)))
    other = sqlite_ledger(file)
    changes: list[int] = []
    original = ledger._store._database.transaction

    @contextmanager
    def watched(*, durable: bool = True) -> Iterator[sqlite3.Connection]:
        with original(durable=durable) as db:
            before = db.total_changes
            yield db
            changes.append(db.total_changes - before)
        other.count_re_reads(ONE, 1)

    monkeypatch.setattr(ledger._store._database, "transaction", watched)
    assert len(ledger.expire_segments(RETENTION)) == 1

    assert sum(changes) >= 30_000
    assert max(changes) <= 4_000
    assert ledger.sources()[0].re_read == len(changes)
