"""A ledger that moves while a batch is decided: a task that lost nothing itself decides nothing on the other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from admitone.boundary.batches import Begun
from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.restore.read_back import read_back
from admitone.core.errors import Fenced, IntegrityError
from admitone.evidence import open_evidence_store
from admitone.evidence.writer import EvidenceWriter
from admitone.settings import FILE_NAME
from tests.servers.copies import copy_of
from tests.servers.postgres import PostgresServer
from tests.servers.postgres_standby import PostgresStandby
from tests.support.goes_back import SECTIONS, Query, deliver, published
from tests.support.pipeline import Pipeline, event
from tests.support.store_check import check_evidence


class Site:
    """A home folder whose workers each are a `Pipeline` of their own, and how its ledger moves."""

    def __init__(
        self, home: Path, copy: Callable[[Pipeline], object], move: Callable[[], object]
    ) -> None:
        self._home, self._copy, self.move = home, copy, move

    def worker(self) -> Pipeline:
        return Pipeline(self._home, **SECTIONS)

    def copy(self) -> None:
        """Keep what the ledger knows now: what comes after it is lost when it moves."""
        self._copy(self.worker())


def put_back(home: Path) -> Site:
    """A copy is put in the ledger's place."""
    kept: list[Callable[[], None]] = []

    def copy(worker: Pipeline) -> None:
        kept.append(copy_of(worker.ledger, worker.settings, home / "copy"))

    def move() -> None:
        kept.pop()()

    return Site(home, copy, move)


class Servers(NamedTuple):
    """A primary and its standby, which takes its place."""

    primary: PostgresServer
    standby: PostgresStandby

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.start()
        self.standby.promote()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as closing:
        primary = PostgresServer()
        closing.callback(primary.close)
        standby = PostgresStandby(primary)
        closing.callback(standby.close)
        yield Servers(primary, standby)


def replicated(home: Path, servers: Servers) -> Site:
    """A standby that lagged takes the primary's place."""
    url = servers.standby.url_of_both(servers.primary.new_schema())
    (home / FILE_NAME).write_text(f'[ledger]\nurl = "{url}"\n')

    def lag_from_now_on(_: object) -> None:
        servers.standby.catch_up()
        servers.standby.stop()

    return Site(home, lag_from_now_on, servers.fail_over)


@pytest.fixture(params=["file", "dump", "failover"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    if request.param == "failover":
        return replicated(tmp_path, request.getfixturevalue("servers"))
    if request.param == "dump":
        url = request.getfixturevalue("postgres_server").new_schema()
        (tmp_path / FILE_NAME).write_text(f'[ledger]\nurl = "{url}"\n')
    return put_back(tmp_path)


@pytest.mark.parametrize("takes_over", ["before", "afterwards"])
def test_what_only_a_lost_block_admitted_is_not_admitted_again(takes_over: str, site: Site) -> None:
    driver, loser, other = site.worker(), site.worker(), site.worker()
    query = Query(driver)
    for number in (0, 1):
        deliver(driver, number, event("a"))

    def tasks(begun: Begun) -> None:
        held = None
        if takes_over == "before":
            held = other.boundary.own(other.topic, 1, begun.generation, "s", None, begun.database)
        site.copy()
        query.task(loser, 0, begun)
        site.move()
        if held is None:
            query.task(other, 1, begun)
        else:
            list(held.admit(other.records(1)))

    with pytest.raises(IntegrityError, match="older than the log"):
        query.batches.decide(tasks, dict)
    assert published(driver) == Counter(a=1)
    assert other.verdicts("a") == []


def test_a_door_that_lost_nothing_itself_looks_at_the_log_again(site: Site) -> None:
    one, other = site.worker(), site.worker()
    slots = DoorSlot(one.boundary, 0), DoorSlot(other.boundary, 1)
    site.copy()
    list(slots[0].admit([Delivery(event("a"))]))
    site.move()

    with pytest.raises(Fenced, match="The ledger moved"):
        list(slots[1].admit([Delivery(event("a"))]))
    with pytest.raises(IntegrityError, match="older than the log"):
        DoorSlot(other.boundary, 1)
    assert published(one) == Counter(a=1)


def test_what_was_decided_on_a_ledger_that_is_lost_is_not_noted_as_read_in_another(
    site: Site,
) -> None:
    """Nothing of it is on the log, so nobody could tell later that it was never decided there."""
    query = Query(site.worker())
    deliver(query.pipeline, 0, b"no json")
    moves = [site.move]

    def ends() -> dict[int, int]:
        if moves:
            moves.pop()()
        return {0: 1}

    def tasks(begun: Begun) -> None:
        if moves:
            site.copy()
        query.session += "'"  # a process that remembers nothing
        query.task(site.worker(), 0, begun)

    # The folder log's epochs tell that the ledger went back, once the deliveries are read again.
    with pytest.raises(IntegrityError, match="The log knows epoch"):
        query.batches.decide(tasks, ends)
    restored = site.worker()
    read_back(restored.boundary, restored.topic, open_evidence_store(restored.settings))
    Query(restored).batch()

    assert [row["verdict"] for row in restored.decisions()] == ["QUARANTINED"]


def test_evidence_is_not_recorded_for_another_block_with_the_same_number(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, losing = site.worker(), site.worker()
    database = writing.ledger.database()
    generation = writing.boundary.start(writing.topic)
    writing.ledger.runs()
    site.copy()
    deliver(writing, 0, b"no json")
    list(losing.own(0, generation).admit(losing.records(0)))
    record = writing.ledger.record_evidence

    def moved_first(*said: Any) -> bool:
        monkeypatch.undo()
        site.move()
        other = site.worker()
        deliver(other, 1, b"no json either")
        list(other.own(1, generation).admit(other.records(1)))
        return record(*said)

    monkeypatch.setattr(writing.ledger, "record_evidence", moved_first)
    EvidenceWriter(writing.ledger, open_evidence_store(writing.settings)).write_pending(1)

    assert writing.ledger.database() != database
    assert [block.source.partition for block in writing.ledger.blocks()] == [1]
    assert check_evidence(writing.ledger, writing.settings) == []


def test_a_failover_that_loses_nothing_is_gone_on_with(servers: Servers, tmp_path: Path) -> None:
    site = replicated(tmp_path, servers)
    servers.standby.confirm_every_commit()
    driver, worker, other = site.worker(), site.worker(), site.worker()
    query = Query(driver)
    for number in (0, 1):
        deliver(driver, number, event("a"), event(f"b{number}"))
    begun: list[Any] = []

    def tasks(now: Begun) -> None:
        begun.append(now)
        query.task(worker, 0, now)
        if len(begun) == 1:
            servers.fail_over()
        query.task(other, 1, now)

    query.batches.decide(tasks, dict)

    assert [now.generation - begun[0].generation for now in begun] == [0, 1]
    assert published(driver) == Counter(a=1, b0=1, b1=1)
    assert [row["verdict"] for row in driver.decisions(event_id="a")] == ["ADMITTED", "DUPLICATE"]
    driver.run(partitions=())  # writes the evidence
    assert driver.problems() == []
