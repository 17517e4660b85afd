"""A simulator that finds nothing proves nothing: with a remedy taken out it must find what the remedy is for."""

from __future__ import annotations

import pytest

from tests.simulation import mutations
from tests.simulation.mutations import Mutation, first_broken

FOUND_BY: dict[Mutation, int] = {}
"""The seed that found it; another one is looked for once histories are drawn otherwise."""


def test_every_remedy_has_a_seed() -> None:
    assert FOUND_BY.keys() == mutations.TELLING.keys()


@pytest.mark.parametrize("mutation", FOUND_BY, ids=lambda mutation: mutation.__name__)
def test_without_a_remedy_some_history_breaks_a_promise(mutation: Mutation) -> None:
    assert first_broken(mutation, FOUND_BY[mutation]) is not None
