"""A history: what happens to a world, step by step, all of it decided by a seed.

A step has a number and draws what it needs from the seed and that number alone, so that any of them can be left out and
the others stay what they are. Between two steps participants make some calls. At the end the faults stop and
everything is started again, a few times; what is not done by then never will be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

from admitone.simulation.promises import Violation, violations
from admitone.simulation.steps import Step, Steps
from admitone.simulation.stories import STORIES, Story
from admitone.simulation.world import LONG, SHORT, Setup, World

_ROUNDS: Final = 6
_MINUTE: Final = 60_000
_MOST_CALLS: Final = 3_000
_STEPS: Final = (0, 0, 1, 1, 2, 4)
"""How many steps follow the first two: most of what can go wrong takes few, and what is short is soon over."""
_GOES_ON: Final = (0, 50, 400)
"""For how many calls faults may still strike after the last step."""
_BESIDE: Final = (0, 0, 1, 2)
"""How many steps happen among those of a story."""
_OFTEN: Final[dict[Step, float]] = {
    Steps.deliver: 4, Steps.query: 5, Steps.request: 3, Steps.fault: 8, Steps.overtake: 3, Steps.kill: 2,
    Steps.reconcile: 1.5, Steps.release: 0.8, Steps.discard: 0.4, Steps.give_up: 0.2, Steps.look: 0.5,
    Steps.jump: 0.4, Steps.hide: 0.4, Steps.later: 0.4,
}  # fmt: skip


class Told(NamedTuple):
    """What came of a history."""

    seed: int
    steps: tuple[int, ...]
    """The numbers of the steps that happened."""
    calls: int
    faults: Counter[str]
    violations: tuple[Violation, ...]
    trace: list[str]


def steps_of(seed: int, *, careless: bool = False) -> tuple[Setup, list[Step]]:
    """Return what a seed decides: on what a history is run, and its steps.

    Most are drawn step by step; some tell one of the stories in which something broke before. Careless operators
    restore a ledger while everything runs on.
    """
    random = Random(f"{seed}/setup")
    restores = random.random() < 0.05
    setup = Setup(
        partitions=random.choice((1, 2)),
        max_block=random.choice((1, 2, 3, 8)),
        retention_ms=random.choice((LONG, LONG, LONG, SHORT)),
        cache=random.choice((0, 16)),
        eagerness=random.choice((0.0, 0.5, 0.9)),
        evidence=random.random() < (0.5 if restores else 0.02),
        compacted=random.random() < 0.05,
        runs=random.choice((1, 1, 2)),
        names=random.choice((2, 4, 4)),
        contradicts=random.choice((0.15, 0.15, 0.5)),
        refuses=random.choice((0.0, 0.0, 0.0, 0.15)),
    )
    story: Story | None = random.choice(STORIES) if random.random() < 0.15 else None
    if story is not None:
        setup = setup._replace(**story.setup)
    weights = _weights(random, setup)
    drawn = random.choices(
        [*weights], [*weights.values()], k=random.choice(_BESIDE if story else _STEPS)
    )
    if story is not None:
        return setup, _mixed(random, story.steps, drawn, careless=careless)
    if restores:
        drawn = _with_a_restore(random, drawn)
    return setup, _as_told(careless, [Steps.deliver, Steps.query, *drawn])


def _weights(random: Random, setup: Setup) -> dict[Step, float]:
    weights = dict(_OFTEN)
    if setup.retention_ms == SHORT:
        weights[Steps.later] = 2
    if setup.evidence:
        weights |= {Steps.close: 2, Steps.write_evidence: 1, Steps.repair: 0.5}
    if setup.compacted:
        weights[Steps.compact] = 2
    if random.random() < 0.05:
        weights[random.choice((Steps.truncate, Steps.recreate))] = 1
    if random.random() < 0.1:
        weights |= {Steps.hide: 4, Steps.give_up: 1}
    return weights


def _with_a_restore(random: Random, drawn: list[Step]) -> list[Step]:
    """Return steps among which the ledger is copied and, some steps later, put back."""
    copied, restored = sorted(random.randint(0, len(drawn)) for _ in range(2))
    then = random.choice(([], [Steps.reconcile], [Steps.reconcile, Steps.kill]))
    return [
        *drawn[:copied], Steps.back_up, *drawn[copied:restored], Steps.restore, *then, *drawn[restored:],
    ]  # fmt: skip


def _mixed(
    random: Random, story: Sequence[Step], drawn: Sequence[Step], *, careless: bool
) -> list[Step]:
    """Return the steps of a story with others among them."""
    mixed = list(story)
    for step in drawn:
        mixed.insert(random.randint(1, len(mixed)), step)
    return _as_told(careless, mixed)


def _as_told(careless: bool, steps: list[Step]) -> list[Step]:
    """Return steps, with ledgers restored while everything runs on where operators are careless."""
    return [Steps.restore_beside if careless and s is Steps.restore else s for s in steps]


def run_history(seed: int, chosen: Sequence[int] | None = None, *, careless: bool = False) -> Told:
    """Let a history happen, or some of its steps, and judge what was seen of it."""
    setup, kinds = steps_of(seed, careless=careless)
    numbers = tuple(range(len(kinds)) if chosen is None else chosen)
    world = World(setup, Random(f"{seed}/turns"))
    steps = Steps(world)
    schedule, seen = world.schedule, world.seen
    try:
        for number in numbers:
            random = Random(f"{seed}/{number}")
            schedule.trace.append(f"step {number}: {kinds[number].__name__}")
            kinds[number](steps, random)
            schedule.run(random.randrange(30))
        schedule.run(Random(f"{seed}/end").choice(_GOES_ON))
        schedule.trace.append("the faults stop")
        _finish(world, steps)
        if steps.loses_records:
            seen.in_sight.clear()
        # A log that lost records may rightly keep a restored ledger from catching up.
        world.look(at_the_end=not (world.is_behind and steps.loses_records))
        if not steps.loses_records:
            seen.unsettled, seen.unanswered = world.unsettled(), len(steps.unanswered)
    finally:
        schedule.end()
        world.store.discard()
    faults = schedule.struck + steps.happened
    return Told(seed, numbers, schedule.calls, faults, tuple(violations(seen)), schedule.trace)


def _finish(world: World, steps: Steps) -> None:
    """Start everything again until nothing is left to do."""
    schedule = world.schedule
    schedule.wake_all()
    for left in reversed(range(_ROUNDS)):
        schedule.run(_MOST_CALLS)
        done = not (world.undecided() or steps.unanswered or world.unsettled() or world.is_behind)
        if schedule.participants:
            world.seen.stuck = f"{schedule.participants[0].name} makes calls without end"
        if done or not left:
            return
        # Longer each time: a lease may have been taken by a clock that was wrong.
        steps.wait(_MINUTE * 10 ** (_ROUNDS - left - 1))
        clock = world.machines[0]
        if world.is_behind:
            steps.start_reconciliation(clock)
            continue
        if steps.unanswered:
            steps.open_lane(clock, 0, list(steps.unanswered))
        if world.undecided():
            steps.start_query(clock, 8)
        elif world.unsettled():
            steps.start_reconciliation(clock)
