"""The checker judges what was seen, whatever came of it."""

from __future__ import annotations

import pytest

from admitone.simulation.observed import (
    Decision,
    Event,
    Look,
    Observed,
    Place,
    Position,
    Readable,
)
from admitone.simulation.promises import violations


@pytest.mark.parametrize("in_sight", [True, False])
def test_what_an_operator_could_see_on_the_log_must_not_be_given_up(in_sight: bool) -> None:
    event, place = Event("r", "e", b"{}", 0), Place("topic", 0, 0)
    given_up = Decision(event.identity, "QUARANTINED", "IDENTITY_RETRACTED", None, disposed=False)
    position = Position("stream:raw", 0, 0)
    look = Look({position: given_up}, (), (), frozenset(), went_back=0, at_the_end=True)
    seen = Observed(
        retention_ms=1_000,
        delivered={position: event},
        readable=[Readable(place, event, 0)],
        looks=[look],
        given_up=True,
        in_sight={place} if in_sight else set(),
    )

    assert [broken.promise for broken in violations(seen)] == ([3] if in_sight else [])
