"""A topic next to its contract: what is drift, what is not, and what the sentence says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from admitone.core.contract import Contract, Keeping, Kind, Live, compare, least_in_sync

DAY = 86_400_000
KEEPING = Keeping(3, 7 * DAY, "delete", 2)
CONTRACT = Contract("admitted.orders", 4, KEEPING)
LIVE = Live("id-1", 4, KEEPING)


def kept(**changes: object) -> Live:
    return replace(LIVE, keeping=replace(KEEPING, **changes))  # type: ignore[arg-type]


def kinds(
    live: Live | None, contract: Contract = CONTRACT, accepted: str | None = None
) -> list[Kind]:
    return [difference.kind for difference in compare(contract, live, accepted).differences]


@pytest.mark.parametrize(
    ("live", "accepted", "kind", "said", "remedy"),
    [
        (None, None, Kind.MISSING, "is missing", "admitone topics create makes it"),
        (None, "id-1", Kind.MISSING, "is missing", "what was on it is gone"),
        (
            LIVE,
            "id-0",
            Kind.RECREATED,
            "was recreated: expected id id-0, found id id-1",
            "topics accept admitted.orders",
        ),
        (
            replace(LIVE, partitions=6),
            "id-1",
            Kind.PARTITIONS,
            "expected 4, found 6",
            "set partitions = 6 in its [[topics]] entry",
        ),
        (
            replace(LIVE, partitions=2),
            "id-1",
            Kind.PARTITIONS,
            "expected 4, found 2",
            "add partitions to the topic",
        ),
        (
            kept(replication=2),
            "id-1",
            Kind.REPLICATION,
            "expected at least 3, found 2",
            "set replication = 2",
        ),
        (
            kept(min_insync_replicas=1),
            "id-1",
            Kind.IN_SYNC,
            "expected at least 2, found 1",
            "set min.insync.replicas of the topic to 2",
        ),
        (
            kept(retention_ms=DAY),
            "id-1",
            Kind.RETENTION,
            "expected 1w, found 1d",
            'set retention = "1d"',
        ),
        (
            kept(retention_ms=8 * DAY),
            "id-1",
            Kind.RETENTION,
            "expected 1w, found 8d",
            "retention.ms of the topic to 604800000",
        ),
        (
            kept(retention_ms=None),
            "id-1",
            Kind.RETENTION,
            "expected 1w, found for good",
            "retention.ms of the topic to 604800000",
        ),
        (
            kept(cleanup_policy="compact,delete"),
            "id-1",
            Kind.CLEANUP_POLICY,
            "expected delete, found compact,delete",
            "cleanup.policy of the topic to delete",
        ),
    ],
)
def test_every_difference_says_what_was_expected_what_was_found_and_what_to_do(
    live: Live | None, accepted: str | None, kind: Kind, said: str, remedy: str
) -> None:
    checked = compare(CONTRACT, live, accepted)

    assert [difference.kind for difference in checked.differences] == [kind]
    assert not checked.as_agreed
    assert checked.what_differs.startswith("topic 'admitted.orders' ")
    assert said in checked.what_differs
    assert remedy in checked.what_to_do


def test_a_topic_is_as_agreed_whether_or_not_it_was_accepted_before() -> None:
    assert compare(CONTRACT, LIVE).as_agreed
    assert compare(CONTRACT, LIVE, "id-1").as_agreed


def test_only_what_never_was_there_is_new() -> None:
    assert compare(CONTRACT, None).is_new
    assert not compare(CONTRACT, None, "id-1").is_new
    assert not compare(CONTRACT, LIVE).is_new


def test_more_replicas_than_wanted_are_no_drift() -> None:
    assert kinds(kept(replication=5)) == []
    assert kinds(kept(min_insync_replicas=3)) == []


def test_two_of_three_replicas_must_have_a_record_before_it_counts_as_written() -> None:
    assert [least_in_sync(replication) for replication in (1, 2, 3, 5)] == [1, 1, 2, 2]


def test_retention_means_nothing_to_a_compacted_topic() -> None:
    compacted = replace(CONTRACT, keeping=replace(KEEPING, cleanup_policy="compact"))
    assert kinds(kept(cleanup_policy="compact", retention_ms=DAY), compacted) == []
    assert kinds(kept(retention_ms=DAY), compacted) == [Kind.CLEANUP_POLICY]


def test_retention_counts_where_a_topic_is_compacted_and_deleted() -> None:
    both = replace(CONTRACT, keeping=replace(KEEPING, cleanup_policy="compact,delete"))
    assert kinds(kept(cleanup_policy="compact,delete"), both) == []
    found = kept(cleanup_policy="compact,delete", retention_ms=DAY)
    assert kinds(found, both) == [Kind.RETENTION]


def test_a_log_that_knows_no_keeping_is_compared_by_identity_and_partitions_only() -> None:
    assert kinds(Live("id-1", 4), accepted="id-1") == []
    assert kinds(Live("id-2", 5), accepted="id-1") == [Kind.RECREATED, Kind.PARTITIONS]


def test_everything_that_differs_is_named_at_once() -> None:
    live = Live("id-2", 6, Keeping(1, DAY, "compact"), append_time=False)
    assert kinds(live, replace(CONTRACT, raw=True), "id-1") == [
        Kind.RECREATED, Kind.PARTITIONS, Kind.REPLICATION, Kind.IN_SYNC, Kind.CLEANUP_POLICY,
        Kind.RETENTION, Kind.TIMESTAMPS,
    ]  # fmt: skip


def test_only_the_raw_topic_needs_the_logs_own_time() -> None:
    live = replace(LIVE, append_time=False)
    assert kinds(live) == []
    checked = compare(replace(CONTRACT, raw=True), live)
    assert "LogAppendTime" in checked.what_differs
    assert "message.timestamp.type" in checked.what_to_do


def test_the_raw_topics_remedies_name_its_own_settings() -> None:
    raw = replace(CONTRACT, raw=True)
    assert (
        "set raw_partitions = 6 in [transport]"
        in compare(raw, replace(LIVE, partitions=6)).what_to_do
    )
    assert (
        'set raw_retention = "1d" in [transport]' in compare(raw, kept(retention_ms=DAY)).what_to_do
    )
