"""Connections that die around a COMMIT: whatever the server made of it, the work is done once and its result known."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from admitone.core.errors import Fenced, ServiceUnreachable
from admitone.ledger.model import ADMISSION_STORE, Blocked, Source
from admitone.ledger.segments import open_segment
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Fault, Proxy
from tests.support.ledgers import (
    NEW,
    NOW,
    ONE,
    RETENTION,
    claim,
    facts,
    granted,
    must_balance,
    postgres_ledger,
    settle,
    verdicts,
)
from tests.support.operations import OPERATIONS, Operation, ready


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    proxy = Proxy(postgres_server.port)
    yield proxy
    proxy.close()


@pytest.mark.parametrize("fault", Fault, ids=lambda fault: fault.name.lower())
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_write_whose_commit_was_cut_off_happens_once(
    operation: Operation, fault: Fault, postgres_url: str, proxy: Proxy
) -> None:
    direct = ready(postgres_ledger(postgres_url))
    act, check = operation.prepare(direct)
    through = postgres_ledger(proxy.url(postgres_url))
    through.runs()
    proxy.arm(*[fault] * operation.commits)
    result = act(through)

    assert proxy.struck == operation.commits
    check(direct, result)
    through.close()
    direct.close()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER], ids=["before", "after"])
@pytest.mark.parametrize(
    "operation",
    [
        operation
        for operation in OPERATIONS
        if operation.name in ("claim", "settle", "count_re_reads")
    ],
    ids=lambda operation: operation.name,
)
def test_a_crash_that_makes_the_server_use_transaction_ids_again_misleads_nobody(
    operation: Operation, fault: Fault, own_server: PostgresServer
) -> None:
    url = own_server.new_schema()
    direct = postgres_ledger(url)
    act, check = operation.prepare(ready(direct))
    proxy = Proxy(own_server.port)
    through = postgres_ledger(proxy.url(url))
    through.runs()
    # The segment is opened beforehand, so that the fault strikes the claim itself.
    direct._store.run(lambda rows: open_segment(rows, ADMISSION_STORE, NOW, RETENTION))

    def crash() -> None:
        own_server.kill()
        own_server.start()
        for _ in range(20):
            direct.take_generation("another pipeline")

    proxy.meanwhile = crash
    proxy.arm(fault)
    result = act(through)

    assert proxy.struck == 1
    check(direct, result)
    proxy.close()


def test_a_migration_whose_commit_was_cut_off_is_made_once(postgres_url: str, proxy: Proxy) -> None:
    proxy.arm(Fault.AFTER)
    assert postgres_ledger(proxy.url(postgres_url)).runs() == {}
    assert proxy.struck == 1


def test_a_read_on_a_lost_connection_is_asked_again(postgres_url: str, proxy: Proxy) -> None:
    ledger = ready(postgres_ledger(proxy.url(postgres_url)))
    assert proxy.cut_all() == 1
    assert len(ledger.sources()) == 2
    assert proxy.cut_all() == 1
    with ledger.snapshot():
        assert len(ledger.sources()) == 2
        proxy.cut_all()
        # Another connection would show another state.
        with pytest.raises(ServiceUnreachable):
            ledger.sources()
    assert len(ledger.sources()) == 2


def test_a_successor_gets_through_while_the_lost_transaction_still_holds_its_locks(
    postgres_url: str, proxy: Proxy
) -> None:
    direct = ready(postgres_ledger(postgres_url))
    through = postgres_ledger(proxy.url(postgres_url))
    epoch = direct.take_epoch(ONE, None)
    granted(claim(direct, ONE, epoch, facts(("a", "x"))))
    proxy.arm(Fault.SILENT)
    begun = time.monotonic()
    assert through.take_epoch(ONE, None) == epoch + 1

    assert time.monotonic() - begun < 5


def test_a_worker_that_was_fenced_while_its_answer_was_lost_learns_of_it(
    postgres_url: str, proxy: Proxy
) -> None:
    direct = ready(postgres_ledger(postgres_url))
    through = postgres_ledger(proxy.url(postgres_url))
    epoch = through.take_epoch(ONE, None)
    direct.take_epoch(ONE, None)
    proxy.arm(Fault.BEFORE)
    with pytest.raises(Fenced):
        claim(through, ONE, epoch, facts(("a", "x")))
    assert direct.blocks() == []


def test_cuts_at_any_moment_leave_every_identity_admitted_once(
    postgres_url: str, proxy: Proxy
) -> None:
    direct = ready(postgres_ledger(postgres_url))
    sources = [Source(9, number) for number in range(2)]
    for source in sources:
        direct.register_source(source, "pipeline", "raw", "topic-1")
    admitted: list[str] = []
    failures: list[BaseException] = []
    names = [f"e{number}" for number in range(300)]

    def work(source: Source) -> None:
        try:
            ledger = postgres_ledger(proxy.url(postgres_url))
            epoch = ledger.take_epoch(source, None)
            order = names if source.partition else names[::-1]
            done, size = 0, 15
            while done < len(order):
                batch = order[done : done + size]
                found = claim(ledger, source, epoch, facts(*((n, "x") for n in batch), start=done))
                if isinstance(found, Blocked):
                    size = found.ordinal or size
                    time.sleep(0.002)
                    continue
                settle(ledger, epoch, found)
                got = zip(batch, verdicts(found), strict=True)
                admitted.extend(name for name, verdict in got if verdict == NEW)
                done, size = done + len(batch), 15
            ledger.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    cuts, moments = 0, random.Random(1)
    while any(thread.is_alive() for thread in threads):
        time.sleep(moments.uniform(0.02, 0.3))
        cuts += proxy.cut_all() > 0
    for thread in threads:
        thread.join()

    assert failures == []
    assert cuts > 1
    assert sorted(admitted) == sorted(names)
    must_balance(direct)
