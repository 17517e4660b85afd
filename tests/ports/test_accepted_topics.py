"""What every ledger remembers about topics: who accepted which incarnation, when and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admitone.ledger.model import AcceptedTopic
from admitone.ledger.port import Ledger
from tests.support.ledgers import OpenLedger

FIRST = AcceptedTopic("cluster-1", "orders", "id-1", 100, "admitone", "seen for the first time")


def test_acceptances_are_kept_in_order_and_survive_reopening(open_ledger: OpenLedger) -> None:
    ledger = open_ledger()
    second = replace(FIRST, topic_id="id-2", at=50, author="ann", reason="lost \\ with\0the disk")
    assert ledger.accepted_topics("cluster-1") == []
    assert ledger.accept_topic(FIRST)
    assert ledger.accept_topic(replace(FIRST, topic="other"))
    assert ledger.accept_topic(second)
    ledger.close()

    found = open_ledger().accepted_topics("cluster-1")
    assert found == [FIRST, replace(FIRST, topic="other"), second]


def test_accepting_what_counts_already_leaves_no_trace(ledger: Ledger) -> None:
    assert ledger.accept_topic(FIRST)
    assert not ledger.accept_topic(replace(FIRST, at=200, author="bob"))
    assert ledger.accept_topic(replace(FIRST, topic_id="id-2"))
    assert ledger.accept_topic(FIRST)
    assert [each.topic_id for each in ledger.accepted_topics("cluster-1")] == [
        "id-1", "id-2", "id-1",
    ]  # fmt: skip


def test_a_topic_of_the_same_name_on_another_cluster_is_another_topic(ledger: Ledger) -> None:
    elsewhere = replace(FIRST, cluster="cluster-2", topic_id="id-9")
    assert ledger.accept_topic(FIRST)
    assert ledger.accept_topic(elsewhere)
    assert not ledger.accept_topic(FIRST)
    assert ledger.accepted_topics("cluster-2") == [elsewhere]


@pytest.mark.parametrize(
    "statement",
    ["UPDATE accepted_topic SET author = 'eve'", "DELETE FROM accepted_topic"],
)
def test_history_cannot_be_rewritten(ledger: Ledger, statement: str) -> None:
    ledger.accept_topic(FIRST)
    with pytest.raises(Exception, match="an acceptance cannot be changed"):
        ledger._store.run(lambda rows: rows.change(statement))  # type: ignore[attr-defined]
    assert ledger.accepted_topics("cluster-1") == [FIRST]
