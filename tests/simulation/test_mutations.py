"""A simulator that finds nothing proves nothing: with a remedy taken out it must find what the remedy is for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from admitone.simulation.drawn_history import run_history
from admitone.simulation.promises import SAFETY
from tests.simulation import mutations
from tests.simulation.mutations import Mutation

CAUGHT_BY: dict[Mutation, tuple[int, ...]] = {
    mutations.no_fence: (14,),
    mutations.look_skipped: (9, 12),
    mutations.look_stops_at_the_last_stable_offset: (263,),
    mutations.unknown_is_taken_for_absent: (263,),
    mutations.identity_in_flight_counts_as_settled: (38,),
    mutations.cache_answers_for_unsettled_blocks: (91, 151),
    mutations.late_publish_does_not_look: (66, 263),
    mutations.older_ledger_is_taken: (289,),
    mutations.keys_expire_at_once: (69, 191),
}


@pytest.mark.parametrize("mutation", CAUGHT_BY, ids=lambda mutation: mutation.__name__)
def test_without_a_remedy_a_history_breaks_a_promise(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = CAUGHT_BY[mutation]
    assert list(_broken(seeds)) == []
    mutation(monkeypatch)

    assert list(_broken(seeds)) != []


def _broken(seeds: tuple[int, ...]) -> Iterator[int]:
    for seed in seeds:
        if any(violation.kind == SAFETY for violation in run_history(seed).violations):
            yield seed
