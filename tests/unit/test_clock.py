"""Pauses between tries grow, and end."""

from __future__ import annotations

from itertools import islice

from admitone.infra.clock import Patience, pauses


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(pauses(0.5, 3.0), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_patience_that_is_over_does_not_pause() -> None:
    patience = Patience(-1.0)
    assert patience.is_over
    assert not patience.pause()
    assert not Patience(60.0).is_over
    assert Patience(60.0, 0.001).pause()
