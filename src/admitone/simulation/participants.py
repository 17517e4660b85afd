"""Who takes part: what the queries, the service and operators do with the boundary, without Spark and HTTP.

Each is a function that runs under a turn of its own. What it keeps in memory is gone when it ends; what it was told
before may be wrong by then. It calls what the product calls, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa

from admitone.boundary.admission import Boundary, BoundaryOptions, Writable
from admitone.boundary.batches import Batches, Begun, note_read
from admitone.boundary.doors import Delivery, DoorSlot
from admitone.boundary.ledger_age import must_know_its_log
from admitone.boundary.reconciliation import reconcile, retract
from admitone.boundary.release import Choice, Signature, release
from admitone.boundary.restore.read_back import read_back
from admitone.core.decisions import Action, BlockState
from admitone.core.errors import AdmitoneError, Fenced, MarkMoved, NeedsFence
from admitone.evidence.audit.closing import close_run
from admitone.evidence.audit.verify import repair_and_verify
from admitone.evidence.originals import deliveries
from admitone.evidence.writer import EvidenceWriter
from admitone.infra.clock import Clock
from admitone.ledger.decision_rows import Decision, in_quarantine
from admitone.ledger.model import Filter
from admitone.ledger.stored_ledger import StoredLedger
from admitone.settings import Settings
from admitone.simulation.evidence import SimulatedEvidence
from admitone.simulation.log import SimulatedLog, Transaction
from admitone.simulation.schedule import Participant, Schedule
from admitone.transport.port import Appended, Topic

T = TypeVar("T")
_sessions = count(1)
"""What a process remembers of a query is known by its session, so no two histories may share one."""
_ATTEMPTS = 2
"""How often Spark runs a task, and how often a lane takes its slot over, before it gives up."""


class CalledLog:
    """The log as participants see it: each request is a call, an append two of them."""

    def __init__(self, log: SimulatedLog, schedule: Schedule) -> None:
        self._log = log
        self._schedule = schedule
        self._call = schedule.call
        self._ended_twice: set[tuple[str, int]] = set()
        """Whose requests to end a transaction may still arrive."""
        self.cluster, self.offset_kind = log.cluster, log.offset_kind

    def __getattr__(self, name: str) -> Callable[..., Any]:
        ask = getattr(self._log, name)

        def asked(*values: Any, **named: Any) -> Any:
            return self._call(f"log.{name}", lambda: ask(*values, **named))

        return asked

    def append(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Appended:
        """Send the records, then commit them, as the client of a broker does."""
        if (name, epoch) in self._ended_twice:
            raise NeedsFence(f"An end of a transaction of {name!r} may still arrive.", "fence it")
        transaction = self._call("log.write", lambda: self._log.write(name, epoch, records))
        if transaction.refused:
            self._end("log.abort", transaction, self._log.abort)
            transaction.must_be_whole()
        return self._end("log.commit", transaction, self._log.commit)

    def _end(self, call: str, transaction: Transaction, end: Callable[[Transaction], T]) -> T:
        ended = self._call(call, lambda: end(transaction))
        if self._schedule.was_repeated():
            self._ended_twice.add((transaction.name, transaction.epoch))
        return ended

    def read(self, *place: Any, committed: bool = True) -> Iterator[pa.RecordBatch]:
        """Read a range in one request."""
        return iter(
            self._call("log.read", lambda: list(self._log.read(*place, committed=committed)))
        )

    def close(self) -> None:
        """Do nothing: all participants share the log."""


@dataclass(slots=True)
class Stores:
    """What participants share, and how they reach it."""

    options: BoundaryOptions
    settings: Settings
    schedule: Schedule
    ledger: StoredLedger
    log: CalledLog
    evidence: SimulatedEvidence
    topic: Topic

    def boundary(self, clock: Clock, writable: Writable | None = None) -> Boundary:
        """Open the boundary in a new process."""
        schedule = self.schedule
        return Boundary(
            self.options, self.ledger, self.log, clock, writable, schedule.pause, schedule.stopwatch
        )

    def must_know_its_log(self) -> None:
        """Refuse what operators do to a ledger that is older than its log, as their commands do first."""
        must_know_its_log(self.ledger, self.log, self.settings)


def query(stores: Stores, clock: Clock, at_once: int, rolled_back: int, *, evidence: bool) -> None:
    """Decide what is on the raw log until nothing is left, as the streaming query does.

    It reads so many offsets of a partition at once. It begins at the marks or, where a checkpoint says otherwise, so
    many offsets before them.
    """
    session = f"simulated-{next(_sessions)}"
    boundary = stores.boundary(clock)
    ledger, log, topic = boundary.ledger, boundary.transport, stores.topic
    database = ledger.database()
    batches = Batches(boundary, topic, boundary.start(topic), database)
    boundary.expire()
    known = {info.source: info.next_offset for info in ledger.sources()}
    reached = [
        max((known[boundary.source(topic, number)] or 0) - rolled_back, 0)
        for number in range(topic.partitions)
    ]
    note_read(boundary, topic, dict(enumerate(reached)), database)
    writer = EvidenceWriter(ledger, stores.evidence, boundary.options.pipeline)
    while True:
        ends = log.ends(topic, readable=True)
        spans = {
            number: (reached[number], min(end, reached[number] + at_once))
            for number, end in enumerate(ends)
            if reached[number] < end
        }
        if not spans:
            return
        reached_then = {number: end for number, (_, end) in spans.items()}
        batches.decide(
            partial(_decided, stores, clock, boundary, session, spans),
            lambda: reached_then,  # noqa: B023
        )
        for number, end in reached_then.items():
            reached[number] = end
        if evidence:
            boundary.upkeep(writer, stores.settings.evidence.journal_retention)
        else:
            boundary.expire()


def _decided(
    stores: Stores,
    clock: Clock,
    boundary: Boundary,
    session: str,
    spans: Mapping[int, tuple[int, int]],
    begun: Begun,
) -> None:
    """Let a task decide a range of offsets of each partition."""
    writable = boundary.writable
    tasks = [
        _task(
            stores,
            f"task-{begun.generation}.{number}",
            partial(_admit, stores, clock, writable, begun, session, number, span),
        )
        for number, span in spans.items()
    ]
    stores.schedule.wait(lambda: all(task.is_over for task in tasks))
    for task in tasks:
        if task.killed or task.error is not None:
            raise task.error or RuntimeError(f"{task.name} was killed")


def _task(stores: Stores, name: str, work: Callable[[], None]) -> Participant:
    """Run a task as Spark does: again where it fails, under the same generation."""

    def attempts() -> None:
        for left in reversed(range(_ATTEMPTS)):
            try:
                return work()
            except Exception:
                if not left:
                    raise

    return stores.schedule.start(name, attempts)


def _admit(
    stores: Stores,
    clock: Clock,
    writable: Writable,
    begun: Begun,
    session: str,
    partition: int,
    span: tuple[int, int],
) -> None:
    """Admit what a partition holds in a range of offsets."""
    boundary = stores.boundary(clock, writable)
    batches = list(boundary.transport.read(stores.topic, partition, *span))
    if batches:
        begin = begun.begins.get(partition)
        owned = boundary.own(
            stores.topic, partition, begun.generation, session, begin, begun.database
        )
        for _ in owned.admit(pa.Table.from_batches(batches)):
            pass


def lane(
    stores: Stores,
    clock: Clock,
    number: int,
    requests: Sequence[Sequence[bytes]],
    answered: Callable[[Sequence[bytes], list[Decision]], None],
) -> None:
    """Decide requests at a slot of the synchronous door, as one of the service's workers does.

    A client that gets no answer goes away. It may come again with the same request, perhaps at another slot.
    """
    boundary = stores.boundary(clock)
    slot: DoorSlot | None = None
    for request in requests:
        decided: list[Decision] = []
        for left in reversed(range(_ATTEMPTS)):
            try:
                slot = slot or DoorSlot(boundary, number)
                for rows in slot.admit([Delivery(value) for value in request[len(decided) :]]):
                    decided += rows
                break
            except AdmitoneError as error:
                slot = None
                stores.schedule.trace.append(f"       no answer: {error}")
                if not isinstance(error, Fenced | MarkMoved) or not left:
                    break
        if len(decided) == len(request):
            answered(request, decided)


def reconciliation(stores: Stores, clock: Clock, *, by_operator: bool = True) -> None:
    """Resolve whatever is in flight or of unknown fate, as `admitone reconcile` does."""
    boundary = stores.boundary(clock)
    boundary.must_know_its_log()
    for _ in reconcile(boundary, by_operator=by_operator):
        pass


def reading_back(stores: Stores, clock: Clock, done: Callable[[], None]) -> None:
    """Let a restored ledger catch up with the log, as `admitone reconcile --restored` does."""
    read_back(stores.boundary(clock), stores.topic, stores.evidence)
    done()
    reconciliation(stores, clock, by_operator=False)


def releasing(stores: Stores, clock: Clock, choice: Choice) -> None:
    """Deliver what is in quarantine again."""
    stores.must_know_its_log()
    boundary = stores.boundary(clock)
    chosen = in_quarantine(boundary.ledger, Filter())
    fetch = partial(deliveries, boundary.ledger, stores.evidence)
    release(boundary, fetch, chosen, Signature("ann", "looked at it"), choice)


def discarding(stores: Stores, clock: Clock, share: Callable[[], bool]) -> None:
    """Give up some of what is in quarantine."""
    stores.must_know_its_log()
    for block_id, ordinals in in_quarantine(stores.ledger, Filter()).items():
        chosen = [ordinal for ordinal in ordinals if share()]
        if chosen:
            stores.ledger.dispose(block_id, chosen, Action.DISCARDED, clock(), "bob", "not needed")


def giving_up(stores: Stores, clock: Clock) -> None:
    """Give up a block of unknown fate."""
    stores.must_know_its_log()
    boundary = stores.boundary(clock)
    for block in boundary.ledger.blocks(states=[BlockState.AMBIGUOUS])[:1]:
        retract(boundary, block.block_id, "cid", "cannot wait")


def closing(stores: Stores, clock: Clock, run: str, told: Callable[[str], None]) -> None:
    """Close a run, if its gate is green, and say so."""
    stores.must_know_its_log()
    if run in stores.ledger.runs():
        done = close_run(run, stores.ledger, stores.log, stores.settings, now=clock())
        if done.closed:
            told(run)


def writing_evidence(stores: Stores, clock: Clock) -> None:
    """Write what evidence is missing."""
    EvidenceWriter(stores.ledger, stores.evidence, stores.options.pipeline).write_pending(clock())


def repairing(stores: Stores, run: str) -> None:
    """Write what is missing of a run's evidence, and set aside what its ledger does not know."""
    stores.must_know_its_log()
    if run in stores.ledger.runs():
        repair_and_verify(run, stores.ledger, stores.log, stores.settings)
