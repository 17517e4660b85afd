"""A ledger that was restored from an older copy catches up with the log, and nothing is admitted twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.reconciliation import reconcile
from admitone.boundary.restore.read_back import ReadBack, read_back
from admitone.core.decisions import BlockState
from admitone.core.errors import IntegrityError, ServiceUnreachable
from admitone.evidence import open_evidence_store
from admitone.evidence.audit.gate import gate_of
from admitone.evidence.audit.verify import verify_run
from admitone.transport.port import Topic, Transport
from tests.servers.copies import copy_of
from tests.support.closing import close_green
from tests.support.flaky import Flaky
from tests.support.ledgers import must_balance
from tests.support.logs import delete_topic, on_the_log
from tests.support.pipeline import Pipeline, event
from tests.support.read_back import (
    PARTITIONS,
    SECTIONS,
    by_position,
    copied_in_flight,
    deliver,
    interrupt,
    one_of_unknown_fate,
    without_moments,
)
from tests.support.released import FUTURE, release_all

pytestmark = pytest.mark.usefixtures("either_ledger")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    return Pipeline(tmp_path, **SECTIONS)


@pytest.fixture
def again(tmp_path: Path) -> Callable[[], Pipeline]:
    """Open the same home once more, as another process does."""
    return lambda: Pipeline(tmp_path, **SECTIONS)


def traffic(seed: int, first: int, events: int) -> list[tuple[int, bytes]]:
    """Return deliveries over all partitions: duplicates and contradictions of each other, and rubbish."""
    chance = random.Random(seed)
    found = []
    for _ in range(events):
        number = chance.randrange(max(0, first - 10), first + events // 2)
        payload = {"referrer": "/other"} if chance.random() < 0.15 else None
        line = event(f"e{number}", payload) if chance.random() < 0.9 else b"no json"
        found.append((chance.randrange(PARTITIONS), line))
    return found


def restored(pipeline: Pipeline) -> list[ReadBack]:
    with pytest.raises(IntegrityError, match="reconcile --restored"):
        pipeline.run()
    return read_back(pipeline.boundary, pipeline.topic, open_evidence_store(pipeline.settings))


def one_event_behind(pipeline: Pipeline, tmp_path: Path, later: bytes | None = None) -> None:
    """Admit an event, copy the ledger, admit another, and put the copy back."""
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, [(0, later or event("b"))])
    pipeline.run()
    pipeline.ledger.close()
    restore()


@pytest.mark.parametrize("seed", range(2))
def test_what_was_decided_since_is_decided_the_same_again(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path, seed: int
) -> None:
    first, second = traffic(seed, 0, 60), traffic(seed + 100, 30, 120)
    deliver(pipeline, first)
    pipeline.run([1, 2, 0])
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    for start in range(0, len(second), 40):
        deliver(pipeline, second[start : start + 40])
        pipeline.run([2, 0, 1] if start % 80 else [0, 2, 1])
    before, on_log = by_position(pipeline), on_the_log(pipeline)
    pipeline.ledger.close()
    restore()

    behind = again()
    assert sum(part.unknown for part in restored(behind)) == 0
    behind.run()

    assert without_moments(by_position(behind)) == without_moments(before)
    assert on_the_log(behind) == on_log
    assert behind.problems() == []

    deliver(behind, [*first, *second])
    behind.run()
    assert on_the_log(behind) == on_log
    assert max(Counter(on_log).values()) == 1
    assert behind.problems() == []
    must_balance(behind.ledger)


def test_blocks_that_come_after_a_restore_are_younger_than_all_that_the_log_names(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    for number in range(4):
        deliver(pipeline, [(0, event(f"b{number}"))])
        pipeline.run()
    named = _blocks_on_the_log(pipeline)
    pipeline.ledger.close()
    restore()

    # Four blocks are read back as one.
    behind = again()
    restored(behind)
    deliver(behind, [(0, event("c"))])
    behind.run()

    assert min(_blocks_on_the_log(behind) - named) > max(named)


def _blocks_on_the_log(pipeline: Pipeline) -> set[int]:
    topic = pipeline.transport.topic("admitted.traffic")
    return {
        int(entry["value"])
        for partition, end in enumerate(pipeline.transport.ends(topic))
        for batch in pipeline.transport.read(topic, partition, 0, end)
        for headers in batch.column("headers").to_pylist()
        for entry in headers
        if entry["key"] == "block"
    }


def test_a_lost_ledger_comes_back_from_the_log_alone(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    assert pipeline.ledger.runs() == {}
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, [(n % PARTITIONS, event(f"e{n}")) for n in range(30)])
    pipeline.run()
    pipeline.ledger.close()
    pipeline.ledger.close()
    restore()

    behind = again()
    assert sum(part.admitted for part in restored(behind)) == 30
    behind.run()
    assert Counter(on_the_log(behind)) == Counter(f"e{n}" for n in range(30))
    assert behind.problems() == []


def test_a_run_can_be_closed_and_verified_afterwards(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    deliver(pipeline, [(n % PARTITIONS, event(f"e{n}")) for n in range(20)])
    pipeline.run()
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, [(n % PARTITIONS, event(f"e{n}")) for n in range(10, 40)])
    pipeline.run()
    pipeline.ledger.close()
    restore()
    behind = again()
    restored(behind)
    behind.run()

    gate = gate_of("default", behind.ledger, behind.transport, behind.settings)
    assert gate.green
    close_green("default", behind.ledger, behind.transport, behind.settings)
    assert verify_run("default", behind.ledger, behind.transport, behind.settings).verified


def test_what_came_through_doors_is_put_back_from_the_records(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    deliver(pipeline, [(0, event("a")), (1, event("late", **FUTURE))])
    pipeline.run()
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    slot = DoorSlot(pipeline.boundary, 0)
    list(slot.admit([Delivery(event("b")), Delivery(event("a")), Delivery(event("c"), "other")]))
    deliver(pipeline, [(2, event("b")), (2, event("d"))])
    mended = Pipeline(tmp_path, **{**SECTIONS, "pipeline": {"future_tolerance": "50000d"}})
    release_all(mended)
    assert sorted(on_the_log(mended)) == ["a", "b", "c", "d", "late"]
    before = by_position(mended)
    pipeline.ledger.close()
    mended.ledger.close()
    restore()

    behind = again()
    restored(behind)
    behind.run()
    after = by_position(behind)
    assert {k: v for k, v in before.items() if v[0] == "ADMITTED"} == {
        k: v for k, v in after.items() if v[0] == "ADMITTED"
    }
    assert behind.problems() == []
    (rows,) = DoorSlot(behind.boundary, 0).admit([Delivery(event("c"), "other")])
    assert [row["verdict"] for row in rows] == ["DUPLICATE"]
    assert sorted(on_the_log(behind)) == ["a", "b", "c", "d", "late"]


@pytest.mark.parametrize("copied", ["before", "while it is unknown"])
def test_a_late_publish_is_found_under_the_numbers_it_got(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path, copied: str
) -> None:
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    early = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "early")
    one_of_unknown_fate(pipeline, [(0, event("b")), (0, event("c"))])
    later = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "later")
    list(reconcile(pipeline.boundary))
    pipeline.run()
    assert sorted(on_the_log(pipeline)) == ["a", "b", "c"]
    (early if copied == "before" else later)()

    behind = again()
    assert sum(part.published_late for part in restored(behind)) == 2
    behind.run()
    assert sorted(on_the_log(behind)) == ["a", "b", "c"]
    assert behind.problems() == []
    deliver(behind, [(1, event(name)) for name in "abc"])
    behind.run()
    assert sorted(on_the_log(behind)) == ["a", "b", "c"]


def test_what_the_broker_refused_of_a_late_publish_is_not_published_with_the_rest_again(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    one_of_unknown_fate(pipeline, [(0, event("b")), (0, event("c"))])
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    pipeline.boundary.transport = Flaky(pipeline.transport, "refuse")  # type: ignore[assignment]
    list(reconcile(pipeline.boundary))
    assert sorted(on_the_log(pipeline)) == ["a", "c"]
    restore()

    behind = again()
    assert sum(part.published_late for part in restored(behind)) == 1
    list(reconcile(behind.boundary, by_operator=True))
    behind.run()
    assert sorted(on_the_log(behind)) == ["a", "c"]
    assert behind.verdicts("b") == [("QUARANTINED", "PUBLISH_FAILED")]
    assert behind.problems() == []


LONG = {"title": "x" * 2_000}
STRICT = {**SECTIONS, "pipeline": {**SECTIONS["pipeline"], "max_event_bytes": 1_000}}


def test_what_is_not_on_the_log_is_published_when_an_operator_says_so(
    again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    """It was refused then and would be admitted now; its number is behind what readers have seen."""
    strict = Pipeline(tmp_path, **STRICT)
    deliver(strict, [(0, event("a"))])
    strict.run()
    restore = copy_of(strict.ledger, strict.settings, tmp_path / "copy")
    deliver(strict, [(0, event("b")), (0, event("long", LONG)), (0, event("c"))])
    strict.run()
    strict.ledger.close()
    restore()

    behind = again()
    assert sum(part.unknown for part in restored(behind)) == 1
    behind.run()
    assert on_the_log(behind) == ["a", "b", "c"]
    assert behind.verdicts("long") == [("AMBIGUOUS", "PUBLISH_UNKNOWN")]
    list(reconcile(behind.boundary, by_operator=True))
    behind.run()
    assert on_the_log(behind) == ["a", "b", "c", "long"]
    assert behind.verdicts("long") == [("ADMITTED", None)]
    assert behind.problems() == []


def test_what_the_rules_would_refuse_now_stops_it(pipeline: Pipeline, tmp_path: Path) -> None:
    one_event_behind(pipeline, tmp_path, event("b", LONG))

    behind = Pipeline(tmp_path, **STRICT)
    with pytest.raises(IntegrityError, match="would not be admitted now"):
        restored(behind)
    assert behind.ledger.blocks(states=[BlockState.IN_FLIGHT]) == []


def test_deliveries_that_are_gone_are_a_gap_that_is_refused(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    one_event_behind(pipeline, tmp_path)
    delete_topic(pipeline.transport, pipeline.topic.name)

    with pytest.raises(IntegrityError, match="are gone"):
        restored(again())


def test_reading_back_twice_changes_nothing(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    one_event_behind(pipeline, tmp_path)
    behind = again()
    restored(behind)
    decided = by_position(behind)

    assert read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings)) == []
    assert by_position(behind) == decided


class Trimmed:
    """A log whose admitted records were taken by retention, all up to now."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._starts = transport.ends(transport.topic("admitted.traffic"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def starts(self, topic: Topic) -> list[int]:
        here = topic.name == "admitted.traffic"
        return self._starts if here else self._transport.starts(topic)


