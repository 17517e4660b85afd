"""One simulated world: its stores, its machines, who takes part, and everything that is seen of it from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa

from admitone.boundary.admission import BoundaryOptions
from admitone.boundary.rules import envelope_rules
from admitone.core.decisions import DISPOSING_ACTIONS, REASON_CODES, VERDICT_CODES, BlockState
from admitone.governance.rules_in_force import rules_in_force
from admitone.ledger.books import books
from admitone.ledger.decision_rows import Decision as Decided
from admitone.ledger.model import STREAM, SourceInfo
from admitone.ledger.stored_ledger import StoredLedger
from admitone.settings import Settings
from admitone.simulation.evidence import SimulatedEvidence, url_of
from admitone.simulation.ledger import SimulatedStore
from admitone.simulation.log import SimulatedLog
from admitone.simulation.observed import (
    Account,
    Answer,
    Decision,
    Look,
    Observed,
    Place,
    Position,
    Readable,
)
from admitone.simulation.participants import CalledLog, Stores
from admitone.simulation.schedule import Schedule
from admitone.simulation.simulated_clock import MachineClock, SimulatedTime
from admitone.simulation.simulated_events import RUNS, is_refused, read_event
from admitone.transport.port import OUTGOING_SCHEMA, Topic
from admitone.transport.topic_contract import destination_contracts

_BEGIN: Final = 1_767_607_200_000
_MINUTE: Final = 60_000
_RAW: Final = "raw.events"
_TOPIC: Final = "admitted.traffic"
LONG, SHORT = 100 * 24 * 60 * _MINUTE, 20 * _MINUTE


class Setup(NamedTuple):
    """What a history is run on."""

    partitions: int
    max_block: int
    retention_ms: int
    cache: int
    eagerness: float
    evidence: bool
    compacted: bool
    runs: int
    names: int
    """How many events there are of each run; producers send them again and again."""
    contradicts: float
    """How often an event has another payload than its first one."""
    refuses: float
    """How often an event has a payload that the broker refuses."""


class World:
    """The stores and machines of one history."""

    def __init__(self, setup: Setup, random: Random) -> None:
        self.setup = setup
        self.time = SimulatedTime(_BEGIN)
        self.schedule = Schedule(random, self.time, setup.eagerness)
        self.machines = [MachineClock(self.time) for _ in range(5)]
        """The last of them is the broker, the one before it the database."""
        self.seen = Observed(setup.retention_ms)
        self.log = SimulatedLog(
            self.machines[-1], self._readable, self._refuses if setup.refuses else None
        )
        self.store = SimulatedStore(self.schedule.call, self.machines[-2])
        self.evidence = SimulatedEvidence(self.schedule.call)
        settings, options = _settings(setup.compacted)
        self.raw = self.log.create_topic(_RAW, setup.partitions)
        self._producer = self.log.init_producer("upstream")
        rules = replace(options.rules, retention_ms=setup.retention_ms)
        self.stores = Stores(
            replace(options, rules=rules, max_block=setup.max_block, cache=setup.cache),
            settings,
            self.schedule,
            StoredLedger(self.store),
            CalledLog(self.log, self.schedule),
            self.evidence,
            self.raw,
        )
        self.went_back = 0
        self.is_behind = False
        """Whether the ledger was restored and has not caught up with the log yet."""
        self._has_url = False

    @property
    def admitted(self) -> Topic | None:
        """Return the destination topic, once it is there."""
        state = self.log.describe([_TOPIC]).get(_TOPIC)
        return state.topic if state else None

    def with_evidence_by_url(self) -> None:
        """Let settings name the evidence store, for those who open it themselves."""
        if self._has_url:
            return
        self._has_url = True
        settings = self.stores.settings
        by_url = settings.evidence.model_copy(update={"path": url_of(self.evidence)})
        dedup = settings.dedup.model_copy(update={"retention": self.setup.retention_ms})
        self.stores.settings = settings.model_copy(update={"evidence": by_url, "dedup": dedup})

    def say(self, what: Callable[[], str]) -> None:
        """Add a line to the trace."""
        self.schedule.trace.append(f"       {what()}")

    def deliver(self, partition: int, values: Sequence[bytes]) -> None:
        """Append to the raw log what a producer sends."""
        table = pa.table(
            [
                pa.array([partition] * len(values), pa.int32()),
                pa.nulls(len(values), pa.binary()),
                pa.array(values, pa.binary()),
                pa.array([[]] * len(values), OUTGOING_SCHEMA.field("headers").type),
            ],
            schema=OUTGOING_SCHEMA,
        )
        self.log.append("upstream", self._producer, {_RAW: table})

    def open_elsewhere(self, calls: int) -> None:
        """Let another application's transaction stay open on the destination topic for so many calls."""
        topic = self.admitted
        if topic is None:
            return
        records: list[dict[str, Any]] = [
            {"partition": number, "key": None, "value": b"another application's", "headers": []}
            for number in range(topic.partitions)
        ]
        table = pa.Table.from_pylist(records, schema=OUTGOING_SCHEMA)
        transaction = self.log.write("another", self.log.init_producer("another"), {_TOPIC: table})
        self.schedule.later(calls, lambda: self.log.commit(transaction))

    def look(self, *, at_the_end: bool = False) -> None:
        """Ask the ledger for everything it has decided."""
        try:
            self.seen.looks.append(self._look(at_the_end))
        except (ValueError, IndexError, KeyError) as error:
            # Columns of a block that do not fit together break in many places.
            self.seen.damaged = repr(error)

    def note_what_is_in_sight(self) -> None:
        """Note the records of what is of unknown fate, if nothing hides any: they cannot be given up any more."""
        topic = self.admitted
        self.look()
        if topic is None or self.log.ends(topic) != self.log.ends(topic, readable=True):
            return
        unknown = {
            each.identity
            for each in self.seen.looks[-1].decisions.values()
            if each.verdict == "AMBIGUOUS"
        }
        self.seen.in_sight |= {
            record.place for record in self.seen.readable if record.event.identity in unknown
        }

    def _look(self, at_the_end: bool) -> Look:
        decisions: dict[Position, Decision] = {}
        twice: list[Position] = []
        for position, decision in self._decisions():
            if position in decisions:
                twice.append(position)
            decisions[position] = decision
        runs = self.stores.ledger.runs()
        accounts = tuple(
            Account(
                run["run_id"],
                run["deliveries"],
                sum(run[verdict] for verdict in _VERDICTS),  # type: ignore[literal-required]
                run["balanced"],
            )
            for run in books(self.stores.ledger)["runs"]
        )
        closed = frozenset(run for run, state in runs.items() if state == "CLOSED")
        listed, kept = self._evidence()
        return Look(
            decisions, tuple(twice), accounts, closed, self.went_back, at_the_end, listed, kept
        )

    def _evidence(self) -> tuple[frozenset[bytes], frozenset[bytes]]:
        """Return the files that the ledger says are durable, and those that are, by their bytes; note who gave up."""
        if not self.setup.evidence:
            return frozenset(), frozenset()
        listed = {file.checksum for file in self.stores.ledger.evidence_files()}
        given_up = self.evidence.given_up()
        for identity in given_up:
            self.seen.given_up_for_good.setdefault(identity, len(self.seen.readable))
        return frozenset(listed), self.evidence.checksums()

    def was_closed(self, run: str) -> None:
        """Note that an operator was told that a run is closed."""
        self.seen.closed.setdefault(run, len(self.seen.readable))

    def restore(self, copy: bytes) -> None:
        """Put an older copy of the ledger in its place."""
        self.look()
        self.store.restore(copy)
        self.went_back += 1

    def answered(self, request: Sequence[bytes], decided: Sequence[Decided]) -> None:
        """Note what a client was told."""
        for value, row in zip(request, decided, strict=True):
            place = None
            if row["bus"] is not None:
                bus = row["bus"]
                place = Place(self._id_of(bus["topic"]), bus["partition"], bus["offset"])
            self.seen.answers.append(Answer(read_event(value), str(row["verdict"]), place))

    def unsettled(self) -> int:
        """Return how many blocks are in flight or of unknown fate."""
        states = [BlockState.IN_FLIGHT, BlockState.AMBIGUOUS]
        return len(self.stores.ledger.blocks(states=states))

    def undecided(self) -> int:
        """Return how many deliveries lie behind the marks."""
        marks = {
            info.source.partition: info.mark.offset
            for info in self.stores.ledger.sources()
            if info.topic_id == self.raw.topic_id and info.door == STREAM
        }
        return sum(each.offset > marks.get(each.partition, -1) for each in self.seen.delivered)

    def _decisions(self) -> Iterator[tuple[Position, Decision]]:
        ledger = self.stores.ledger
        names = {info.source: _name(info) for info in ledger.sources()}
        disposed = {
            (each.block_id, ordinal)
            for each in ledger.resolutions()
            if each.action in DISPOSING_ACTIONS
            for ordinal in each.changes["ordinal"].to_pylist()
        }
        for block, facts, verdicts, bus in ledger.decided():
            size = facts.num_rows
            places = bus["bus_offset"].to_pylist() if bus is not None else [None] * size
            columns = (
                facts["offset"].to_pylist(), facts["run"].to_pylist(), facts["event_id"].to_pylist(),
                facts["route"].to_pylist(), facts["partition"].to_pylist(), places,
                verdicts["verdict"].to_pylist(), verdicts["reason"].to_pylist(),
            )  # fmt: skip
            for ordinal, (
                offset,
                run,
                event,
                route,
                partition,
                place,
                verdict,
                reason,
            ) in enumerate(zip(*columns, strict=True)):
                found = None
                if place is not None:
                    found = Place(block.destinations[route].topic_id, partition, place)
                yield (
                    Position(names[block.source], block.source.partition, offset),
                    Decision(
                        (run, event), str(VERDICT_CODES[verdict]), _text(REASON_CODES[reason]), found,
                        (block.block_id, ordinal) in disposed,
                    ),
                )  # fmt: skip

    def _refuses(self, topic: str, value: bytes | None) -> bool:
        return topic == _TOPIC and is_refused(value)

    def _id_of(self, topic: str) -> str:
        return self.log.topic(topic).topic_id

    def _readable(self, topic: Topic, partition: int, offsets: list[int], rows: pa.Table) -> None:
        """Note what became readable: deliveries on the raw topic, records on the others."""
        for offset, value in zip(offsets, rows["value"].to_pylist(), strict=True):
            event = read_event(value)
            if topic.name == _RAW:
                position = Position(f"stream:{topic.topic_id}", partition, offset)
                self.seen.delivered[position] = event
            elif event is not None:
                if self.is_behind:
                    self.seen.decided_again(event)
                place = Place(topic.topic_id, partition, offset)
                self.seen.readable.append(Readable(place, event, self.seen.newest))


