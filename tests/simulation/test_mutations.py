"""A simulator that finds nothing proves nothing: with a remedy taken out it must find what the remedy is for."""

from __future__ import annotations

import pytest

from tests.simulation import mutations
from tests.simulation.mutations import Mutation, first_broken

CAUGHT: dict[Mutation, tuple[int, ...]] = {
    mutations.no_fence: (),
    mutations.look_skipped: (),
    mutations.look_stops_at_the_last_stable_offset: (1_163, 2_825),
    mutations.unknown_is_taken_for_absent: (),
    mutations.identity_in_flight_counts_as_settled: (),
    mutations.cache_answers_for_unsettled_blocks: (),
    mutations.late_publish_does_not_look: (),
    mutations.older_ledger_is_taken: (),
    mutations.keys_expire_at_once: (),
}
"""With the seeds that found it before, for what only a few in a thousand find; they change with what is simulated."""


@pytest.mark.parametrize("mutation", CAUGHT, ids=lambda mutation: mutation.__name__)
def test_without_a_remedy_some_history_breaks_a_promise(mutation: Mutation) -> None:
    assert first_broken(mutation, *CAUGHT[mutation]) is not None
