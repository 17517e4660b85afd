"""Settled pairs in a worker's memory: they save look-ups and change no decision."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from admitone.boundary.ledger_rollback import memory_of
from admitone.boundary.read import DELIVERY_SCHEMA
from admitone.boundary.settled_pairs import SettledPairs
from admitone.boundary.topic_partition import TopicPartition
from admitone.ledger.books import books
from admitone.ledger.model import Source
from tests.support.closures import closure
from tests.support.flaky import Flaky
from tests.support.pipeline import Pipeline, event

pytestmark = pytest.mark.usefixtures("either_ledger")

START = datetime(2026, 1, 5, 10, tzinfo=UTC)
MINUTE = 60
Told = tuple[str, int, int]
"""An event id, a payload and a second."""


class Worker:
    """A boundary of two partitions that gets its deliveries from us."""

    def __init__(self, home: Path, cache: int) -> None:
        home.mkdir()
        dedup = {"cache": cache, "retention": "10m"}
        self.pipeline = Pipeline(home, dedup=dedup, pipeline={"quarantine_limit": 1})
        generation = self.pipeline.boundary.start(self.pipeline.topic)
        self.owned: list[TopicPartition] = [self.pipeline.own(n, generation) for n in (0, 1)]

    def deliver(self, partition: int, told: Iterable[Told]) -> None:
        """Hand deliveries over as the source would."""
        start = self.owned[partition].mark.offset + 1
        rows = [
            {
                "offset": start + number,
                "timestamp": START.replace(year=2027),
                "key": None,
                "value": event(name, {"n": payload}, _time(second)),
                "headers": [],
            }
            for number, (name, payload, second) in enumerate(told)
        ]
        for _ in self.owned[partition].admit(pa.Table.from_pylist(rows, schema=DELIVERY_SCHEMA)):
            pass

    def forget(self) -> None:
        """Clear what is remembered, under load as it were."""
        for owned in self.owned:
            memory = owned._memory
            if memory.pairs is not None:
                memory.pairs = SettledPairs(len(memory.pairs._pairs))

    def decided(self) -> list[tuple[Any, ...]]:
        """Return every decision by its position, whatever blocks it was made in."""
        return sorted(
            (
                row["source"]["partition"], row["source"]["offset"], row["event_id"], row["verdict"],
                row["reason"], row["first"] and (row["first"]["partition"], row["first"]["offset"]),
            )
            for row in self.pipeline.decisions()
        )  # fmt: skip

    def cached(self) -> int:
        """Return how many duplicates were known without asking."""
        return sum(info.cached for info in self.pipeline.ledger.sources())


def _time(second: int) -> str:
    moment = datetime.fromtimestamp(START.timestamp() + second, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


deliveries = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(0, 1), st.integers(0, 11)),
    min_size=1,
    max_size=6,
)
steps = st.lists(
    st.one_of(st.tuples(st.integers(0, 1), deliveries), st.just("forget")), min_size=6, max_size=16
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=steps, size=st.sampled_from((2, 6, 4_000)))
def test_it_changes_no_decision_however_small_and_whenever_cleared(
    steps: list[tuple[int, list[Told]] | str], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Repetitions, contradictions, keys that expire and are taken over by the partition that is ahead."""
    home = tmp_path_factory.mktemp("cache")
    remembering, asking = Worker(home / "remembering", size), Worker(home / "asking", 0)
    for number, step in enumerate(steps):
        if isinstance(step, str):
            remembering.forget()
            continue
        partition, told = step
        late = [(name, payload, (number * 2 - ago) * MINUTE) for name, payload, ago in told]
        for worker in (remembering, asking):
            worker.deliver(partition, late)

    assert remembering.decided() == asking.decided()
    assert asking.cached() == 0


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path / "home", 1_000)


def verdicts(worker: Worker) -> list[str]:
    return [row[4] or row[3] for row in worker.decided()]


def test_a_repetition_is_known_once_its_first_is_settled(worker: Worker) -> None:
    worker.deliver(0, [("a", 0, 0), ("a", 0, 0)])
    assert worker.cached() == 0, "within a block the block itself knows"
    worker.deliver(0, [("a", 0, 0), ("b", 0, 0), ("a", 0, 60)])

    assert worker.cached() == 2
    assert verdicts(worker) == ["ADMITTED", "DUPLICATE", "DUPLICATE", "ADMITTED", "DUPLICATE"]
    (run,) = books(worker.pipeline.ledger)["runs"]
    assert (run["cached"], run["balanced"]) == (2, True)


def test_a_repetition_that_the_ledger_found_is_known_from_then_on(worker: Worker) -> None:
    worker.deliver(1, [("a", 0, 0)])
    for _ in range(3):
        worker.deliver(0, [("a", 0, 0)])

    assert verdicts(worker) == ["DUPLICATE"] * 3 + ["ADMITTED"]
    assert worker.cached() == 2


def test_another_payload_is_never_known(worker: Worker) -> None:
    worker.deliver(0, [("a", 0, 0)])
    worker.deliver(0, [("a", 1, 0)])
    worker.deliver(0, [("a", 1, 0)])

    assert verdicts(worker) == ["ADMITTED", "PAYLOAD_MISMATCH", "PAYLOAD_MISMATCH"]
    assert worker.cached() == 0


def test_what_has_left_the_window_is_not_known(worker: Worker) -> None:
    worker.deliver(0, [("a", 0, 0)])
    worker.deliver(0, [("a", 0, 10 * MINUTE - 1)])
    worker.deliver(0, [("a", 0, 10 * MINUTE)])

    assert verdicts(worker) == ["ADMITTED", "DUPLICATE", "ADMITTED"]


def test_what_a_partition_ahead_took_over_is_asked_for(worker: Worker) -> None:
    """The slow partition remembers the first admission, which is in its own window still."""
    worker.deliver(0, [("b", 0, 10 * MINUTE), ("a", 0, MINUTE)])
    worker.deliver(1, [("a", 1, 11 * MINUTE)])
    worker.deliver(0, [("a", 0, MINUTE), ("a", 1, MINUTE)])

    assert verdicts(worker) == ["ADMITTED", "ADMITTED", "PAYLOAD_MISMATCH", "DUPLICATE", "ADMITTED"]
    assert worker.cached() == 0


def test_what_the_broker_refused_is_not_known(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "home", 1_000)
    pipeline = worker.pipeline
    pipeline.boundary.transport = Flaky(pipeline.transport, "refuse")
    worker.owned = [pipeline.own(0, pipeline.boundary.start(pipeline.topic))]
    worker.deliver(0, [("a", 0, 0), ("b", 0, 0)])
    worker.deliver(0, [("a", 0, 0), ("b", 0, 0)])

    assert verdicts(worker) == ["PUBLISH_FAILED", "ADMITTED", "PUBLISH_FAILED", "DUPLICATE"]
    assert worker.cached() == 1


def test_a_closed_run_takes_no_repetition_either(worker: Worker) -> None:
    worker.deliver(0, [("a", 0, 0)])
    ledger = worker.pipeline.ledger
    ledger.close_run(closure("default", b"{}"), ledger.newest_block("default"))
    worker.deliver(0, [("a", 0, 0)])

    assert verdicts(worker) == ["ADMITTED", "RUN_CLOSED"]


def test_memory_ends_with_the_session_and_not_with_the_ownership() -> None:
    source = Source(next(count(1 << 40)), 0)
    first = memory_of(source, 8, "one")

    assert memory_of(source, 8, "one") is first
    assert memory_of(source, 8, "two") is not first
    assert isinstance(memory_of(source, 8, "two").pairs, SettledPairs)
