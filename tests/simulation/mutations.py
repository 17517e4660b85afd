"""Remedies taken out of the boundary, one at a time: each must break a promise in some history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

import pytest

from admitone.boundary import (
    admission,
    batches,
    ledger_age,
    ledger_rollback,
    publish,
    reconciliation,
    recover,
)
from admitone.boundary.admission import Boundary
from admitone.boundary.doors import DoorSlot
from admitone.boundary.partition import OwnedPartition
from admitone.boundary.producers import DOOR, RELEASE_DOOR
from admitone.boundary.publish import Placed
from admitone.boundary.read import ReadBlock
from admitone.boundary.restore import read_back, restored_partition
from admitone.boundary.restore.log_contents import known_ends
from admitone.boundary.restore.operator_decisions import OperatorDecisions
from admitone.boundary.topic_partition import TopicPartition
from admitone.core import decisions
from admitone.core.decisions import AdmissionState, Meaning
from admitone.core.errors import NotWritten, RecordsRefused, ServiceUnreachable
from admitone.evidence.audit import closing, repair
from admitone.ledger import activity, block_transactions, resolutions, segments, sources
from admitone.ledger.model import Block, Claimed, KnownEnds, Mark, Source
from admitone.ledger.sqlite.rows import SqliteRows
from admitone.ledger.stored_ledger import StoredLedger
from admitone.simulation import participants
from admitone.simulation.drawn_history import run_history, steps_of
from admitone.simulation.log import SimulatedLog
from admitone.simulation.schedule import Schedule
from admitone.simulation.steps import Step, Steps
from admitone.transport.port import Topic

Mutation = Callable[[pytest.MonkeyPatch], None]


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """Let a producer's name be taken over without fencing its last holder."""

    def init_producer(self: SimulatedLog, name: str) -> int:
        self._epochs.setdefault(name, 1)
        return self._epochs[name]

    patch.setattr(SimulatedLog, "init_producer", init_producer)


def look_skipped(patch: pytest.MonkeyPatch) -> None:
    """Take every block in flight for absent."""
    patch.setattr(recover, "look_for_block", lambda *_: Placed(None, None))


def look_stops_at_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """Read up to where another producer's open transaction begins."""
    look = publish.look

    def short(transport: Any, *rest: Any) -> Placed | None:
        return look(_Short(transport), *rest)

    patch.setattr(publish, "look", short)


class _Short:
    def __init__(self, log: Any) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def ends(self, topic: Topic, **_: bool) -> list[int]:
        ends: list[int] = self._log.ends(topic, readable=True)
        return ends


def unknown_is_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    """Take a log that cannot tell for one that holds nothing."""
    look = recover.look_for_block
    patch.setattr(recover, "look_for_block", lambda *asked: look(*asked) or Placed(None, None))


