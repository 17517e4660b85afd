"""A simulator that finds nothing proves nothing: with a remedy taken out it must find what the remedy is for."""

from __future__ import annotations

import pytest

from tests.simulation import mutations
from tests.simulation.mutations import Mutation, first_broken

FOUND_BY: dict[Mutation, int] = {
    mutations.no_fence: 25,
    mutations.look_skipped: 62,
    mutations.look_stops_at_the_last_stable_offset: 350,
    mutations.unknown_is_taken_for_absent: 350,
    mutations.epochs_and_marks_not_compared: 1194,
    mutations.epoch_not_read_again: 678,
    mutations.identity_in_flight_counts_as_settled: 143,
    mutations.cache_answers_for_unsettled_blocks: 353,
    mutations.late_publish_does_not_look: 350,
    mutations.older_ledger_is_taken: 244,
    mutations.given_up_without_looking: 6315,
    mutations.door_takes_an_older_ledger: 244,
    mutations.operators_change_an_older_ledger: 755,
    mutations.ledger_that_went_back_is_taken: 486,
    mutations.restore_notes_nothing: 22772,
    mutations.releases_are_not_read_back: 220,
    mutations.releases_from_the_door_are_not_read_back: 574,
    mutations.operators_decisions_are_not_read_back: 5,
    mutations.gate_is_always_green: 15,
    mutations.unknown_evidence_is_deleted: 15,
    mutations.keys_expire_at_once: 58,
    mutations.activity_by_the_clock: 667,
    mutations.leases_by_workers_clocks: 25,
    mutations.next_transaction_without_a_fence: 2829,
    mutations.failed_append_is_taken_for_absent: 350,
    mutations.compaction_is_not_asked_for: 513,
    mutations.refusal_ends_a_late_publish: 1135,
    mutations.query_notes_ends_of_the_log: 23,
    mutations.waits_with_claims: 2477,
}
"""The seed that found it; another one is looked for once histories are drawn otherwise."""


def test_every_remedy_has_a_seed() -> None:
    assert FOUND_BY.keys() == mutations.TELLING.keys()


@pytest.mark.parametrize("mutation", FOUND_BY, ids=lambda mutation: mutation.__name__)
def test_without_a_remedy_some_history_breaks_a_promise(mutation: Mutation) -> None:
    assert first_broken(mutation, FOUND_BY[mutation]) is not None
