"""Stories: orders of steps in which something broke before, and the setup that they need.

What it takes is seldom drawn step by step: an operator who gives something up between a copy of the ledger and its
return, a reading back that is interrupted. What else happens in a story, and at which calls, is drawn as ever.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from admitone.simulation.steps import Step, Steps
from admitone.simulation.world import SHORT


class Story(NamedTuple):
    """Steps in their order, and what the setup must be for them."""

    setup: dict[str, Any]
    steps: tuple[Step, ...]


_BUSY_LEDGER_IS_COPIED: Final = Story(
    {"partitions": 2, "eagerness": 0.0, "max_block": 1},
    (Steps.suspend, Steps.deliver, Steps.deliver, Steps.query, Steps.back_up, Steps.query, Steps.restore,
     Steps.reconcile, Steps.kill, Steps.reconcile, Steps.kill),
)  # fmt: skip
_RELEASED_SINCE_THE_COPY: Final = Story(
    {"contradicts": 0.5},
    (Steps.deliver, Steps.request, Steps.query, Steps.finish, Steps.copy, Steps.request, Steps.finish,
     Steps.release, Steps.finish, Steps.restore, Steps.reconcile, Steps.finish, Steps.request, Steps.release),
)  # fmt: skip
_CLOSED_SINCE_THE_COPY: Final = Story(
    {"evidence": True, "contradicts": 0.0, "refuses": 0.0},
    (Steps.deliver, Steps.query, Steps.finish, Steps.copy, Steps.request, Steps.finish, Steps.close, Steps.finish,
     Steps.restore, Steps.reconcile, Steps.finish, Steps.repair, Steps.deliver, Steps.query),
)  # fmt: skip
_GIVEN_UP_SINCE_THE_COPY: Final = Story(
    {"evidence": True},
    (Steps.deliver, Steps.query, Steps.finish, Steps.deliver, Steps.lose, Steps.query, Steps.hide, Steps.finish,
     Steps.copy, Steps.give_up, Steps.finish, Steps.write_evidence, Steps.finish, Steps.restore, Steps.reconcile,
     Steps.finish, Steps.reconcile),
)  # fmt: skip
_UNKNOWN_FATE: Final = Story(
    {"refuses": 0.4, "contradicts": 0.1},
    (Steps.deliver, Steps.query, Steps.finish, Steps.deliver, Steps.deliver, Steps.lose, Steps.query, Steps.hide,
     Steps.finish, Steps.reconcile),
)  # fmt: skip
_COMPACTED: Final = Story(
    {"compacted": True, "contradicts": 0.0, "runs": 2, "names": 1, "partitions": 2, "eagerness": 0.0},
    (Steps.deliver, Steps.deliver, Steps.suspend, Steps.query, Steps.look, Steps.look, Steps.compact, Steps.look,
     Steps.compact, Steps.overtake),
)  # fmt: skip
_PARTITION_FALLS_BEHIND: Final = Story(
    {"retention_ms": SHORT, "partitions": 2, "runs": 1, "cache": 0},
    (Steps.deliver, Steps.deliver, Steps.query, Steps.finish, Steps.later, Steps.later, Steps.jump,
     Steps.deliver_to_one, Steps.query, Steps.finish, Steps.later, Steps.deliver_to_one, Steps.query, Steps.finish,
     Steps.deliver_to_one, Steps.deliver_to_one, Steps.query),
)  # fmt: skip
_DOOR_AFTER_A_RESTORE: Final = Story(
    {},
    (Steps.request, Steps.request, Steps.finish, Steps.copy, Steps.request, Steps.request, Steps.finish,
     Steps.restore, Steps.request, Steps.release, Steps.discard),
)  # fmt: skip
_ASKED_TWICE: Final = Story(
    {"partitions": 1, "max_block": 2, "refuses": 0.4, "contradicts": 0.0, "runs": 2},
    (Steps.deliver, Steps.deliver, Steps.deliver, Steps.repeat, Steps.query, Steps.repeat, Steps.finish),
)  # fmt: skip
_SAME_EVENTS_BESIDE: Final = Story(
    {
        "partitions": 2,
        "names": 2,
        "runs": 1,
        "refuses": 0.4,
        "cache": 0,
        "eagerness": 0.0,
        "max_block": 8,
    },
    (Steps.deliver, Steps.deliver, Steps.query, Steps.request, Steps.finish),
)
STORIES: Final = (
    _SAME_EVENTS_BESIDE,
    _BUSY_LEDGER_IS_COPIED,
    _RELEASED_SINCE_THE_COPY,
    _CLOSED_SINCE_THE_COPY,
    _GIVEN_UP_SINCE_THE_COPY,
    _UNKNOWN_FATE,
    _COMPACTED,
    _PARTITION_FALLS_BEHIND,
    _DOOR_AFTER_A_RESTORE,
    _ASKED_TWICE,
)