def epochs_and_marks_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Let whoever held a source before write to the ledger, wherever its mark is."""

    def owned(rows: Any, source: Any, epoch: int, *, lock: bool = True) -> Any:
        row = rows.first(
            "SELECT mark, stream_time, store FROM source WHERE producer_id = %s AND partition = %s",
            *source,
        )
        return row

    for module in (block_transactions, resolutions):
        patch.setattr(module, "owned", owned)
    patch.setattr(block_transactions, "must_be_at", lambda *_: None)
    change = SqliteRows.change

    def changed(self: SqliteRows, statement: str, *values: Any) -> int:
        return change(self, statement.replace("AND mark < %s", "AND %s IS NOT NULL"), *values)

    patch.setattr(SqliteRows, "change", changed)


def identity_in_flight_counts_as_settled(patch: pytest.MonkeyPatch) -> None:
    """Call a delivery a duplicate of an event that is not published yet."""
    for expired in (False, True):
        key = AdmissionState.PUBLISH_IN_FLIGHT, expired, True
        patch.setitem(decisions._MEANINGS, key, Meaning.DUPLICATE)


def cache_answers_for_unsettled_blocks(patch: pytest.MonkeyPatch) -> None:
    """Remember pairs when they are claimed."""
    known, check = TopicPartition._known, TopicPartition._check_circuit
    facts: dict[int, Any] = {}

    def noted(self: TopicPartition, asked: Any) -> Any:
        facts[id(self)] = asked
        return known(self, asked)

    def remembered(self: TopicPartition, claimed: Any) -> None:
        if self._memory.pairs is not None:
            size = claimed.block.deliveries
            self._memory.pairs.add(facts[id(self)].slice(0, size), claimed, ())
        check(self, claimed)

    patch.setattr(TopicPartition, "_known", noted)
    patch.setattr(TopicPartition, "_check_circuit", remembered)


def late_publish_does_not_look(patch: pytest.MonkeyPatch) -> None:
    """Publish every block of unknown fate late."""
    patch.setattr(reconciliation, "look_for_block", lambda *_: Placed(None, None))
    patch.setattr(reconciliation, "look", lambda *_: Placed(None, None))


def older_ledger_is_taken(patch: pytest.MonkeyPatch) -> None:
    """Admit with a ledger that is older than the log."""
    patch.setattr(admission, "refuse_older_ledger", lambda *_: None)


def given_up_without_looking(patch: pytest.MonkeyPatch) -> None:
    """Give blocks up that the log holds."""
    retract = reconciliation.retract

    def blindly(*asked: Any) -> Any:
        with pytest.MonkeyPatch.context() as blind:
            blind.setattr(reconciliation._Search, "find", lambda _: None)
            return retract(*asked)

    patch.setattr(participants, "retract", blindly)


def keys_expire_at_once(patch: pytest.MonkeyPatch) -> None:
    """Drop closed segments whatever they hold."""
    patch.setattr(segments, "is_droppable", lambda *_: True)


def gate_is_always_green(patch: pytest.MonkeyPatch) -> None:
    """Close runs with open contradictions."""

    class Green:
        green = True
        run_id = "r"
        checks: tuple[Any, ...] = ()
        blockers: tuple[Any, ...] = ()

        def document(self) -> dict[str, Any]:
            return {"run_id": "r", "gate": "green", "checks": []}

    patch.setattr(closing, "judge", lambda *_: Green())


def epoch_not_read_again(patch: pytest.MonkeyPatch) -> None:
    """Go on after the fence without asking whether another one came later, neither then nor at what is written.

    The ledger compares epochs and marks at each write, and each of the three is enough for what histories draw.
    """
    patch.setattr(StoredLedger, "check_epoch", lambda *_: None)
    epochs_and_marks_not_compared(patch)


def restore_notes_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let only the process that reads a ledger back know from which ends it does.

    Neither the note nor the blocks it claims say so; each of them alone is enough for the next one.
    """

    def begin(boundary: Boundary, topic: Topic) -> KnownEnds:
        boundary.register(topic)
        mine = read_back.sources_of(boundary)
        in_flight = [block for block in boundary.in_flight() if block.source in mine]
        return known_ends(boundary.ledger, in_flight)

    patch.setattr(read_back, "begin", begin)
    patch.setattr(restored_partition.Restoring, "_as_known", lambda _self, place: place)


def releases_are_not_read_back(patch: pytest.MonkeyPatch) -> None:
    """Leave out what was released, so that its numbers start again."""
    _without_producers(patch, lambda topic: topic.startswith(f"{RELEASE_DOOR}:"))


def releases_from_the_door_are_not_read_back(patch: pytest.MonkeyPatch) -> None:
    """Leave out what came through the synchronous door and was released."""
    _without_producers(patch, lambda topic: topic == f"{RELEASE_DOOR}:{DOOR}")


def _without_producers(patch: pytest.MonkeyPatch, left_out: Callable[[str], bool]) -> None:
    known = read_back.producers_of

    def fewer(*asked: Any) -> dict[int, Any]:
        return {number: each for number, each in known(*asked).items() if not left_out(each.topic)}

    for module in (read_back, ledger_age):
        patch.setattr(module, "producers_of", fewer)


def operators_decisions_are_not_read_back(patch: pytest.MonkeyPatch) -> None:
    """Forget, with a restored ledger, what operators gave up and closed since the copy."""
    forgotten = classmethod(lambda cls, *_: cls({}, {}, {}))
    patch.setattr(OperatorDecisions, "read", forgotten)