_VERDICTS = ("admitted", "duplicates", "replayed", "quarantined", "ambiguous")


def _name(info: SourceInfo) -> str:
    return f"{info.door}:{info.topic_id}"


def _text(value: object) -> str | None:
    return None if value is None else str(value)


@cache
def _settings(compacted: bool) -> tuple[Settings, BoundaryOptions]:
    """Return the settings of all histories, and the rules that they make."""
    entry: dict[str, Any] = {
        "family": "traffic", "topic": _TOPIC, "partitions": 2, "event_types": ("page_view",),
    }  # fmt: skip
    if compacted:
        # Compaction is not configured: an operator of the brokers sets it.
        entry |= {"record_key": "business_key"}
    settings = Settings(
        pipeline={"run_id": RUNS[0], "claim_lease": 1_000, "quarantine_limit": 1.0},  # type: ignore[arg-type]
        topics=(entry,),  # type: ignore[arg-type]
    )
    options = BoundaryOptions(
        pipeline=settings.pipeline.name,
        reads=_RAW,
        rules=envelope_rules(settings),
        in_force=rules_in_force(settings),
        contracts=destination_contracts(settings),
        max_block=1,
        claim_lease_ms=settings.pipeline.claim_lease,
        quarantine_limit=1.0,
    )
    return settings, options