@pytest.mark.parametrize("with_receipts", [True, False])
def test_what_the_log_no_longer_holds_is_read_back_from_receipts(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path, with_receipts: bool
) -> None:
    deliver(pipeline, [(0, event("a"))])
    pipeline.run()
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, [(2, event("b")), (0, event("c")), (1, event("b")), (0, b"no json")])
    pipeline.run([2, 1, 0])
    before, on_log = by_position(pipeline), on_the_log(pipeline)
    pipeline.ledger.close()
    restore()
    store = open_evidence_store(pipeline.settings)
    if not with_receipts:
        for path in store.list("runs"):
            store.delete(path)
    behind = again()
    behind.boundary.transport = Trimmed(behind.transport)  # type: ignore[assignment]

    if not with_receipts:
        with pytest.raises(IntegrityError, match="not receipts for all of them"):
            read_back(behind.boundary, behind.topic, store)
        return
    assert sum(part.admitted for part in read_back(behind.boundary, behind.topic, store)) == 2
    behind.boundary.transport = behind.transport
    behind.run()
    assert without_moments(by_position(behind)) == without_moments(before)
    assert on_the_log(behind) == on_log
    assert behind.problems() == []


@pytest.mark.parametrize("decided", [0, 1, 4])
def test_reading_back_can_be_interrupted_and_begun_again(
    pipeline: Pipeline,
    again: Callable[[], Pipeline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    decided: int,
) -> None:
    deliver(pipeline, traffic(1, 0, 30))
    pipeline.run([1, 2, 0])
    restore = copy_of(pipeline.ledger, pipeline.settings, tmp_path / "copy")
    deliver(pipeline, traffic(2, 15, 60))
    pipeline.run([2, 0, 1])
    before, on_log = by_position(pipeline), on_the_log(pipeline)
    pipeline.ledger.close()
    restore()
    interrupted = again()
    conclude, calls = interrupted.ledger.conclude, count()

    def crash(*arguments: Any) -> None:
        if next(calls) == decided:
            raise KeyboardInterrupt
        conclude(*arguments)

    monkeypatch.setattr(interrupted.ledger, "conclude", crash)
    with pytest.raises(KeyboardInterrupt):
        read_back(
            interrupted.boundary, interrupted.topic, open_evidence_store(interrupted.settings)
        )
    interrupted.ledger.close()

    behind = again()
    restored(behind)
    behind.run()
    assert without_moments(by_position(behind)) == without_moments(before)
    assert on_the_log(behind) == on_log
    assert behind.problems() == []


class Silent:
    """A log that does not say what its admitted topics hold."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def read(self, topic: Topic, *where: Any) -> Any:
        if topic.name == "admitted.traffic":
            raise ServiceUnreachable("the log does not answer")
        return self._transport.read(topic, *where)


def test_what_was_in_flight_in_the_copy_is_found_however_often_it_is_read_back(
    pipeline: Pipeline,
    again: Callable[[], Pipeline],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restore = copied_in_flight(pipeline, tmp_path, monkeypatch)
    deliver(pipeline, [(0, event("d"))])
    pipeline.run()
    before, on_log = by_position(pipeline), on_the_log(pipeline)
    pipeline.ledger.close()
    restore()

    for _ in range(2):
        interrupted = again()
        interrupted.boundary.transport = Silent(interrupted.transport)  # type: ignore[assignment]
        with pytest.raises(ServiceUnreachable):
            read_back(
                interrupted.boundary, interrupted.topic, open_evidence_store(interrupted.settings)
            )
        interrupted.ledger.close()
    behind = again()
    read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings))
    list(reconcile(behind.boundary))
    behind.run()

    assert on_the_log(behind) == on_log
    assert without_moments(by_position(behind)) == without_moments(before)
    assert behind.problems() == []


def test_nothing_is_admitted_before_reading_back_has_ended(
    pipeline: Pipeline, again: Callable[[], Pipeline], tmp_path: Path
) -> None:
    one_event_behind(pipeline, tmp_path)
    interrupted = again()
    ended = interrupted.ledger.end_reading_back
    interrupted.ledger.end_reading_back = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        read_back(
            interrupted.boundary, interrupted.topic, open_evidence_store(interrupted.settings)
        )
    interrupted.ledger.end_reading_back = ended  # type: ignore[method-assign]

    behind = again()
    with pytest.raises(IntegrityError, match="not read back to its end"):
        behind.run()
    with pytest.raises(IntegrityError, match="not read back to its end"):
        DoorSlot(behind.boundary, 0)
    read_back(behind.boundary, behind.topic, open_evidence_store(behind.settings))
    behind.run()
    assert on_the_log(behind) == ["a", "b"]