def door_takes_an_older_ledger(patch: pytest.MonkeyPatch) -> None:
    """Open the synchronous door on a ledger that is older than the log."""
    opened = DoorSlot.__init__

    def unchecked(self: DoorSlot, boundary: Boundary, number: int) -> None:
        patch.setattr(boundary, "must_know_its_log", lambda: None)
        opened(self, boundary, number)

    patch.setattr(DoorSlot, "__init__", unchecked)


def operators_change_an_older_ledger(patch: pytest.MonkeyPatch) -> None:
    """Let operators close, repair, release, discard and give up on a ledger that is older than its log."""
    patch.setattr(participants, "must_know_its_log", lambda *_: None)


def unknown_evidence_is_deleted(patch: pytest.MonkeyPatch) -> None:
    """Delete evidence that the ledger does not know, instead of setting it aside."""

    def delete(store: Any, path: str) -> None:
        store.delete(path)

    for module in (repair, closing):
        patch.setattr(module, "set_aside", delete)


def ledger_that_went_back_is_taken(patch: pytest.MonkeyPatch) -> None:
    """Compare nothing that was seen before with what a ledger says now.

    Another database in its place would be noticed by itself, so that is taken out with it.
    """
    for module in (block_transactions, sources):
        patch.setattr(module, "must_be_in", lambda *_: None)
    patch.setattr(ledger_rollback, "refuse_less", lambda *_: None)
    patch.setattr(ledger_rollback, "_refuse_another", lambda *_: None)


