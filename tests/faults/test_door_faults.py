"""The door is killed and suspended at every arrow of the protocol; the same request sent again converges."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from benchmarks.door import Load, kill_and_restart, problems

from admitone.boundary import open_boundary
from admitone.boundary.doors import Delivery, DoorSlot
from admitone.core.errors import Fenced, MarkMoved, ServiceUnreachable
from admitone.core.wire import header_column
from admitone.infra.crash_points import VARIABLE, arm
from admitone.service.door.door import Door
from admitone.settings import Settings, load_settings
from tests.faults.harness import FENCED, FINISHED, processes, stopped
from tests.support.homes import lanes_of, said_of, start_service
from tests.support.ledgers import must_balance
from tests.support.pipeline import event

EVENTS = [event("a"), event("b"), event("a"), b"nonsense"]
POINTS = (
    "boundary.read",
    "boundary.claiming",
    "boundary.claimed",
    "boundary.publishing",
    "boundary.published",
    "boundary.settling",
    "boundary.settled",
    "ledger.claim_written",
    "ledger.outcome_written",
)


def serve_one_request(home: Path, fault: str | None) -> None:
    """Be a worker: take the slot over and admit one request."""
    slot = DoorSlot(open_boundary(load_settings(home)), 0)
    arm(fault)
    try:
        for _ in slot.admit([Delivery(value) for value in EVENTS]):
            pass
    except (Fenced, MarkMoved):
        os._exit(FENCED)
    os._exit(FINISHED)


def on_the_log(settings: Settings) -> list[bytes]:
    transport = open_boundary(settings).transport
    topic = transport.topic("admitted.traffic")
    return [
        name
        for partition, end in enumerate(transport.ends(topic))
        for batch in transport.read(topic, partition, 0, end)
        for name in header_column(batch.column("headers"), "event-id")[1].to_pylist()
    ]


def sent_again(settings: Settings) -> list[dict]:
    slot = DoorSlot(open_boundary(settings), 0)
    return [row for rows in slot.admit([Delivery(value) for value in EVENTS]) for row in rows]


@pytest.mark.parametrize("point", POINTS)
def test_a_request_whose_worker_was_killed_converges_when_it_is_sent_again(tmp_path, point):
    settings = load_settings(tmp_path)
    marker = tmp_path / "struck"
    worker = processes.Process(
        target=serve_one_request, args=(tmp_path, f"{point}@1:kill:{marker}")
    )
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL

    rows = sent_again(settings)

    survived = point in (
        "boundary.published",
        "boundary.settling",
        "boundary.settled",
        "ledger.outcome_written",
    )
    first = "DUPLICATE" if survived else "ADMITTED"
    assert [row["verdict"] for row in rows] == [first, first, "DUPLICATE", "QUARANTINED"]
    assert sorted(on_the_log(settings)) == [b"a", b"b"]
    assert sent_again(settings)[0]["first"] == (rows[0]["first"] or rows[0]["source"])
    must_balance(open_boundary(settings).ledger)


@pytest.mark.parametrize(
    "point", ["boundary.claimed", "boundary.publishing", "boundary.published", "boundary.settling"]
)
def test_a_worker_that_wakes_up_behind_its_successor_changes_nothing(tmp_path, point):
    settings = load_settings(tmp_path)
    marker = tmp_path / "struck"
    zombie = processes.Process(
        target=serve_one_request, args=(tmp_path, f"{point}@1:stop:{marker}")
    )
    zombie.start()
    assert stopped(zombie, marker)
    rows = sent_again(settings)
    before = sorted(on_the_log(settings))

    assert zombie.pid is not None
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(60)

    assert zombie.exitcode == FENCED
    assert sorted(on_the_log(settings)) == before == [b"a", b"b"]
    again = sent_again(settings)
    assert [row["verdict"] for row in again] == [
        "DUPLICATE",
        "DUPLICATE",
        "DUPLICATE",
        "QUARANTINED",
    ]
    assert again[0]["first"] == (rows[0]["first"] or rows[0]["source"])


def test_a_worker_that_is_killed_is_replaced_and_what_it_was_handed_can_be_sent_again(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(VARIABLE, f"boundary.published@2:kill:{tmp_path / 'struck'}")
    door = Door(load_settings(tmp_path))
    door.open()
    (first,) = door.submit([Delivery(event("a"))]).result(30)
    (worker,) = lanes_of(os.getpid())
    monkeypatch.delenv(VARIABLE)

    with pytest.raises(ServiceUnreachable, match="worker of the door"):
        door.submit([Delivery(event("a")), Delivery(event("b"))]).result(30)
    rows = door.submit([Delivery(event(name)) for name in ("a", "b", "c")]).result(30)
    assert worker not in lanes_of(os.getpid())
    door.close()

    assert [row["verdict"] for row in rows] == ["DUPLICATE", "DUPLICATE", "ADMITTED"]
    assert rows[0]["receipt"] == first["receipt"]
    assert rows[1]["receipt"]["bus"] is not None
    assert lanes_of(os.getpid()) == []


def test_a_worker_ends_with_its_service_and_not_before(tmp_path):
    running = start_service(tmp_path)
    with running.client() as client:
        assert client.post("/v1/events", json=[{}]).status_code == 200
        (worker,) = lanes_of(running.process.pid)
        for interrupt in (signal.SIGINT, signal.SIGTERM):
            os.kill(worker, interrupt)
        assert client.post("/v1/events", json=[{}]).status_code == 200
        assert lanes_of(running.process.pid) == [worker]
    os.kill(running.process.pid, signal.SIGKILL)
    running.process.wait(30)

    deadline = time.monotonic() + 30
    while said_of(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not said_of(worker)


def test_a_service_killed_under_load_loses_nothing_it_answered_and_admits_nothing_twice(tmp_path):
    running = [start_service(tmp_path)]
    load = Load(running[0].url)

    async def shake() -> None:
        await asyncio.gather(load.run(120, 9), kill_and_restart(tmp_path, running, 2, 1.5))

    asyncio.run(shake())
    running[-1].stop()

    assert len(load.receipts) == 120 * 9
    assert load.unanswered > 0
    assert problems(tmp_path, load) == []
