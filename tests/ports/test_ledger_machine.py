"""Random histories of a ledger against a model of a few dictionaries: whatever happens, both say the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from admitone.core.decisions import Action, BlockState
from admitone.core.errors import Fenced, MarkMoved, NotFound, RunIsRed
from admitone.ledger.books import books
from admitone.ledger.decision_rows import decisions, in_quarantine
from admitone.ledger.model import (
    Blocked,
    Filter,
    Outcome,
    Resolved,
    Source,
)
from admitone.ledger.outcomes import ambiguous_admissions
from admitone.ledger.port import Ledger
from tests.support.closures import closure
from tests.support.ledgers import NOW, OpenLedger, claim, facts

SOURCES = [Source(1, 0), Source(1, 1), Source(2, 0)]
RUNS = ["r", "s"]
DELIVERY = st.tuples(st.sampled_from("abcde"), st.sampled_from("xy"))
Place = tuple[int, int]


@dataclass
class Held:
    """Who holds an identity: a block and ordinal, with the payload."""

    place: Place
    payload: str


@dataclass
class ModelBlock:
    source: Source
    run: str
    deliveries: list[tuple[str, str]]
    state: str = "IN_FLIGHT"
    refused: frozenset[int] = frozenset()
    verdicts: dict[int, tuple[str, str | None, Place | None]] = field(default_factory=dict)


class Machine(RuleBasedStateMachine):
    """Sources claim, conclude, lose ownership, resolve and dispose in any order."""

    def __init__(self, open_store: Callable[[], Ledger]) -> None:
        super().__init__()
        self.open_store = open_store
        self.steps = 0
        self.ledger = open_store()
        for source in SOURCES:
            self.ledger.register_source(source, "pipeline", "raw", f"topic-{source.producer_id}")
        generation = self.ledger.take_generation("pipeline")
        self.epochs = {source: self.ledger.take_epoch(source, generation) for source in SOURCES}
        self.stale: dict[Source, int] = {}
        self.ends = dict.fromkeys(SOURCES, 0)
        self.blocks: dict[int, ModelBlock] = {}
        self.holders: dict[tuple[str, str], Held] = {}
        self.done: set[Place] = set()
        self.closed: set[str] = set()
        self.anomalies: set[tuple[str, str, str]] = set()

    # What the model thinks ----------------------------------------------------------------------

    def state_of(self, held: Held) -> str:
        block = self.blocks[held.place[0]]
        if block.state != "IN_FLIGHT" and held.place[1] in block.refused:
            return "ABORTED"
        return block.state

    def in_flight(self, source: Source) -> int | None:
        found = [n for n, b in self.blocks.items() if b.source == source and b.state == "IN_FLIGHT"]
        return found[0] if found else None

    def judge(self, held: Held, payload: str) -> tuple[str, str | None, Place]:
        same = held.payload == payload
        return {
            "SETTLED": ("DUPLICATE", None) if same else ("QUARANTINED", "PAYLOAD_MISMATCH"),
            "AMBIGUOUS": ("AMBIGUOUS", "PUBLISH_UNKNOWN"),
            "RETRACTED": ("QUARANTINED", "IDENTITY_RETRACTED"),
        }[self.state_of(held)] + (held.place,)

    def payload_at(self, place: Place) -> str:
        return self.blocks[place[0]].deliveries[place[1]][1]

    def decide(self, number: int, block: ModelBlock) -> int | None:
        """Fill in the verdicts; return the ordinal that has to wait, if one has."""
        fresh: dict[str, Held] = {}
        for ordinal, (name, payload) in enumerate(block.deliveries):
            held = self.holders.get((block.run, name))
            if block.run in self.closed:
                block.verdicts[ordinal] = ("QUARANTINED", "RUN_CLOSED", None)
            elif name in fresh:
                same = fresh[name].payload == payload
                verdict = ("DUPLICATE", None) if same else ("QUARANTINED", "PAYLOAD_MISMATCH")
                block.verdicts[ordinal] = (*verdict, fresh[name].place)
            elif held is None or self.state_of(held) == "ABORTED":
                fresh[name] = Held((number, ordinal), payload)
                block.verdicts[ordinal] = ("ADMITTED", None, None)
            elif self.state_of(held) == "IN_FLIGHT":
                return ordinal
            else:
                block.verdicts[ordinal] = self.judge(held, payload)
        for name, held in fresh.items():
            self.holders[block.run, name] = held
        return None

    def note_anomalies(self, number: int, ordinals: list[int]) -> None:
        block = self.blocks[number]
        for ordinal in ordinals:
            if block.verdicts[ordinal][1] == "PAYLOAD_MISMATCH":
                self.anomalies.add((block.run, *block.deliveries[ordinal]))

    # What happens -------------------------------------------------------------------------------

    @rule(
        source=st.sampled_from(SOURCES),
        run=st.sampled_from(RUNS),
        deliveries=st.lists(DELIVERY, min_size=1, max_size=6),
        state=st.sampled_from(["SETTLED", "SETTLED", "AMBIGUOUS", "AMBIGUOUS", "ABORTED"]),
        refuse=st.booleans(),
    )
    def decides(
        self, source: Source, run: str, deliveries: list[tuple[str, str]], state: str, refuse: bool
    ) -> None:
        if self.in_flight(source) is None:
            self.claims(source, run, deliveries)
        if self.in_flight(source) is not None:
            self.conclude(source, state, refuse)

    @rule(
        source=st.sampled_from(SOURCES),
        run=st.sampled_from(RUNS),
        deliveries=st.lists(DELIVERY, min_size=1, max_size=6),
    )
    def claims(self, source: Source, run: str, deliveries: list[tuple[str, str]]) -> None:
        table = facts(*deliveries, start=self.ends[source], run=run)
        if self.in_flight(source) is not None:
            with pytest.raises(MarkMoved):
                claim(self.ledger, source, self.epochs[source], table)
            return
        found = claim(self.ledger, source, self.epochs[source], table)
        block = ModelBlock(source, run, deliveries)
        number = -1 if isinstance(found, Blocked) else found.block.block_id
        waits = self.decide(number, block)
        if isinstance(found, Blocked):
            assert found.ordinal == waits
            return
        assert waits is None
        self.blocks[number] = block

    @precondition(lambda self: any(b.state == "IN_FLIGHT" for b in self.blocks.values()))
    @rule(
        data=st.data(),
        state=st.sampled_from(["SETTLED", "ABORTED", "AMBIGUOUS"]),
        refuse=st.booleans(),
    )
    def concludes(self, data: st.DataObject, state: str, refuse: bool) -> None:
        flying = [source for source in SOURCES if self.in_flight(source) is not None]
        self.conclude(data.draw(st.sampled_from(flying)), state, refuse)

    def conclude(self, source: Source, state: str, refuse: bool) -> None:
        number = self.in_flight(source)
        assert number is not None
        block = self.blocks[number]
        planned = [o for o, verdict in block.verdicts.items() if verdict[0] == "ADMITTED"]
        refused = frozenset(planned[:1] if refuse and state != "ABORTED" else ())
        (row,) = self.ledger.blocks(states=[BlockState.IN_FLIGHT], source=source)
        if refused:
            row = self.ledger.refuse(row, self.epochs[source], sorted(refused))
        offsets = np.arange(len(planned) - len(refused)) if state == "SETTLED" else None
        outcome = Outcome(BlockState(state), offsets, NOW, NOW, tuple(sorted(refused)))
        self.ledger.conclude(row, self.epochs[source], outcome)
        block.state = state
        if state == "ABORTED":
            block.verdicts.clear()
            return
        block.refused = refused
        self.ends[source] += len(block.deliveries)
        for ordinal, (verdict, _, first) in block.verdicts.items():
            within = first is not None and first[0] == number
            if ordinal in refused or (within and first is not None and first[1] in refused):
                block.verdicts[ordinal] = ("QUARANTINED", "PUBLISH_FAILED", first)
            elif state == "AMBIGUOUS" and (verdict == "ADMITTED" or within):
                block.verdicts[ordinal] = ("AMBIGUOUS", "PUBLISH_UNKNOWN", first)
            elif verdict == "AMBIGUOUS" and first is not None and not within:
                held = Held(first, self.payload_at(first))
                block.verdicts[ordinal] = self.judge(held, block.deliveries[ordinal][1])
        self.note_anomalies(number, list(block.verdicts))

    @precondition(lambda self: any(b.state == "AMBIGUOUS" for b in self.blocks.values()))
    @rule(data=st.data(), found=st.booleans())
    def resolves(self, data: st.DataObject, found: bool) -> None:
        number = data.draw(
            st.sampled_from([n for n, b in self.blocks.items() if b.state == "AMBIGUOUS"])
        )
        block = self.blocks[number]
        state = BlockState.SETTLED if found else BlockState.RETRACTED
        (row,) = self.ledger.blocks(ids=[number])
        _, verdicts, _ = self.ledger.columns(number)
        offsets = np.arange(len(ambiguous_admissions(verdicts))) if found else None
        action = Action.FOUND if found else Action.RETRACTED
        resolved = Resolved(state, action, offsets, NOW if found else None, NOW, "me", "looked")
        self.ledger.resolve(row, self.epochs[block.source], resolved)
        block.state = str(state)
        for other_number, other in self.blocks.items():
            if other.state in ("IN_FLIGHT", "ABORTED"):
                continue
            changed = []
            for ordinal, (verdict, _, first) in other.verdicts.items():
                if verdict != "AMBIGUOUS":
                    continue
                if first is None and other_number == number:
                    admitted = ("ADMITTED", None, None)
                    given_up = ("QUARANTINED", "IDENTITY_RETRACTED", None)
                    other.verdicts[ordinal] = admitted if found else given_up
                elif first is not None and first[0] == number:
                    held = Held(first, self.payload_at(first))
                    other.verdicts[ordinal] = self.judge(held, other.deliveries[ordinal][1])
                    changed.append(ordinal)
            self.note_anomalies(other_number, changed)

    @precondition(lambda self: not self.stale)
    @rule(source=st.sampled_from(SOURCES))
    def is_taken_over(self, source: Source) -> None:
        self.stale[source] = self.epochs[source]
        self.epochs[source] = self.ledger.take_epoch(source, None)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def zombie_writes(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from(sorted(self.stale)))
        table = facts(("zombie", "z"), start=self.ends[source])
        with pytest.raises(Fenced):
            claim(self.ledger, source, self.stale[source], table)
        for row in self.ledger.blocks(states=[BlockState.IN_FLIGHT], source=source):
            outcome = Outcome(BlockState.ABORTED, None, None, NOW)
            with pytest.raises(Fenced):
                self.ledger.conclude(row, self.stale[source], outcome)
        del self.stale[source]

    @rule(data=st.data(), action=st.sampled_from([Action.DISCARDED, Action.KEPT_FIRST]))
    def is_disposed(self, data: st.DataObject, action: Action) -> None:
        places = [
            (n, o)
            for n, b in self.blocks.items()
            if b.state not in ("IN_FLIGHT", "ABORTED")
            for o in b.verdicts
        ]
        if not places:
            return
        number, ordinal = data.draw(st.sampled_from(places))
        block = self.blocks[number]
        arguments = (number, [ordinal], action, NOW, "me", "because")
        verdict, reason, _ = block.verdicts[ordinal]
        if verdict != "QUARANTINED":
            with pytest.raises(NotFound):
                self.ledger.dispose(*arguments)
            return
        assert self.ledger.dispose(*arguments) == ((number, ordinal) not in self.done)
        if reason == "PAYLOAD_MISMATCH" and (number, ordinal) not in self.done:
            self.anomalies.discard((block.run, *block.deliveries[ordinal]))
        self.done.add((number, ordinal))

    @precondition(lambda self: len(self.blocks) > 8)
    @rule(run=st.sampled_from(RUNS), guess=st.integers(-1, 0))
    def is_closed(self, run: str, guess: int) -> None:
        newest = self.ledger.newest_block(run)
        flying = any(b.state == "IN_FLIGHT" and b.run == run for b in self.blocks.values())
        if run in self.closed or flying or guess or not newest:
            with pytest.raises(RunIsRed):
                self.ledger.close_run(closure(run, b"artifact"), newest + guess)
            return
        self.ledger.close_run(closure(run, b"artifact"), newest)
        self.closed.add(run)

    @rule()
    def restarts(self) -> None:
        self.ledger.close()
        self.ledger = self.open_store()

    # What always holds --------------------------------------------------------------------------

    @invariant()
    def now_and_then_everything_is_compared(self) -> None:
        # What is wrong stays wrong, so looking at every fifth step and at the end finds it too.
        self.steps += 1
        if self.steps % 5 == 0:
            self.compare()

    def compare(self) -> None:
        self.decisions_are_the_models()
        self.books_balance()
        self.what_is_open_is_known()

    def decisions_are_the_models(self) -> None:
        found = {
            row["id"]: (row["verdict"], row["reason"]) for row in decisions(self.ledger, Filter())
        }
        expected = {
            f"{number}-{ordinal}": verdict[:2]
            for number, block in self.blocks.items()
            if block.state not in ("IN_FLIGHT", "ABORTED")
            for ordinal, verdict in block.verdicts.items()
        }
        assert found == expected

    def books_balance(self) -> None:
        runs = books(self.ledger)["runs"]
        assert all(run["balanced"] for run in runs)
        total = sum(run["deliveries"] for run in runs)
        assert total == sum(self.ends.values())

    def what_is_open_is_known(self) -> None:
        waiting = {
            (block, ordinal)
            for block, ordinals in in_quarantine(self.ledger, Filter()).items()
            for ordinal in ordinals
        }
        assert waiting == {
            (number, ordinal)
            for number, block in self.blocks.items()
            if block.state not in ("IN_FLIGHT", "ABORTED")
            for ordinal, verdict in block.verdicts.items()
            if verdict[0] == "QUARANTINED" and (number, ordinal) not in self.done
        }
        assert len(self.ledger.anomalies()) == len(self.anomalies)

    def teardown(self) -> None:
        self.compare()
        self.ledger.close()


def test_random_histories_agree_with_the_model(fresh_ledgers: Callable[[], OpenLedger]) -> None:
    """Thousands of steps on each store."""
    run_state_machine_as_test(
        lambda: Machine(fresh_ledgers()),
        settings=settings(
            max_examples=40,
            stateful_step_count=50,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