def activity_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Take a source for idle by the moments of two blocks, whatever happened to the clock between them.

    What is dropped too early is then called too old. Taken out with it: whoever is behind would admit it again.
    """

    def passed(rows: Any, duration_ms: int, first: int, last: int) -> bool:
        (begin,), (end,) = (
            rows.first("SELECT claimed_at FROM block WHERE block_id = %s", block) or (0,)
            for block in (first, last)
        )
        return bool(end - begin > duration_ms)

    patch.setattr(activity, "_has_passed", passed)
    mark, must_be_at = StoredLedger.mark, block_transactions.must_be_at

    def not_forgotten(self: StoredLedger, source: Source) -> Mark:
        return replace(mark(self, source), forgotten_before=None)

    def compared(source: Source, expected: Mark, found: Mark, in_flight: int | None) -> None:
        must_be_at(source, expected, replace(found, forgotten_before=None), in_flight)

    patch.setattr(StoredLedger, "mark", not_forgotten)
    patch.setattr(block_transactions, "must_be_at", compared)


def leases_by_workers_clocks(patch: pytest.MonkeyPatch) -> None:
    """Seize a block whose lease ran out by the clock of the worker that waits.

    A wrong guess is harmless as long as the one who seizes fences, so the fence is taken out with it.
    """
    no_fence(patch)

    def outlasted(self: Boundary, block: Block) -> bool:
        return self.clock() - block.claimed_at > self.options.claim_lease_ms

    patch.setattr(Boundary, "has_outlasted_its_lease", outlasted)


def next_transaction_without_a_fence(patch: pytest.MonkeyPatch) -> None:
    """Begin a transaction while a request to end the one before may still arrive."""
    patch.setattr(Schedule, "was_repeated", lambda _: False)


def failed_append_is_taken_for_absent(patch: pytest.MonkeyPatch) -> None:
    """Take what failed behind the begin of a transaction for not written."""
    append = participants.CalledLog.append

    def absent(self: participants.CalledLog, *asked: Any) -> Any:
        try:
            return append(self, *asked)
        except ServiceUnreachable as silence:
            raise NotWritten(silence.problem) from silence

    patch.setattr(participants.CalledLog, "append", absent)


def compaction_is_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    """Take what a compacted topic does not hold for absent."""
    patch.setattr(publish, "_compacts", lambda *_: False)


def refusal_ends_a_late_publish(patch: pytest.MonkeyPatch) -> None:
    """Do not publish the rest late where the broker refuses a record."""

    def leave_out(_self: Any, _epoch: int, refusal: RecordsRefused) -> None:
        raise refusal

    patch.setattr(reconciliation._LatePublish, "_leave_out", leave_out)


def query_notes_ends_of_the_log(patch: pytest.MonkeyPatch) -> None:
    """Note the ends of the log as read, beyond what tasks were given."""
    note_read = batches.note_read

    def noted(
        boundary: Boundary, topic: Topic, ends: Any, database: str | None = None
    ) -> dict[Source, int]:
        found = boundary.transport.ends(topic, readable=True)
        return note_read(boundary, topic, dict(enumerate(found)), database)

    patch.setattr(batches, "note_read", noted)


def waits_with_claims(patch: pytest.MonkeyPatch) -> None:
    """Wait for another source's block with what was claimed before it, however long that takes.

    Whoever waits without claims would end that once a lease ran out, so leases are taken out with it.
    """
    patch.setattr(Boundary, "has_outlasted_its_lease", lambda *_: False)
    claim = OwnedPartition._claim

    def waiting(self: OwnedPartition, block: ReadBlock, places: Any) -> Any:
        piece, claimed = claim(self, block, places)
        if isinstance(claimed, Claimed) and piece.facts.num_rows < block.facts.num_rows:
            while any(each.source != self.source for each in self._boundary.in_flight()):
                self._boundary.pause(1.0)
        return piece, claimed

    patch.setattr(OwnedPartition, "_claim", waiting)


TELLING: Final[dict[Mutation, tuple[Step, ...]]] = {
    no_fence: (Steps.overtake,),
    look_skipped: (),
    look_stops_at_the_last_stable_offset: (Steps.hide,),
    unknown_is_taken_for_absent: (Steps.hide,),
    epochs_and_marks_not_compared: (Steps.overtake,),
    epoch_not_read_again: (Steps.overtake,),
    identity_in_flight_counts_as_settled: (Steps.request, Steps.finish),
    cache_answers_for_unsettled_blocks: (),
    late_publish_does_not_look: (Steps.hide,),
    older_ledger_is_taken: (Steps.restore,),
    given_up_without_looking: (Steps.give_up,),
    door_takes_an_older_ledger: (Steps.restore, Steps.request),
    operators_change_an_older_ledger: (Steps.restore, Steps.release),
    ledger_that_went_back_is_taken: (Steps.restore_beside,),
    restore_notes_nothing: (Steps.suspend, Steps.restore, Steps.kill),
    releases_are_not_read_back: (Steps.restore, Steps.release),
    releases_from_the_door_are_not_read_back: (Steps.restore, Steps.release, Steps.request),
    operators_decisions_are_not_read_back: (Steps.restore, Steps.close),
    gate_is_always_green: (Steps.close,),
    unknown_evidence_is_deleted: (Steps.restore, Steps.repair),
    keys_expire_at_once: (Steps.deliver_to_one,),
    activity_by_the_clock: (Steps.deliver_to_one,),
    leases_by_workers_clocks: (Steps.overtake,),
    next_transaction_without_a_fence: (Steps.repeat,),
    failed_append_is_taken_for_absent: (Steps.lose,),
    compaction_is_not_asked_for: (Steps.suspend, Steps.compact),
    refusal_ends_a_late_publish: (Steps.hide, Steps.lose),
    query_notes_ends_of_the_log: (),
    waits_with_claims: (Steps.finish,),
}
"""Every mutation, with the steps that are in the histories that find it."""

CARELESS: Final = frozenset({ledger_that_went_back_is_taken})
"""Found where operators restore a ledger while everything runs on."""
_TRIED = 300


def first_broken(mutation: Mutation, *likely: int) -> int | None:
    """Return a seed whose history breaks a promise only once the remedy is taken out; likely ones are tried first."""
    careless = mutation in CARELESS
    for seed in (*likely, *islice(_telling(mutation), _TRIED)):
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            broken = is_broken(seed, careless=careless)
        if broken and not is_broken(seed, careless=careless):
            return seed
    return None


def is_broken(seed: int, *, careless: bool = False) -> bool:
    """Tell whether a history breaks a promise."""
    return bool(run_history(seed, careless=careless).violations)


def _telling(mutation: Mutation) -> Iterator[int]:
    """Yield the seeds of histories in which the steps happen that tell."""
    wanted = set(TELLING[mutation])
    for seed in count():
        if wanted <= {*steps_of(seed, careless=mutation in CARELESS)[1]}:
            yield seed
