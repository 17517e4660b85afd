"""What only the ledger on PostgreSQL can get wrong: its locks, its schema, its names."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from admitone.core.decisions import CODE_OF_VERDICT, Action, BlockState, Verdict
from admitone.core.errors import (
    AdmitoneError,
    ConfigurationError,
    Fenced,
)
from admitone.core.identity import identity_of
from admitone.ledger import block_transactions, resolutions
from admitone.ledger.books import books
from admitone.ledger.model import (
    Blocked,
    Claimed,
    Filter,
    Resolved,
    Source,
)
from admitone.ledger.name_filter import may_hold
from admitone.ledger.postgres.rows import PostgresRows
from admitone.ledger.stored_ledger import StoredLedger
from tests.servers.postgres import PostgresServer
from tests.support.closures import closure
from tests.support.ledgers import (
    AGAIN,
    DAY,
    NEW,
    NOW,
    ONE,
    RETENTION,
    TWO,
    claim,
    facts,
    granted,
    held,
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


def test_a_newer_ledger_is_refused(ledger: StoredLedger, postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as db:
        db.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(ConfigurationError, match="has version 99"):
        postgres_ledger(postgres_url).runs()


def test_many_can_open_an_empty_database_at_once(postgres_url: str) -> None:
    found: list[object] = []

    def open_it() -> None:
        try:
            found.append(postgres_ledger(postgres_url).runs())
        except AdmitoneError as error:
            found.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{}] * 6


def test_a_schema_named_in_the_url_is_created_and_used(
    ledger: StoredLedger, postgres_url: str
) -> None:
    tenant = postgres_ledger(f"{postgres_url}_tenant")
    assert tenant.sources() == []
    assert len(ledger.sources()) == 2
    ready(tenant)
    epoch = tenant.take_epoch(ONE, None)
    settle(tenant, epoch, granted(claim(tenant, ONE, epoch, facts(("a", "x")))))

    assert ledger.blocks() == []
    with psycopg.connect(postgres_url) as db:
        tables = db.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname LIKE '%_tenant'"
        ).fetchone()
    assert tables is not None
    assert tables[0] > 10


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE block SET state = 'ABORTED'",
        "UPDATE block SET state = 'IN_FLIGHT'",
        "UPDATE block SET state = 'RETRACTED'",
        "INSERT INTO block (producer_id, partition, after_offset, first_offset, last_offset, deliveries, epoch, state,"
        " rules, claimed_at, destinations, runs) SELECT producer_id, partition, after_offset, first_offset,"
        " last_offset, deliveries, epoch, 'SETTLED', rules, claimed_at, destinations, runs FROM block",
        "UPDATE source SET mark = -1 WHERE mark >= 0",
        "UPDATE source SET stream_time = 1 WHERE stream_time IS NOT NULL",
        "UPDATE source SET stream_time = NULL WHERE stream_time IS NOT NULL",
        "UPDATE source SET epoch = 0 WHERE epoch > 0",
        "UPDATE run SET state = 'OPEN'",
        "UPDATE run SET artifact = 'other'",
        "DELETE FROM run",
        "UPDATE resolution SET author = 'nobody'",
        "DELETE FROM resolution",
        "TRUNCATE resolution",
    ],
)
def test_the_database_itself_refuses_what_may_not_happen(
    ledger: StoredLedger, postgres_url: str, statement: str
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "y"))))
    settle(ledger, epoch, claimed)
    ledger.dispose(claimed.block.block_id, [1], Action.DISCARDED, NOW, "somebody", "wrong")
    ledger.close_run(closure("r", b"artifact"), claimed.block.block_id)

    with psycopg.connect(postgres_url) as db, pytest.raises(psycopg.errors.CheckViolation):
        db.execute(statement)


def test_the_books_notice_a_decision_that_is_missing(
    ledger: StoredLedger, postgres_url: str
) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("b", "x")))))
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("c", "x"), start=2))))
    assert books(ledger)["runs"][0]["balanced"]
    with psycopg.connect(postgres_url) as db:
        db.execute("DELETE FROM block WHERE block_id = 1")

    assert not books(ledger)["runs"][0]["balanced"]


@pytest.mark.parametrize("run", ["a\0b", "a\\0b", "\\", "x" * 100_000, "ä" * 3_000 + "\0"])
def test_a_run_may_have_any_name(ledger: StoredLedger, run: str) -> None:
    epoch = ledger.take_epoch(ONE, None)
    claimed = granted(claim(ledger, ONE, epoch, facts(("a", "x"), ("a", "y"), run=run)))
    settle(ledger, epoch, claimed)
    other = claimed.block.block_id

    assert ledger.runs() == {run: "OPEN"}
    assert [block.runs for block in ledger.blocks()] == [{run: 2}]
    assert [anomaly.run_id for anomaly in ledger.anomalies(run)] == [run]
    assert len(list(ledger.decided(Filter(run_id=run)))) == 1
    assert list(ledger.decided(Filter(run_id=run + "-"))) == []
    assert ledger.newest_block(run) == other


def test_names_are_probed_as_the_filter_was_made(ledger: StoredLedger, postgres_url: str) -> None:
    epoch = ledger.take_epoch(ONE, None)
    settle(
        ledger,
        epoch,
        granted(claim(ledger, ONE, epoch, facts(*((f"e{n}", "x") for n in range(3000))))),
    )
    chance = random.Random(1)
    with psycopg.connect(postgres_url) as db:
        (packed,) = db.execute("SELECT filter FROM names", binary=True).fetchone() or (b"",)
        for number in [chance.getrandbits(64) for _ in range(300)]:
            condition, _ = PostgresRows(db).may_hold_name(number)
            query = f"SELECT 1 FROM block WHERE {condition}"  # noqa: S608
            found = db.execute(query).fetchone()
            assert (found is not None) == may_hold(packed, number)
    assert len(packed) > 2_000
    for number in range(0, 3000, 100):
        assert len(list(ledger.decided(Filter(event_id=f"e{number}")))) == 1
        assert len(list(ledger.decided(Filter(identity=identity_of("r", "c", f"e{number}"))))) == 1


@pytest.mark.parametrize("where", ["claim", "conclude"])
def test_a_worker_suspended_inside_a_transaction_does_not_hold_up_its_successor(
    where: str, ledger: StoredLedger, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "%20-cidle_in_transaction_session_timeout%3D300"
    zombie = postgres_ledger(postgres_url + limit)
    epoch = zombie.take_epoch(ONE, None)
    reached, woken = threading.Event(), threading.Event()

    def pause(name: str) -> None:
        if name == point:
            reached.set()
            assert woken.wait(30)

    point = "ledger.claim_written" if where == "claim" else "ledger.outcome_written"
    monkeypatch.setattr(block_transactions, "crash_point", pause)
    outcome: list[object] = []

    def work() -> None:
        try:
            settle(zombie, epoch, granted(claim(zombie, ONE, epoch, facts(("a", "x")))))
        except AdmitoneError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert reached.wait(30)
    assert ledger.take_epoch(ONE, None) == epoch + 1
    woken.set()
    thread.join()

    assert isinstance(outcome[0], Fenced)
    left = [block.state for block in ledger.blocks()]
    assert left == ([] if where == "claim" else [BlockState.IN_FLIGHT])


def test_closing_sees_a_claim_that_was_under_way_with_an_older_number(
    ledger: StoredLedger, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("a", "x")))))
    claimed, woken = threading.Event(), threading.Event()

    def pause(_: str) -> None:
        if threading.current_thread() is slow:
            claimed.set()
            assert woken.wait(30)

    def work() -> None:
        mine = postgres_ledger(postgres_url)
        claim(mine, TWO, two, facts(("b", "x")))
        mine.close()

    slow = threading.Thread(target=work)
    monkeypatch.setattr(block_transactions, "crash_point", pause)
    slow.start()
    assert claimed.wait(30)
    settle(ledger, one, granted(claim(ledger, ONE, one, facts(("c", "x"), start=1))))
    threading.Timer(0.5, woken.set).start()
    newest = ledger.newest_block("r")
    slow.join()

    # The older number became visible before the newer one was named: whoever checks now, checks both.
    assert woken.is_set()
    assert newest == max(block.block_id for block in ledger.blocks())
    assert [block.source for block in ledger.blocks()] == [ONE, TWO, ONE]


def _expirable(ledger: StoredLedger) -> int:
    """Leave a segment that nobody needs any more, and a source at its mark."""
    epoch = ledger.take_epoch(ONE, None)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, facts(("a", "x")))))
    later = facts(("b", "x", NOW + 200 * DAY), start=1)
    settle(ledger, epoch, granted(claim(ledger, ONE, epoch, later)))
    return epoch


def test_a_segment_that_is_being_read_is_dropped_the_next_time(
    ledger: StoredLedger, postgres_url: str
) -> None:
    epoch = _expirable(ledger)
    reader = postgres_ledger(postgres_url)
    with reader.snapshot():
        assert len(held(reader, identity_of("r", "c", "a"))) == 1
        assert ledger.expire_segments(RETENTION) == []
        forgotten = ledger.mark(ONE).forgotten_before
        assert forgotten is not None
        again = facts(("c", "x", NOW + 200 * DAY), start=2)
        settle(ledger, epoch, granted(claim(ledger, ONE, epoch, again)))
    assert len(ledger.expire_segments(RETENTION)) == 1
    assert ledger.mark(ONE).forgotten_before == forgotten


def test_a_segment_is_dropped_during_a_snapshot_that_does_not_read_it(
    ledger: StoredLedger, postgres_url: str
) -> None:
    _expirable(ledger)
    reader = postgres_ledger(postgres_url)
    with reader.snapshot():
        before = reader.runs()
        assert len(ledger.expire_segments(RETENTION)) == 1
        assert reader.runs() == before
    assert held(reader, identity_of("r", "c", "a")) == []
    assert len(held(reader, identity_of("r", "c", "b"))) == 1


def test_claims_that_have_to_wait_leave_nothing_behind(ledger: StoredLedger) -> None:
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    held = granted(claim(ledger, ONE, one, facts(("a", "x"))))
    waiting = facts(*((f"e{n}", "x") for n in range(500)), ("a", "x"))
    settle(ledger, two, granted(claim(ledger, TWO, two, facts(("first", "x")))))
    sizes = []
    for _ in range(4):
        block = waiting.set_column(0, "offset", pa.array(range(1, 502)))
        assert claim(ledger, TWO, two, block) == Blocked(500, held.block.block_id)
        with ledger.snapshot() as rows:
            sizes.append(rows.first("SELECT pg_relation_size('pg_temp.candidate')"))
    assert len(set(sizes)) == 1
    settle(ledger, one, held)
    assert verdicts(granted(claim(ledger, TWO, two, block)))[-1] == AGAIN


NAMES = [f"e{number}" for number in range(2_000)]


def claim_all(url: str, source: Source, backwards: bool) -> list[str]:
    """Claim and settle every name, in one order or the other; return those that were admitted here."""
    ledger = postgres_ledger(url)
    epoch = ledger.take_epoch(source, None)
    order = NAMES[::-1] if backwards else NAMES
    admitted: list[str] = []
    done, size = 0, 250
    while done < len(order):
        batch = order[done : done + size]
        found = claim(ledger, source, epoch, facts(*((name, "x") for name in batch), start=done))
        if isinstance(found, Blocked):
            size = found.ordinal or size
            time.sleep(0.005)
            continue
        settle(ledger, epoch, found)
        got = zip(batch, verdicts(found), strict=True)
        admitted += [name for name, verdict in got if verdict == NEW]
        done, size = done + len(batch), 250
    ledger.close()
    return admitted


@pytest.mark.parametrize("aborted", [False, True], ids=["new", "taken over"])
def test_processes_that_claim_the_same_keys_in_opposite_order_neither_deadlock_nor_admit_twice(
    ledger: StoredLedger, postgres_url: str, postgres_server: PostgresServer, aborted: bool
) -> None:
    if aborted:
        epoch = ledger.take_epoch(ONE, None)
        left = granted(claim(ledger, ONE, epoch, facts(*((name, "y") for name in NAMES))))
        settle(ledger, epoch, left, BlockState.ABORTED)
    sources = [Source(9, number) for number in range(3)]
    for source in sources:
        ledger.register_source(source, "pipeline", "raw", "topic-1")
    before = _deadlocks(postgres_server)
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        futures = [
            pool.submit(claim_all, postgres_url, source, source.partition % 2 == 1)
            for source in sources
        ]
        admitted = [name for future in futures for name in future.result(timeout=120)]

    assert sorted(admitted) == sorted(NAMES)
    must_balance(ledger)
    assert _deadlocks(postgres_server) == before


def _deadlocks(server: PostgresServer) -> int:
    with server.administrator() as admin:
        (count,) = admin.execute("SELECT sum(deadlocks) FROM pg_stat_database").fetchone() or (0,)
    return int(count)


def _following(ledger: StoredLedger) -> tuple[int, Claimed, int, Claimed]:
    """Leave a block of unknown fate, and one in flight whose only delivery follows it."""
    one, two = ledger.take_epoch(ONE, None), ledger.take_epoch(TWO, None)
    first = granted(claim(ledger, ONE, one, facts(("a", "x"))))
    settle(ledger, one, first, BlockState.AMBIGUOUS)
    return one, first, two, granted(claim(ledger, TWO, two, facts(("a", "x"))))


@pytest.mark.parametrize("slow", ["the follower", "the resolution"])
def test_a_follower_concluded_during_the_resolution_is_not_missed(
    ledger: StoredLedger, postgres_url: str, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    one, first, two, follower = _following(ledger)
    found = Resolved(BlockState.SETTLED, Action.FOUND, np.array([7]), NOW, NOW, "somebody", "")
    written, woken, done = threading.Event(), threading.Event(), threading.Event()

    def pause(_: str) -> None:
        written.set()
        assert woken.wait(30)

    def conclude() -> None:
        mine = postgres_ledger(postgres_url)
        settle(mine, two, follower)
        mine.close()

    def resolve() -> None:
        mine = postgres_ledger(postgres_url)
        mine.resolve(first.block, one, found)
        mine.close()

    def second(work: Callable[[], None]) -> None:
        work()
        done.set()

    begins, waits = (conclude, resolve) if slow == "the follower" else (resolve, conclude)
    module = block_transactions if slow == "the follower" else resolutions
    monkeypatch.setattr(module, "crash_point", pause)
    threads = [threading.Thread(target=begins), threading.Thread(target=second, args=(waits,))]
    threads[0].start()
    assert written.wait(30)
    threads[1].start()
    assert not done.wait(0.3)
    woken.set()
    for thread in threads:
        thread.join()

    standing = {block.source: table for block, _, table, _ in ledger.decided()}
    assert standing[TWO]["verdict"].to_pylist() == [CODE_OF_VERDICT[Verdict.DUPLICATE]]
    must_balance(ledger)
