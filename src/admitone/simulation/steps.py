"""What can happen in a history; each step draws what it needs and lets it happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from admitone.boundary.release import Choice
from admitone.infra.clock import Clock
from admitone.ledger.decision_rows import Decision
from admitone.simulation import participants as work
from admitone.simulation.schedule import FAULTS, Fault
from admitone.simulation.simulated_events import REFUSED, RUNS, event_of, read_event
from admitone.simulation.world import World

_DAY: Final = 86_400_000
_MINUTE: Final = 60_000
_PAYLOADS: Final = (0, 1, REFUSED)
_WHERE: Final = (("", 40), ("log.write", 3), ("log.commit", 3), ("ledger.write", 10))
"""At which calls faults strike, and how far ahead: where something is written more often than where it is read."""
_APPENDING: Final = ("log.write", "log.commit")
_TRANSACTION_TIMEOUT_MS: Final = _MINUTE

Step = Callable[["Steps", Random], None]


@dataclass(slots=True)
class Steps:
    """What can happen to a world."""

    world: World
    unanswered: list[list[bytes]] = field(default_factory=list)
    """The requests whose clients were told nothing yet."""
    loses_records: bool = False
    """Whether the log lost records, so that not everything can be found out any more."""
    happened: Counter[str] = field(default_factory=Counter)
    """Faults that do not strike at a call, by kind."""
    _copy: bytes | None = None
    _first_time: dict[tuple[str, str], int] = field(default_factory=dict)

    # What is delivered.

    def deliver(self, random: Random) -> None:
        """Append events to the raw log."""
        for partition in range(self.world.setup.partitions):
            self.world.deliver(partition, self._events(random, 2))

    def deliver_to_one(self, random: Random) -> None:
        """Append events to one partition of the raw log, so that the others fall behind."""
        partition = random.randrange(self.world.setup.partitions)
        self.world.deliver(partition, self._events(random, 2))

    def request(self, random: Random) -> None:
        """Send requests to a slot of the synchronous door, some of them again."""
        new = [self._events(random, 2) for _ in range(random.randint(1, 2))]
        self.unanswered += new
        chosen = [*new, *random.sample(self.unanswered, min(len(self.unanswered), 1))]
        self.open_lane(self._machine(random), random.randrange(3), chosen)

    def open_lane(self, clock: Clock, slot: int, requests: Sequence[list[bytes]]) -> None:
        """Let a worker of the synchronous door decide requests."""
        stores = self.world.stores
        self._start("lane", lambda: work.lane(stores, clock, slot, requests, self._answered))

    def _events(self, random: Random, most: int) -> list[bytes]:
        """Draw events of which many were sent before, and some contradict what was."""
        found, setup = [], self.world.setup
        for _ in range(random.randint(1, most)):
            if random.random() < 0.05:
                found.append(b"{}")
                continue
            event = RUNS[random.randrange(setup.runs)], f"e{random.randrange(setup.names)}"
            if random.random() < 0.3 or event not in self._first_time:
                self._first_time[event] = self.world.time.now - random.randrange(_MINUTE)
            moment = self._first_time[event]
            self.world.seen.newest = max(self.world.seen.newest, moment)
            (payload,) = random.choices(
                _PAYLOADS, (1 - setup.contradicts, setup.contradicts, setup.refuses)
            )
            if payload == REFUSED:
                self.world.seen.unpublishable.add(event)
            found.append(event_of(*event, payload, moment))
        self.world.say(lambda: " ".join(str(read_event(value)) for value in found))
        return found

    def _answered(self, request: Sequence[bytes], decided: list[Decision]) -> None:
        self.world.answered(request, decided)
        self.unanswered = [each for each in self.unanswered if each is not request]

    # Who takes part.

    def query(self, random: Random) -> None:
        """Start the streaming query, beside one that may still run; its checkpoint may be an old one."""
        if self.world.is_behind and random.random() < 0.8:
            return
        rolled_back = random.choice((0, 0, 3))
        self.happened["checkpoint"] += bool(rolled_back)
        self.start_query(self._machine(random), random.choice((1, 3, 8, 8)), rolled_back)

    def start_query(self, clock: Clock, at_once: int, rolled_back: int = 0) -> None:
        """Start the streaming query."""
        stores, evidence = self.world.stores, self.world.setup.evidence
        self._start(
            "query", lambda: work.query(stores, clock, at_once, rolled_back, evidence=evidence)
        )

    def reconcile(self, random: Random) -> None:
        """Let an operator resolve what is in flight or of unknown fate; of a restored ledger, read back first."""
        self.start_reconciliation(self._machine(random))

    def start_reconciliation(self, clock: Clock) -> None:
        """Resolve what is unsettled; a restored ledger catches up first."""
        stores = self.world.stores
        if self.world.is_behind:
            self._start("reading-back", lambda: work.reading_back(stores, clock, self._caught_up))
        else:
            self._start("reconcile", lambda: work.reconciliation(stores, clock))

    def _caught_up(self) -> None:
        self.world.is_behind = False

    def release(self, random: Random) -> None:
        """Let an operator deliver again what is in quarantine."""
        clock, choice = self._machine(random), random.choice([*Choice])
        self._start("release", lambda: work.releasing(self.world.stores, clock, choice))

    def discard(self, random: Random) -> None:
        """Let an operator give up some of what is in quarantine."""
        clock = self._machine(random)
        chosen = Random(random.random())
        self._start(
            "discard",
            lambda: work.discarding(self.world.stores, clock, lambda: chosen.random() < 0.5),
        )

    def give_up(self, random: Random) -> None:
        """Let an operator give up a block of unknown fate."""
        clock = self._machine(random)
        self.world.seen.given_up = True
        if not self.world.is_behind:
            self.world.note_what_is_in_sight()
        self._start("give up", lambda: work.giving_up(self.world.stores, clock))

    def close(self, random: Random) -> None:
        """Let an operator close a run."""
        clock, run = self._machine(random), RUNS[random.randrange(self.world.setup.runs)]
        self.world.with_evidence_by_url()
        self.world.seen.closing.add(run)
        told = self.world.was_closed
        self._start("close", lambda: work.closing(self.world.stores, clock, run, told))

    def repair(self, random: Random) -> None:
        """Let an operator verify a run, and write again what is missing of its evidence."""
        run = RUNS[random.randrange(self.world.setup.runs)]
        self.world.with_evidence_by_url()
        self._start("repair", lambda: work.repairing(self.world.stores, run))

    def write_evidence(self, random: Random) -> None:
        """Let the service write what evidence is missing."""
        clock = self._machine(random)
        self._start("evidence", lambda: work.writing_evidence(self.world.stores, clock))

    # What goes wrong.

    def fault(self, random: Random) -> None:
        """Let a fault strike at a call that is about to be made."""
        of, furthest = random.choice(_WHERE)
        kind, at, length = random.choice(FAULTS), random.randint(1, furthest), random.randint(1, 80)
        self.world.schedule.strike(Fault(kind, at, length, of))

    def overtake(self, random: Random) -> None:
        """Suspend whoever is about to write, and let a successor start meanwhile."""
        of = random.choice(("log.init", "log.write", "log.commit", "ledger.write", "ledger.write"))
        fault = Fault("suspend", random.randint(1, 3), random.randint(20, 120), of)
        self.world.schedule.strike(fault)
        self.start_query(self._machine(random), 8)

    def suspend(self, random: Random) -> None:
        """Suspend whoever publishes or writes soon, or has just published, for long."""
        of, furthest = random.choice((("log.commit", 3), ("log.topic", 4), ("ledger.write", 14)))
        at, length = random.randint(1, furthest), random.randint(80, 300)
        self.world.schedule.strike(Fault("suspend", at, length, of))

    def lose(self, random: Random) -> None:
        """Lose one of the next appends or the answer to it, or let its end come late."""
        kind, of = random.choice(("lost", "unsent", "late")), random.choice(_APPENDING)
        self.world.schedule.strike(Fault(kind, random.randint(1, 3), random.randint(1, 20), of))

    def repeat(self, random: Random) -> None:
        """Let one of the next requests to commit arrive twice, about when the next append is under way."""
        fault = Fault("repeated", random.randint(1, 2), random.randint(6, 9), "log.commit")
        self.world.schedule.strike(fault)

    def kill(self, random: Random) -> None:
        """End a participant where it stands."""
        running = self.world.schedule.participants
        if running:
            self.happened["kill"] += 1
            self.world.schedule.kill(random.choice(running))

    def jump(self, random: Random) -> None:
        """Set the clock of a machine, or of the broker."""
        self.happened["clock"] += 1
        by = random.choice((-1, 1)) * random.choice((_MINUTE, 60 * _MINUTE, _DAY))
        random.choice(self.world.machines).jump(by)

    def hide(self, random: Random) -> None:
        """Let another application's open transaction hide what is committed behind it."""
        self.happened["hidden"] += 1
        self.world.open_elsewhere(random.randint(1, 90))

    def truncate(self, random: Random) -> None:
        """Let the broker drop the oldest admitted records."""
        topic = self.world.admitted
        if topic is not None:
            self.loses_records = True
            self.happened["truncation"] += 1
            partition = random.randrange(topic.partitions)
            end = self.world.log.ends(topic)[partition]
            self.world.log.truncate(topic, partition, random.randint(0, end))

    def recreate(self, random: Random) -> None:
        """Let an operator delete the admitted topic; what is admitted next, once it was accepted, is all it holds."""
        topic = self.world.admitted
        if topic is not None:
            self.loses_records = True
            self.happened["recreation"] += 1
            self.world.log.delete_topic(topic.name)
            if random.random() < 0.8:
                self.world.log.create_topic(topic.name, topic.partitions)

    def compact(self, random: Random) -> None:
        """Let the broker keep only the last admitted record of each key."""
        topic = self.world.admitted
        if topic is not None:
            self.loses_records = True
            self.happened["compaction"] += 1
            self.world.log.compact(topic)

    def back_up(self, random: Random) -> None:
        """Copy the ledger in the middle of what happens, some calls from now."""
        self.world.schedule.later(random.randrange(60), self._back_up)

    def copy(self, random: Random) -> None:
        """Copy the ledger now."""
        self._back_up()

    def _back_up(self) -> None:
        self._copy = self.world.store.backup()

    def restore(self, random: Random) -> None:
        """Stop everything and put the last copy of the ledger in its place."""
        for participant in list(self.world.schedule.participants):
            self.world.schedule.kill(participant)
        self.restore_beside(random)

    def restore_beside(self, random: Random) -> None:
        """Put the last copy of the ledger in its place while everything runs on, which operators are told not to do."""
        if self._copy is None:
            return
        self.happened["restore"] += 1
        self.world.restore(self._copy)
        self.world.is_behind = True

    # What else happens.

    def later(self, random: Random) -> None:
        """Let time pass; what is open for long is aborted."""
        self.wait(random.randrange(30 * _MINUTE))

    def wait(self, milliseconds: int) -> None:
        """Let time pass."""
        self.world.time.pass_by(milliseconds)
        if milliseconds >= _TRANSACTION_TIMEOUT_MS:
            self.world.log.time_out()

    def finish(self, random: Random) -> None:
        """Let everybody come to an end who can."""
        self.world.schedule.run(400)

    def look(self, random: Random) -> None:
        """Ask the ledger for everything it has decided."""
        self.world.look()

    def _machine(self, random: Random) -> Clock:
        """Return the clock of a machine that is not the broker."""
        return random.choice(self.world.machines[:-2])

    def _start(self, name: str, what: Callable[[], object]) -> None:
        self.world.schedule.start(name, what)
