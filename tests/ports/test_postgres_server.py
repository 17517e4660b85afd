"""A server that is away, slow, full, killed or misspelled: a clear error, and nothing lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import psycopg
import pytest
from psycopg import sql

from admitone.core.decisions import BlockState
from admitone.core.errors import (
    ConfigurationError,
    IntegrityError,
    ServiceUnreachable,
)
from admitone.infra.postgres_errors import explained
from admitone.ledger import open_ledger
from admitone.ledger.books import books
from admitone.ledger.model import Outcome
from admitone.ledger.postgres.store import PostgresStore
from admitone.ledger.stored_ledger import StoredLedger
from admitone.settings import load_settings
from tests.servers.postgres import PASSWORD, PostgresServer, free_port
from tests.support.ledgers import (
    NEW,
    NOW,
    ONE,
    TWO,
    claim,
    facts,
    granted,
    must_balance,
    postgres_ledger,
    settle,
    verdicts,
)
from tests.support.operations import ready


@pytest.fixture
def ledger(postgres_url: str) -> Iterator[StoredLedger]:
    ledger = postgres_ledger(postgres_url)
    ready(ledger)
    yield ledger
    ledger.close()


def test_the_url_chooses_the_store(postgres_url: str, tmp_path: Path) -> None:
    settings = load_settings(tmp_path, ledger={"url": postgres_url})
    ledger = open_ledger(settings)
    assert isinstance(ledger, StoredLedger)
    assert isinstance(ledger._store, PostgresStore)
    secret = "mysql://me:opensesame@there/db"
    with pytest.raises(ConfigurationError, match="postgresql://") as caught:
        open_ledger(load_settings(tmp_path, ledger={"url": secret}))
    assert PASSWORD not in str(caught.value)


def test_commits_are_durable_whatever_the_server_defaults_to(postgres_url: str) -> None:
    for given, used in (("off", "on"), ("remote_apply", "remote_apply")):
        url = f"{postgres_url}%20-csynchronous_commit%3D{given}"
        with postgres_ledger(url)._store._database.snapshot() as db:  # type: ignore[attr-defined]
            assert db.execute("SHOW synchronous_commit").fetchone() == (used,)


def test_a_server_that_is_not_there_is_reported_without_the_password() -> None:
    url = f"postgresql://admitone:{PASSWORD}@127.0.0.1:{free_port()}/ledger"
    with pytest.raises(ServiceUnreachable, match="check that it runs") as caught:
        postgres_ledger(url, patience_s=0.2).runs()
    with pytest.raises(ServiceUnreachable) as writing:
        postgres_ledger(url, patience_s=0.2).take_generation("pipeline")
    assert caught.value.exit_code == writing.value.exit_code == 4
    assert PASSWORD not in str(caught.value) + str(caught.value.__cause__) + str(writing.value)


@pytest.mark.parametrize(
    "change",
    [
        (PASSWORD, "wrong-secret"),
        (f":{PASSWORD}@", ":p@wrong-secret@"),
        ("/tests", "/wrong-secret"),
        ("postgresql://", "postgresql://%zz"),
        ("?", "?wrong-secret=1&"),
    ],
)
def test_a_url_that_cannot_work_is_a_setting_to_mend(
    postgres_url: str, change: tuple[str, str]
) -> None:
    url = postgres_url.replace("@", f":{PASSWORD}@").replace(*change)
    begun = time.monotonic()
    with pytest.raises(ConfigurationError) as caught:
        postgres_ledger(url).runs()
    assert PASSWORD not in str(caught.value)
    assert change[0].startswith("/") or "wrong-secret" not in str(caught.value)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (psycopg.OperationalError("FATAL: sorry, too many clients already"), ServiceUnreachable, "max_connections"),
        (psycopg.errors.OutOfMemory("out of memory"), ServiceUnreachable, "out of memory"),
        (psycopg.errors.IoError("could not read block 7"), ServiceUnreachable, "server's disk"),
        (psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT"), ServiceUnreachable, "primary"),
        (psycopg.errors.InsufficientPrivilege("permission denied"), ConfigurationError, "grant"),
        (psycopg.errors.IndexCorrupted("left-link changed"), IntegrityError, "left-link"),
        (psycopg.errors.UndefinedTable('relation "block" does not exist'), IntegrityError, "--restored"),
        (psycopg.errors.SyntaxError("at or near"), psycopg.errors.SyntaxError, "near"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(error: psycopg.Error, kind: type[Exception], words: str) -> None:
    found = explained(error, "PostgreSQL at there")
    assert isinstance(found, kind)
    assert words in str(found)


def test_a_statement_that_takes_too_long_is_given_up(
    ledger: StoredLedger, postgres_url: str
) -> None:
    hasty = postgres_ledger(f"{postgres_url}%20-cstatement_timeout%3D200%20-clock_timeout%3D0")
    with psycopg.connect(postgres_url) as db:
        db.execute("SELECT 1 FROM source FOR UPDATE")
        with pytest.raises(ServiceUnreachable, match="statement_timeout"):
            hasty.take_epoch(ONE, None)
    assert hasty.take_epoch(ONE, None) == 1


def test_a_lock_that_is_held_too_long_is_reported(ledger: StoredLedger, postgres_url: str) -> None:
    hasty = postgres_ledger(f"{postgres_url}%20-clock_timeout%3D100", patience_s=0.3)
    with psycopg.connect(postgres_url) as db:
        db.execute("SELECT 1 FROM source FOR UPDATE")
        with pytest.raises(ServiceUnreachable, match="suspended or stuck"):
            hasty.take_epoch(ONE, None)
    assert hasty.take_epoch(ONE, None) == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda ledger: ledger.take_epoch(ONE, None),
        lambda ledger: ledger.sources(),
        lambda ledger: list(ledger.decided()),
    ],
    ids=["writing", "reading", "reading long"],
)
def test_a_schema_that_is_dropped_under_a_running_command_is_reported(
    ask: Callable[[StoredLedger], object], ledger: StoredLedger, postgres_url: str
) -> None:
    ask(ledger)
    schema = unquote(postgres_url).rpartition("search_path=")[2]
    with psycopg.connect(postgres_url) as db:
        db.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))

    with pytest.raises(IntegrityError, match="does not exist") as caught:
        ask(ledger)
    assert "admitone reconcile --restored" in caught.value.remedy


def test_a_forked_child_opens_a_connection_of_its_own(ledger: StoredLedger) -> None:
    ledger.runs()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if ledger.take_epoch(TWO, None) == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ledger.take_epoch(TWO, None) == 2


def test_a_killed_server_that_comes_back_has_everything_that_was_answered(
    own_server: PostgresServer,
) -> None:
    url = own_server.new_schema()
    ledger = postgres_ledger(url)
    ready(ledger)
    epoch = ledger.take_epoch(ONE, None)
    answered: list[int] = []
    stop = threading.Event()

    def work() -> None:
        mine = postgres_ledger(url)
        number = 0
        while not stop.is_set() and number < 2_000:
            claimed = granted(claim(mine, ONE, epoch, facts((f"e{number}", "x"), start=number)))
            settle(mine, epoch, claimed)
            answered.append(number)
            number += 1
        mine.close()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(2):
        before = len(answered)
        while len(answered) < before + 20:
            assert thread.is_alive()
            time.sleep(0.01)
        own_server.kill()
        own_server.start()
    before = len(answered)
    while len(answered) < before + 20:
        assert thread.is_alive()
        time.sleep(0.01)
    own_server.stop()
    own_server.start()
    stop.set()
    thread.join()

    assert answered == list(range(len(answered)))
    assert ledger.mark(ONE).offset == answered[-1]
    assert {block.state for block in ledger.blocks()} == {BlockState.SETTLED}
    (run,) = books(ledger)["runs"]
    assert run["balanced"]
    assert run["admitted"] == len(answered)


def test_a_full_disk_is_reported_and_nothing_half_done_is_kept(
    own_server: PostgresServer,
) -> None:
    with _tiny_disk(own_server.folder / "tiny") as tiny:
        with own_server.administrator() as admin:
            if tiny is not None:
                admin.execute(f"CREATE TABLESPACE tiny LOCATION '{tiny}'")
            place = "tiny" if tiny is not None else "pg_default"
            admin.execute(f"CREATE DATABASE small OWNER admitone TABLESPACE {place}")
        url = own_server.url("small")
        ledger = postgres_ledger(url)
        ready(ledger)
        epoch = ledger.take_epoch(ONE, None)
        settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
        fill = _fill(tiny, url)
        with pytest.raises(ServiceUnreachable, match="disk is full") as caught:
            _go_on(ledger, epoch)
        assert caught.value.exit_code == 4
        mark = ledger.mark(ONE)
        fill()
        must_balance(ledger)
        for block in ledger.blocks(states=[BlockState.IN_FLIGHT]):
            ledger.conclude(block, epoch, Outcome(BlockState.ABORTED, None, None, NOW))
        again = facts(("z", "x"), start=mark.offset + 1)
        assert verdicts(granted(claim(ledger, ONE, epoch, again))) == [NEW]
        ledger.close()
        with own_server.administrator() as admin:
            admin.execute("DROP DATABASE small WITH (FORCE)")
        own_server.stop()


def _go_on(ledger: StoredLedger, epoch: int) -> None:
    for number in range(1, 100):
        events = [(f"e{number}-{n}", "x") for n in range(2_000)]
        block = facts(*events, start=ledger.mark(ONE).offset + 1)
        settle(ledger, epoch, granted(claim(ledger, ONE, epoch, block)))


@contextmanager
def _tiny_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a file system of 32 MB that the server can use, where this process may."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True).returncode == 0
    try:
        if mounted:
            shutil.chown(folder, "postgres", "postgres")
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


def _fill(tiny: Path | None, url: str) -> Callable[[], None]:
    """Leave no space, or make the server say so; return how to undo it."""
    if tiny is not None:
        filler = tiny / "filler"
        filler.write_bytes(bytes(shutil.disk_usage(tiny).free - (1 << 20)))
        return filler.unlink
    with psycopg.connect(url) as db:
        db.execute(
            "CREATE FUNCTION full() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = 'disk_full'; END $$"
        )
        db.execute("CREATE TRIGGER full BEFORE INSERT ON journal EXECUTE FUNCTION full()")

    def undo() -> None:
        with psycopg.connect(url) as db:
            db.execute("DROP TRIGGER full ON journal")

    return undo
