"""Random histories of the window on every store, against a model of a few dictionaries."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from admitone.core.decisions import CODE_OF_REASON, BlockState, Reason, Verdict
from admitone.core.errors import MarkMoved
from admitone.infra.clock import Clock, wall_clock
from admitone.ledger.model import Blocked, Claimed, Outcome, Source
from admitone.ledger.port import Ledger
from tests.support.clocks import LedgerClock
from tests.support.ledgers import DAY, NOW, OpenLedger, claim, facts, settle, verdicts
from tests.support.window_model import AGAIN, CONTRADICTION, NEW, TOO_OLD, Event, WindowModel

ClockedLedgers = Callable[[], tuple[OpenLedger, LedgerClock]]
SOURCES = [Source(1, 0), Source(1, 1), Source(2, 0)]
IDLE = 600_000
RETENTIONS = [100_000, 200_000, 1_000_001]
MEANING = {
    (Verdict.ADMITTED, None): NEW,
    (Verdict.DUPLICATE, None): AGAIN,
    (Verdict.QUARANTINED, Reason.PAYLOAD_MISMATCH): CONTRADICTION,
    (Verdict.QUARANTINED, Reason.TOO_OLD): TOO_OLD,
}


def read_facts(ledger: Ledger, source: Source, events: Sequence[Event], retention: int) -> pa.Table:
    """Return the facts of deliveries as step 1 leaves them, judged by the ledger's own mark."""
    mark = ledger.mark(source)
    stream_time, rows = mark.stream_time, []
    table = facts(*events, start=mark.offset + 1).to_pylist()
    for row, event in zip(table, events, strict=True):
        forgotten = mark.forgotten_before is not None and event.time < mark.forgotten_before
        if forgotten or (stream_time is not None and event.time < stream_time - retention + 1):
            row |= {
                "reason": CODE_OF_REASON[Reason.TOO_OLD],
                "identity": None,
                "payload_hash": None,
            }
        else:
            stream_time = event.time if stream_time is None else max(stream_time, event.time)
        rows.append(row | {"stream_time": stream_time})
    return pa.Table.from_pylist(rows, schema=facts().schema)


class Sources:
    """The sources of a ledger and of its model, driven together."""

    def __init__(
        self,
        store: tuple[OpenLedger, LedgerClock],
        retention: int,
        worker_clock: Clock = wall_clock,
    ) -> None:
        open_store, self._ledger_clock = store
        self.open_store = open_store
        self.worker_clock = worker_clock
        self.ledger = open_store()
        for source in SOURCES:
            self.ledger.register_source(source, "pipeline", "raw", f"topic-{source.producer_id}")
        self.epochs = {source: self.ledger.take_epoch(source, None) for source in SOURCES}
        self.model = WindowModel(retention, SOURCES)
        self.clock = NOW
        self.error = 0
        """How far the ledger's clock is ahead of the true one."""

    def pass_time(self, elapsed: int) -> None:
        """Let time pass."""
        self.clock += elapsed
        self._ledger_clock.set(self.clock + self.error)

    def jump(self, error: int) -> None:
        """Let the ledger's clock be wrong by so much."""
        self.error = error
        self._ledger_clock.set(self.clock + self.error)

    def ask(self, source: Source, events: Sequence[Event]) -> Claimed | Blocked:
        table = read_facts(self.ledger, source, events, self.model.retention)
        return claim(
            self.ledger, source, self.epochs[source], table, retention=self.model.retention
        )

    def conclude(self, source: Source, claimed: Claimed, state: BlockState) -> None:
        admitted = [row for row in verdicts(claimed) if row[0] is Verdict.ADMITTED]
        offsets = np.arange(len(admitted))
        outcome = Outcome(
            state, offsets if state is BlockState.SETTLED else None, NOW, self.worker_clock()
        )
        self.ledger.conclude(claimed.block, self.epochs[source], outcome)

    def deliver(self, source: Source, events: Sequence[Event]) -> list[str]:
        """Decide deliveries block by block; both must say the same about each of them."""
        decided: list[str] = []
        rest = list(events)
        while rest:
            piece = rest
            found = self.ask(source, piece)
            while isinstance(found, Blocked):
                assert found.by_block is None
                # A segment is opened in a transaction of its own: it stays open when the claim is given back.
                self.model.open_for(source, piece)
                piece = piece[: found.ordinal]
                found = self.ask(source, piece)
            self.conclude(source, found, BlockState.SETTLED)
            said = [MEANING[row] for row in verdicts(found)]
            assert said == self.model.decide(source, piece, self.clock)
            decided += said
            rest = rest[len(piece) :]
        return decided

    def expire(self) -> list[str]:
        expected = [f"admission.{start}" for start in self.model.expire(IDLE)]
        assert self.ledger.expire_segments(self.model.retention, IDLE) == expected
        for source in SOURCES:
            mark = self.ledger.mark(source)
            assert mark.forgotten_before == self.model.forgotten_before
            assert mark.stream_time == self.model.sources[source].stream_time
        return expected

    def restart(self) -> None:
        self.ledger.close()
        self.ledger = self.open_store()


