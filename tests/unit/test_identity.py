"""Identity is injective; routes and stream metadata are pinned by test vectors."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from admitone.core.identity import identity_of, names_of
from admitone.core.routing import Route, partition_for, partition_of
from admitone.core.wire import (
    OFFSET,
    PARTITION,
    PRODUCER,
    UPSTREAM,
    StreamMetadata,
    producer_id,
)

hostile = st.text(st.sampled_from('ab:0123456789|,\x00\x1f/.\\"é '), max_size=8) | st.text(
    st.characters(exclude_categories=("Cs",)), max_size=8
)
triples = st.tuples(hostile, hostile, hostile)


@settings(max_examples=1_000)
@given(triples, triples)
def test_different_triples_have_different_identities(one: tuple, two: tuple) -> None:
    assert (identity_of(*one) == identity_of(*two)) is (one == two)


@given(hostile, hostile, hostile, st.integers(0, 8))
@settings(max_examples=500)
def test_moving_a_boundary_between_fields_changes_the_identity(
    run: str, kind: str, event: str, cut: int
) -> None:
    joined = run + kind
    moved = (joined[:cut], joined[cut:], event)
    assert (identity_of(*moved) == identity_of(run, kind, event)) is (moved == (run, kind, event))


def test_the_identity_is_pinned() -> None:
    assert identity_of("run", "page_view", "e1").hex() == PINNED


PINNED = "1ec17180eee73daf2909276a295f282644940932e672c4a4b724d319da27ba8b"


@pytest.mark.parametrize(
    ("key", "partitions", "expected"),
    [
        ("user_123", 4, 3),
        ("user_123", 12, 3),
        ("", 4, 0),
        ("é", 7, 3),
        ("merchant-9", 1, 0),
        ("a" * 100, 1000, 211),
    ],
)
def test_the_partition_of_a_key_is_pinned(key: str, partitions: int, expected: int) -> None:
    assert partition_of(key, partitions) == expected


def test_the_first_key_field_that_is_present_chooses() -> None:
    route = Route("t", 4, (("payload", "merchantId"), ("metadata", "partitionKey")))
    assert (
        route.business_key({"metadata": {"partitionKey": "p"}, "payload": {"merchantId": "m"}})
        == "m"
    )
    assert (
        route.business_key({"metadata": {"partitionKey": "p"}, "payload": {"merchantId": ""}})
        == "p"
    )
    assert (
        route.business_key({"metadata": {"partitionKey": "p"}, "payload": {"merchantId": 7}}) == "7"
    )
    assert route.business_key({"metadata": {"partitionKey": None}, "payload": {}}) is None
    assert route.business_key({"metadata": [], "payload": {"merchantId": True}}) is None


def test_stream_metadata_is_twenty_bytes_big_endian() -> None:
    key = StreamMetadata(1, 2, 3).to_bytes()
    assert key.hex() == "0000000000000001000000020000000000000003"
    numbers = [int.from_bytes(key[part], "big") for part in (PRODUCER, PARTITION, OFFSET)]
    assert numbers == [1, 2, 3]
    assert key[UPSTREAM] + key[OFFSET] == key


def test_what_metadata_leaves_out_is_said_outside_and_what_is_wrong_in_it_stays_wrong() -> None:
    outside = {"runId": "r", "eventClass": "c"}
    assert names_of({"eventType": "t", "eventId": "e"}, {"runId": "r"}) == ("r", "t", "e")
    assert names_of({"eventType": "t", "eventId": "e"}, outside) == ("r", "c", "e")
    metadata = {"runId": "mine", "eventClass": None, "eventType": "t", "eventId": 7}
    assert names_of(metadata, outside) == ("mine", None, 7)
    assert names_of({"eventType": "t"}, outside | {"eventClass": None}) == ("r", None, None)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_stream_metadata_reads_back(producer: int, partition: int, offset: int) -> None:
    position = StreamMetadata(producer, partition, offset)
    assert StreamMetadata.from_bytes(position.to_bytes()) == position


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"x" * 19,
        b"x" * 21,
        StreamMetadata(1, -1, 0).to_bytes(),
        StreamMetadata(1, 0, -1).to_bytes(),
    ],
)
def test_what_is_not_stream_metadata_is_recognised(key: bytes | None) -> None:
    assert StreamMetadata.from_bytes(key) is None


def test_a_recreated_topic_has_another_producer_id() -> None:
    one = producer_id("pipeline", "stream", "cluster", "topic-1")
    assert one == producer_id("pipeline", "stream", "cluster", "topic-1")
    assert one != producer_id("pipeline", "stream", "cluster", "topic-2")
    assert producer_id("ab", "c", "d", "e") != producer_id("a", "bc", "d", "e")
    assert -(2**63) <= one < 2**63


def test_the_source_partitioner_wraps_around_when_there_are_fewer_destinations() -> None:
    three, eight = (Route("t", count, (), by_source=True) for count in (3, 8))
    assert [partition_for(three, "any", source) for source in range(5)] == [0, 1, 2, 0, 1]
    assert partition_for(eight, "any", 4) == 4
