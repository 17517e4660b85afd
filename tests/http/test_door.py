"""The synchronous door: one decision and one receipt for every event, whatever happens in between."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import pytest

from admitone.boundary import open_boundary
from admitone.boundary.doors import Delivery, DoorSlot
from admitone.core.decisions import BlockState, Verdict
from admitone.core.errors import Fenced, ServiceUnreachable
from admitone.ledger.books import books
from admitone.service.bounded_executor import Busy
from admitone.service.door.door import Door
from admitone.service.door.slots import take_slot
from admitone.settings import Settings, load_settings
from tests.servers.processes import suspend
from tests.support.homes import lanes_of
from tests.support.pipeline import Pipeline, event


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(tmp_path)


@pytest.fixture
def door(settings: Settings):
    opened = Door(settings)
    opened.open()
    yield opened
    opened.close()


def sent(door: Door, *values: bytes, run: str | None = None) -> list[dict]:
    return door.submit([Delivery(value, run) for value in values]).result(30)


def test_each_event_gets_its_decision_in_the_order_sent(door):
    rows = sent(door, event("a"), b"{", event("a"), event("a", {"url": "/other"}), event("b"))

    assert [(row["verdict"], row["reason"]) for row in rows] == [
        ("ADMITTED", None),
        ("QUARANTINED", "NOT_JSON"),
        ("DUPLICATE", None),
        ("QUARANTINED", "PAYLOAD_MISMATCH"),
        ("ADMITTED", None),
    ]
    assert [row["event_id"] for row in rows] == ["a", None, "a", "a", "b"]


def test_an_event_sent_again_is_a_duplicate_with_the_very_same_receipt(door):
    (first,) = sent(door, event("a"))
    (again,) = sent(door, event("a"))

    assert first["verdict"] == "ADMITTED"
    assert again["verdict"] == "DUPLICATE"
    assert again["receipt"] == first["receipt"]
    assert first["receipt"]["bus"] == first["bus"] != None  # noqa: E711
    assert sent(door, b"nonsense")[0]["receipt"] is None


def test_an_event_the_stream_admitted_gets_the_stream_s_receipt(tmp_path):
    pipeline = Pipeline(tmp_path)
    pipeline.ingest(event("a"))
    pipeline.run()
    (admitted,) = pipeline.decisions(verdict=Verdict.ADMITTED)
    door = Door(pipeline.settings)
    door.open()
    (row,) = sent(door, event("a"))
    door.close()

    assert row["verdict"] == "DUPLICATE"
    assert row["receipt"]["id"] == admitted["id"]
    assert row["receipt"]["source"] == admitted["source"]


def test_requests_that_wait_together_share_a_block(settings):
    door = Door(settings)
    waiting = [door.submit([Delivery(event(f"e{number}"))]) for number in range(50)]
    door.open()
    rows = [each.result(30)[0] for each in waiting]
    door.close()

    assert {row["verdict"] for row in rows} == {"ADMITTED"}
    assert len({row["id"].partition("-")[0] for row in rows}) == 1
    assert [row["source"]["offset"] for row in rows] == list(range(50))


def test_a_request_beyond_what_may_wait_is_refused(settings):
    small = settings.model_copy(
        update={"service": settings.service.model_copy(update={"max_waiting": 3})}
    )
    door = Door(small)
    first = door.submit([Delivery(event("a")), Delivery(event("b"))])

    with pytest.raises(Busy):
        door.submit([Delivery(event("c")), Delivery(event("d"))])
    door.open()

    assert len(first.result(30)) == 2
    assert sent(door, event("c"))[0]["verdict"] == "ADMITTED"
    door.close()
    assert door.counts["refused"] == 1


def test_what_waits_when_the_door_closes_is_still_decided(settings):
    door = Door(settings)
    waiting = door.submit([Delivery(event("a"))])
    door.open()
    door.close()

    assert waiting.result(0)[0]["verdict"] == "ADMITTED"
    with pytest.raises(ServiceUnreachable):
        door.submit([Delivery(event("b"))])


def test_who_gave_up_waiting_is_passed_over(settings):
    door = Door(settings)
    gone: Future = door.submit([Delivery(event("a"))])
    assert gone.cancel()
    kept = door.submit([Delivery(event("b"))])
    door.open()

    assert kept.result(30)[0]["source"]["offset"] == 0
    door.close()


def test_workers_of_one_ledger_take_different_slots(settings):
    one, two = take_slot(settings), take_slot(settings)
    assert (one.number, two.number) == (0, 1)

    one.release()

    assert take_slot(settings).number == 0


def test_workers_of_one_database_take_different_slots(tmp_path, postgres_url):
    settings = load_settings(tmp_path, ledger={"url": postgres_url})
    one, two = take_slot(settings), take_slot(settings)
    assert two.number == one.number + 1
    assert one.is_held()

    number = one.number
    one.release()

    assert not one.is_held()
    three = take_slot(settings)
    assert three.number == number
    two.release()
    three.release()


def test_several_lanes_decide_one_event_once(settings):
    several = settings.model_copy(
        update={"service": settings.service.model_copy(update={"slots": 3})}
    )
    door = Door(several)
    door.open()
    answers = [
        door.submit([Delivery(event(f"e{number % 10}")), Delivery(event(f"f{number}"))])
        for number in range(60)
    ]
    rows = [row for each in answers for row in each.result(60)]
    door.close()

    admitted = [row for row in rows if row["verdict"] == "ADMITTED"]
    assert len(admitted) == len({row["event_id"] for row in admitted}) == 70
    receipts = {(row["event_id"], row["receipt"]["id"]) for row in rows}
    assert len(receipts) == 70


def test_a_slot_that_was_seized_is_taken_over_again_and_the_request_is_answered(settings, door):
    sent(door, event("a"))
    boundary = open_boundary(settings)
    (info,) = boundary.ledger.sources()
    boundary.resolve_all(info.source, None)

    (row,) = sent(door, event("b"))

    assert row["verdict"] == "ADMITTED"
    assert door.counts["failed"] == 0


def test_a_slot_that_was_taken_over_admits_nothing_any_more(settings):
    boundary = open_boundary(settings)
    slot = DoorSlot(boundary, 0)
    successor = DoorSlot(open_boundary(settings), 0)

    with pytest.raises(Fenced):
        list(slot.admit([Delivery(event("a"))]))

    ((row,),) = successor.admit([Delivery(event("a"))])
    assert row["verdict"] == "ADMITTED"


def test_a_pipeline_that_starts_leaves_a_door_at_work_alone(tmp_path, monkeypatch):
    pipeline = Pipeline(tmp_path)
    slot = DoorSlot(open_boundary(pipeline.settings), 0)
    published, go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "boundary.published":
            published.set()
            assert go_on.wait(30)

    monkeypatch.setattr("admitone.boundary.partition.crash_point", hold)
    rows: list = []
    worker = threading.Thread(target=lambda: rows.extend(*slot.admit([Delivery(event("a"))])))
    worker.start()
    assert published.wait(30)
    pipeline.boundary.start(pipeline.topic)
    in_flight = pipeline.ledger.blocks(states=[BlockState.IN_FLIGHT])
    go_on.set()
    worker.join()

    assert len(in_flight) == 1
    assert [row["verdict"] for row in rows] == ["ADMITTED"]


def test_a_door_that_died_is_resolved_by_a_pipeline_once_its_lease_ran_out(tmp_path, monkeypatch):
    class Died(BaseException):
        pass

    def die(name: str) -> None:
        if name == "boundary.published":
            raise Died

    pipeline = Pipeline(tmp_path, pipeline={"claim_lease": 1})
    slot = DoorSlot(open_boundary(pipeline.settings), 0)
    with monkeypatch.context() as patched:
        patched.setattr("admitone.boundary.partition.crash_point", die)
        with pytest.raises(Died):
            list(slot.admit([Delivery(event("a"))]))
    generation = pipeline.boundary.start(pipeline.topic)
    assert [block.state for block in pipeline.ledger.blocks()] == [BlockState.IN_FLIGHT]
    stopwatch = pipeline.boundary.stopwatch
    pipeline.boundary.stopwatch = lambda: stopwatch() + 10

    pipeline.boundary.recover(generation)

    assert pipeline.verdicts("a") == [("ADMITTED", None)]


def test_the_run_of_a_request_is_that_of_events_that_name_none(door, settings):
    rows = sent(door, event("a"), event("b", runId="own"), run="asked")

    assert [row["run_id"] for row in rows] == ["asked", "own"]


def test_the_books_of_the_door_balance(door, settings):
    sent(door, event("a"), event("a"), b"{")
    sent(door, event("a"), event("b"))

    (account,) = books(open_boundary(settings).ledger)["runs"]

    assert account["balanced"]
    assert (account["deliveries"], account["admitted"], account["duplicates"]) == (5, 2, 2)
    assert account["partitions"][0]["topic"] == "door"


def test_a_worker_that_cannot_be_started_is_said_and_the_next_one_may(settings, monkeypatch):
    door = Door(settings)
    door.open()
    with monkeypatch.context() as patched:
        patched.setattr("admitone.service.door.door.subprocess.Popen", refuse_to_start)
        with pytest.raises(ServiceUnreachable, match="too many"):
            sent(door, event("a"))

    (row,) = sent(door, event("a"))
    door.close()

    assert row["verdict"] == "ADMITTED"
    assert door.counts["failed"] == 1


def refuse_to_start(*_: object, **__: object) -> None:
    raise OSError("too many open files")


def test_a_worker_that_does_not_answer_is_ended_with_the_door(settings, monkeypatch):
    monkeypatch.setattr("admitone.service.door.door._GRACE_S", 2.0)
    impatient = settings.service.model_copy(update={"door_timeout": 500})
    door = Door(settings.model_copy(update={"service": impatient}))
    door.open()
    sent(door, event("a"))
    (worker,) = lanes_of(os.getpid())
    suspend(worker)
    waiting = door.submit([Delivery(event("b"))])

    door.close()

    # On a slow machine another worker may have taken the slot over and answered before the door was closed.
    with suppress(ServiceUnreachable):
        assert [decision["verdict"] for decision in waiting.result(0)] == ["ADMITTED"]
    assert lanes_of(os.getpid()) == []