def steps(retention: int) -> st.SearchStrategy[int]:
    """Return how far an event lies from the stream time: around both ends, around edges, and far away."""
    interval = max(retention // 2, 60_000)
    edges = [0, interval, retention, retention + interval, 2 * retention]
    near = [sign * edge + by for edge in edges for sign in (1, -1) for by in (-1, 0, 1)]
    return st.one_of(
        st.sampled_from(near),
        st.integers(-3 * retention, 3 * retention),
        st.sampled_from([30 * retention, -30 * retention]),
    )


class Machine(RuleBasedStateMachine):
    """Three sources deliver, pause, return and restart in any order; segments expire at any time."""

    def __init__(self, store: tuple[OpenLedger, LedgerClock], retention: int) -> None:
        super().__init__()
        self.both = Sources(store, retention)
        self.retention = retention

    def around(self, source: Source) -> int:
        return self.both.model.sources[source].stream_time or NOW

    @rule(
        source=st.sampled_from(SOURCES),
        data=st.data(),
        names=st.lists(
            st.tuples(st.sampled_from("abcdef"), st.sampled_from("xxxy")), min_size=1, max_size=6
        ),
    )
    def delivers(self, source: Source, data: st.DataObject, names: list[tuple[str, str]]) -> None:
        time, events = self.around(source), []
        for key, payload in names:
            events.append(Event(key, payload, time + data.draw(steps(self.retention))))
        self.both.deliver(source, events)

    @rule(source=st.sampled_from(SOURCES), segments=st.integers(2, 8))
    def bursts_over_many_segments(self, source: Source, segments: int) -> None:
        start, interval = self.around(source), self.both.model.interval
        events = [Event(f"burst-{n}", "x", start + n * interval) for n in range(segments)]
        self.both.deliver(source, [*events, *events])

    @rule(source=st.sampled_from(SOURCES))
    def repeats_at_an_edge(self, source: Source) -> None:
        interval = self.both.model.interval
        edge = self.around(source) // interval * interval
        self.both.deliver(
            source, [Event("edge", "x", edge + by) for by in (-1, 0, 1, interval - 1, interval)]
        )

    @rule(
        pair=st.permutations(SOURCES),
        key=st.sampled_from("abcdef"),
        data=st.data(),
        aborted=st.booleans(),
    )
    def two_claim_at_once(
        self, pair: list[Source], key: str, data: st.DataObject, aborted: bool
    ) -> None:
        one, two = pair[:2]
        mine, other = (
            Event(key, "x", self.around(source) + data.draw(steps(self.retention)))
            for source in (one, two)
        )
        first = self.both.ask(one, [mine])
        assert isinstance(first, Claimed)
        self.both.model.see(self.both.clock)
        self.both.model.open_for(one, [mine])
        waits = MEANING[verdicts(first)[0]] == NEW and self.must_wait(two, other)
        second = self.both.ask(two, [other])
        assert isinstance(second, Blocked) == waits
        if isinstance(second, Claimed):
            self.both.model.see(self.both.clock)
            self.both.conclude(two, second, BlockState.ABORTED)
        self.both.conclude(one, first, BlockState.ABORTED)
        self.both.model.open_for(two, [other])
        if not aborted:
            self.both.deliver(one, [mine])
            self.both.deliver(two, [other])

    def must_wait(self, source: Source, event: Event) -> bool:
        """Tell whether a key that another source has just claimed holds this delivery up.

        It does not where an older row is still live for this source: the oldest decides.
        """
        model = self.both.model
        ((refused, stream_time),) = model.read(source, [event])
        if refused or stream_time is None:
            return False
        return not (model.live(event.key, stream_time).keys() - {max(model.segments)})

    @rule(elapsed=st.sampled_from([1, IDLE - 1, IDLE, IDLE + 1]))
    def time_passes(self, elapsed: int) -> None:
        self.both.pass_time(elapsed)

    @rule(source=st.sampled_from(SOURCES), steps=st.integers(9, 12), by=st.sampled_from([0, 1]))
    def one_works_alone(self, source: Source, steps: int, by: int) -> None:
        for _ in range(steps):
            self.both.pass_time(IDLE // 10 + by)
            self.both.deliver(source, [Event("alone", "x", self.around(source))])

    @rule()
    def expires(self) -> None:
        self.both.expire()

    @rule()
    def restarts(self) -> None:
        self.both.restart()

    def teardown(self) -> None:
        self.both.expire()
        self.both.ledger.close()


def test_random_windows_agree_with_the_model(clocked_ledgers: ClockedLedgers) -> None:
    """Thousands of steps on each store."""
    for retention in RETENTIONS:
        run_state_machine_as_test(
            lambda retention=retention: Machine(clocked_ledgers(), retention),
            settings=settings(
                max_examples=12,
                stateful_step_count=40,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_ten_thousand_ages_around_both_ends_and_around_edges(
    clocked_ledgers: ClockedLedgers,
) -> None:
    both = Sources(clocked_ledgers(), 100 * DAY)
    chance = random.Random(4)
    source, interval, retention = SOURCES[0], both.model.interval, both.model.retention
    seen: dict[str, int] = {}
    time = NOW // interval * interval
    for number in range(25):
        edges = [0, retention, interval, retention - interval]
        ages = [
            chance.choice(edges) + chance.choice((-2, -1, 0, 1, 2))
            if chance.random() < 0.8
            else chance.randrange(retention + 10)
            for _ in range(400)
        ]
        later = time + retention + chance.choice((-1, 0, 1))
        firsts = [Event(f"{number}-{case}", "x", later - age) for case, age in enumerate(ages)]
        both.deliver(source, sorted(firsts, key=lambda event: event.time))
        again = [Event(event.key, "x", later - chance.randrange(interval)) for event in firsts]
        for verdict in both.deliver(source, [Event(f"clock-{number}", "x", later), *again]):
            seen[verdict] = seen.get(verdict, 0) + 1
        if number % 5 == 4:
            both.expire()
        time += retention + interval * chance.randrange(3)
    assert min(seen[NEW], seen[AGAIN]) > 1_000


@pytest.mark.parametrize("apart", [1, DAY, 99 * DAY])
def test_an_identity_claimed_at_once_at_different_times_is_admitted_once(
    clocked_ledgers: ClockedLedgers, apart: int
) -> None:
    both = Sources(clocked_ledgers(), 100 * DAY)
    names = [f"e{number}" for number in range(20)]
    together = threading.Barrier(2)
    admitted: list[str] = []

    def deliver(source: Source, moment: int) -> None:
        ledger = both.open_store()
        for name in names:
            together.wait(30)
            admitted.extend([name] * _decided_new(ledger, source, both, Event(name, "x", moment)))
        ledger.close()

    workers = [
        threading.Thread(target=deliver, args=(source, NOW + apart * number))
        for number, source in enumerate(SOURCES[:2])
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert sorted(admitted) == sorted(names)


def _decided_new(ledger: Ledger, source: Source, both: Sources, event: Event) -> int:
    """Claim one event until it is decided; return how often it was admitted."""
    while True:
        table = read_facts(ledger, source, [event], both.model.retention)
        try:
            found = claim(ledger, source, both.epochs[source], table)
        except MarkMoved:
            continue
        if isinstance(found, Claimed):
            settle(ledger, both.epochs[source], found)
            return verdicts(found).count((Verdict.ADMITTED, None))


def works_alone(both: Sources, source: Source, steps: int, moment: int) -> None:
    """Let one source take events while time passes and the others are silent."""
    for _ in range(steps):
        both.pass_time(IDLE // 10)
        both.deliver(source, [Event("alone", "x", moment)])


def test_a_silent_partition_does_not_hold_segments_for_ever(
    clocked_ledgers: ClockedLedgers,
) -> None:
    both = Sources(clocked_ledgers(), 100 * DAY)
    busy, silent = SOURCES[:2]
    both.deliver(silent, [Event("a", "x", NOW)])
    works_alone(both, busy, 10, NOW + 200 * DAY)
    assert both.expire() == []
    both.pass_time(1)
    both.deliver(busy, [Event("d", "x", NOW + 200 * DAY)])

    assert len(both.expire()) == 1


def test_a_pause_of_everything_makes_nobody_idle(clocked_ledgers: ClockedLedgers) -> None:
    both = Sources(clocked_ledgers(), 100 * DAY)
    busy, slow = SOURCES[:2]
    both.deliver(slow, [Event("a", "x", NOW)])
    both.deliver(busy, [Event("b", "x", NOW + 200 * DAY)])
    both.pass_time(3 * DAY)
    both.deliver(busy, [Event("c", "x", NOW + 200 * DAY)])

    assert both.expire() == []


def test_a_partition_that_returns_is_too_old_for_what_was_dropped(
    clocked_ledgers: ClockedLedgers,
) -> None:
    both = Sources(clocked_ledgers(), 100 * DAY)
    busy, silent = SOURCES[:2]
    both.deliver(busy, [Event("a", "x", NOW + 1)])
    both.deliver(silent, [Event("b", "x", NOW)])
    works_alone(both, busy, 11, NOW + 200 * DAY)
    assert len(both.expire()) == 1
    forgotten = both.model.forgotten_before
    assert forgotten is not None

    returning = [
        Event("a", "x", NOW + 1),
        Event("new", "x", forgotten - 1),
        Event("other", "x", forgotten),
    ]
    assert both.deliver(silent, returning) == [TOO_OLD, TOO_OLD, NEW]


def test_who_only_sends_what_is_refused_holds_nothing_back(clocked_ledgers: ClockedLedgers) -> None:
    both = Sources(clocked_ledgers(), 100 * DAY)
    busy, sick = SOURCES[:2]
    both.deliver(sick, [Event("a", "x", NOW)])
    for _ in range(11):
        both.pass_time(IDLE // 10)
        both.deliver(busy, [Event("c", "x", NOW + 200 * DAY)])
        both.deliver(sick, [Event("b", "x", NOW - 200 * DAY)])

    assert len(both.expire()) == 1


@pytest.mark.parametrize("whose", ["worker", "database"])
def test_a_hundred_jumps_of_a_clock_forget_nothing_that_an_active_source_needs(
    clocked_ledgers: ClockedLedgers, whose: str
) -> None:
    """Both sources take an event a minute; one of them is two hundred days behind."""
    chance = random.Random(7)
    both = Sources(clocked_ledgers(), 100 * DAY)
    fast, slow = SOURCES[:2]
    both.deliver(slow, [Event("kept", "x", NOW)])
    for number in range(100):
        error = chance.randrange(-30 * DAY, 30 * DAY)
        if whose == "worker":
            both.worker_clock = lambda error=error: NOW + error  # type: ignore[misc]
        else:
            both.jump(error)
        both.pass_time(30_000)
        both.deliver(fast, [Event(f"fast-{number}", "x", NOW + 200 * DAY + number)])
        assert both.expire() == []
        both.pass_time(30_000)
        moved = Event("kept", "x", NOW + number * DAY // 2)
        assert both.deliver(slow, [moved]) == [AGAIN]
        assert both.expire() == []

    works_alone(both, fast, 11, NOW + 200 * DAY)
    assert len(both.expire()) == 1
