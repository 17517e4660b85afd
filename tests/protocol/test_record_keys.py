"""What an admitted record's key is and which partition it goes to, per topic (RPL-4, RPL-8)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from admitone.boundary.reconciliation import reconcile
from admitone.core.decisions import BlockState
from admitone.core.errors import ServiceUnreachable
from admitone.core.wire import ADMITTED_HEADERS, StreamMetadata
from admitone.evidence.audit.gate import gate_of
from admitone.settings import FILE_NAME
from tests.support import pipeline as support
from tests.support.compacted import Compacted
from tests.support.flaky import Flaky
from tests.support.pipeline import Pipeline, event

pytestmark = pytest.mark.usefixtures("either_ledger")

TOPIC = "admitted.traffic"
LINES = [event(f"e{number}", partitionKey=f"k{number % 3}") for number in range(40)]


def pipeline_with(home: Path, **topic: str) -> Pipeline:
    """Return a pipeline from five source partitions to a topic with three."""
    home.mkdir(exist_ok=True)
    text = "" if support.new_ledger is None else f'[ledger]\nurl = "{support.new_ledger()}"\n'
    text += f'[[topics]]\nfamily = "t"\ntopic = "{TOPIC}"\nevent_types = ["page_view"]\npartitions = 3\n'
    text += "".join(f'{name} = "{value}"\n' for name, value in topic.items())
    (home / FILE_NAME).write_text(text)
    return Pipeline(home, transport={"raw_partitions": 5})


def on_the_log(pipeline: Pipeline) -> list[dict[str, Any]]:
    topic = pipeline.transport.topic(TOPIC)
    return [
        {**record, "headers": {entry["key"]: entry["value"] for entry in record["headers"]}}
        for partition, end in enumerate(pipeline.transport.ends(topic))
        for batch in pipeline.transport.read(topic, partition, 0, end)
        for record in batch.to_pylist()
    ]


def test_by_default_the_key_is_the_position_and_the_business_key_chooses_the_partition(
    tmp_path: Path,
) -> None:
    pipeline = pipeline_with(tmp_path)
    pipeline.ingest(*LINES)
    pipeline.run()
    records = on_the_log(pipeline)

    assert len(records) == 40
    assert all(StreamMetadata.from_bytes(record["key"]) for record in records)
    assert {tuple(record["headers"]) for record in records} == {ADMITTED_HEADERS}
    blocks = {block.block_id: block.claimed_at for block in pipeline.ledger.blocks()}
    assert {
        (int(record["headers"]["block"]), int(record["headers"]["admitted-at"]))
        for record in records
    } == set(blocks.items())
    places = {(record["headers"]["business-key"], record["partition"]) for record in records}
    assert len(places) == 3


def test_the_source_partitioner_sends_a_source_partition_to_one_place(tmp_path: Path) -> None:
    pipeline = pipeline_with(tmp_path, partitioner="source")
    pipeline.ingest(*LINES)
    pipeline.run()
    positions = [
        (StreamMetadata.from_bytes(r["key"]), r["partition"]) for r in on_the_log(pipeline)
    ]

    assert len(positions) == 40
    assert all(found and found.partition % 3 == partition for found, partition in positions)
    assert pipeline.problems() == []


def test_under_a_business_key_the_position_is_in_a_header_where_everybody_finds_it(
    tmp_path: Path,
) -> None:
    pipeline = pipeline_with(tmp_path, record_key="business_key")
    pipeline.ingest(*LINES)
    settle, pipeline.ledger.conclude = pipeline.ledger.conclude, _vanish  # type: ignore[method-assign,assignment]
    for _ in range(5):
        with pytest.raises(ConnectionError):
            pipeline.run()
    pipeline.ledger.conclude = settle  # type: ignore[method-assign]
    pipeline.run()
    records = on_the_log(pipeline)

    assert len(records) == 40
    assert {block.state for block in pipeline.ledger.blocks()} == {BlockState.SETTLED}
    assert all(record["key"] == record["headers"]["business-key"] for record in records)
    positions = {StreamMetadata.from_bytes(record["headers"]["position"]) for record in records}
    pinned = {StreamMetadata(**row["source"]) for row in pipeline.decisions()}
    assert positions == pinned
    assert pipeline.problems() == []
    gate = gate_of("default", pipeline.ledger, pipeline.transport, pipeline.settings)
    assert gate.green, gate.blockers


def _vanish(*_: object) -> None:
    raise ConnectionError("the machine is gone")


def test_a_late_publish_under_a_business_key_has_a_position_of_its_own_and_names_its_origin(
    tmp_path: Path,
) -> None:
    pipeline = pipeline_with(tmp_path, record_key="business_key", partitioner="source")
    pipeline.ingest(*LINES[:3])
    transport = Flaky(pipeline.transport, "down-before")
    pipeline.boundary.transport = transport
    with pytest.raises(ServiceUnreachable):
        pipeline.run()
    transport.heal()
    pipeline.run()
    late = [record for record in on_the_log(pipeline) if "origin" in record["headers"]]

    assert late
    for record in late:
        position, origin = (
            StreamMetadata.from_bytes(record["headers"][name]) for name in ("position", "origin")
        )
        assert position
        assert origin
        assert position.producer_id != origin.producer_id
        assert position.partition == origin.partition
    assert pipeline.problems() == []


@pytest.mark.parametrize(
    ("record_key", "expected"),
    [("stream_metadata", "ADMITTED"), ("business_key", "NO_PARTITION_FIELD")],
)
def test_under_the_source_partitioner_a_missing_key_field_matters_only_where_it_is_the_key(
    record_key: str, expected: str, tmp_path: Path
) -> None:
    pipeline = pipeline_with(tmp_path, partitioner="source", record_key=record_key)
    pipeline.ingest(event("e1", partitionKey=None))
    pipeline.run()

    (row,) = pipeline.decisions()
    assert (row["reason"] or row["verdict"]) == expected


@pytest.mark.parametrize(
    ("record_key", "state"),
    [("business_key", BlockState.AMBIGUOUS), ("stream_metadata", BlockState.SETTLED)],
)
@pytest.mark.parametrize("in_between", [False, True], ids=["before", "while-it-is-read"])
def test_a_block_whose_records_were_compacted_away_is_never_taken_for_absent(
    record_key: str, state: BlockState, in_between: bool, tmp_path: Path
) -> None:
    pipeline = pipeline_with(tmp_path, record_key=record_key)
    log = Compacted(pipeline.transport)
    pipeline.boundary.transport = log
    pipeline.ingest(*(event(f"e{number}", partitionKey="k") for number in range(5)))
    settle, pipeline.ledger.conclude = pipeline.ledger.conclude, _vanish  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        pipeline.run()
    pipeline.ledger.conclude = settle  # type: ignore[method-assign]
    published = len(on_the_log(pipeline))
    (block,) = pipeline.ledger.blocks()
    assert published
    other = {"name": "other"}, {"raw_topic": "other", "raw_partitions": 1}
    follower = Pipeline(tmp_path, pipeline=other[0], transport=other[1])
    follower.ingest(event("later", partitionKey="k"))
    follower.run()
    if in_between:
        log.compacts_when_read = True
    else:
        log.compact()
    for _ in range(2):
        pipeline.boundary.recover(pipeline.ledger.take_generation("admitone"))
        list(reconcile(pipeline.boundary, pipeline="admitone"))

    assert pipeline.ledger.blocks(ids=[block.block_id])[0].state is state
    assert len(on_the_log(pipeline)) == published + 1
