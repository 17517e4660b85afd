"""Remedies taken out of the boundary, one at a time: each must break a promise in some history."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from admitone.boundary import admission, doors, publish, reconciliation, recover
from admitone.boundary.publish import Placed
from admitone.boundary.topic_partition import TopicPartition
from admitone.core import decisions
from admitone.core.decisions import AdmissionState, Meaning
from admitone.evidence.audit import closing
from admitone.ledger import block_transactions, segments, sources
from admitone.ledger.stored_ledger import StoredLedger
from admitone.simulation.drawn_history import run_history
from admitone.simulation.log import SimulatedLog
from admitone.simulation.promises import SAFETY
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

    def ends(self, topic: Topic) -> list[int]:
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

    patch.setattr(block_transactions, "owned", owned)
    patch.setattr(sources, "owned", owned)
    patch.setattr(block_transactions, "must_be_at", lambda *_: None)


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
    for module in (admission, doors):
        patch.setattr(module, "refuse_older_ledger", lambda *_: None)


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
    """Go on after the fence without asking whether another one came later."""
    patch.setattr(StoredLedger, "check_epoch", lambda *_: None)


MUTATIONS: Final[tuple[Mutation, ...]] = (
    no_fence,
    look_skipped,
    look_stops_at_the_last_stable_offset,
    unknown_is_taken_for_absent,
    epochs_and_marks_not_compared,
    identity_in_flight_counts_as_settled,
    cache_answers_for_unsettled_blocks,
    late_publish_does_not_look,
    older_ledger_is_taken,
    keys_expire_at_once,
    gate_is_always_green,
    epoch_not_read_again,
)


def first_broken(mutation: Mutation, *likely: int) -> int | None:
    """Return a seed whose history breaks a promise only once the remedy is taken out; likely ones are tried first."""
    for seed in (*likely, *range(1_000)):
        with pytest.MonkeyPatch.context() as patch:
            mutation(patch)
            broken = is_unsafe(seed)
        if broken and not is_unsafe(seed):
            return seed
    return None


def is_unsafe(seed: int) -> bool:
    """Tell whether something happens in a history that must never happen."""
    return any(each.kind == SAFETY for each in run_history(seed).violations)
