"""A pipeline on a Kafka broker, piece by piece, and copies of its ledger."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from admitone.boundary.batches import note_read
from admitone.spark.boundary_query import next_offsets
from admitone.spark.log_stream import begin_at
from tests.faults.kafka_harness import compare_with_receipts, make_home
from tests.servers.kafka import KafkaBroker
from tests.support.ledgers import must_balance
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

ADMITTED = [("ADMITTED", None)]


class Site:
    """A home folder with topics of its own; each `pipeline()` is a process that starts anew."""

    def __init__(self, home: Path, broker: KafkaBroker) -> None:
        self.home, self.broker = home, broker
        make_home(home, broker.bootstrap)

    def pipeline(self, **transport: Any) -> Pipeline:
        return Pipeline(self.home, transport={"raw_partitions": 1, **transport})

    def run(self, pipeline: Pipeline) -> Pipeline:
        """Start, and decide everything from the marks to the end, as the streaming door does."""
        boundary, topic = pipeline.boundary, pipeline.topic
        generation = boundary.start(topic)
        begin = begin_at(boundary.transport, [topic], {topic.name: next_offsets(boundary, topic)})
        note_read(boundary, topic, dict(enumerate(begin[topic])))
        for number, end in enumerate(boundary.transport.ends(topic)):
            owned = pipeline.own(number, generation)
            for batch in boundary.transport.read(topic, number, begin[topic][number], end):
                list(owned.admit(pa.Table.from_batches([batch])))
            note_read(boundary, topic, {number: end})
        pipeline.run(partitions=())
        return pipeline

    def recreate(self, pipeline: Pipeline) -> Pipeline:
        delete_topic(pipeline.transport, pipeline.topic.name)
        return self.pipeline()

    def in_order(self, pipeline: Pipeline) -> None:
        assert pipeline.problems() == []
        assert compare_with_receipts(self.home, self.broker.bootstrap) == []
        must_balance(pipeline.ledger)


@pytest.fixture
def site(tmp_path: Path, kafka_broker: KafkaBroker) -> Site:
    return Site(tmp_path, kafka_broker)


def events(name: str, count: int) -> list[bytes]:
    return [event(f"{name}{number}") for number in range(count)]


def ledger_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("ledger.db*"))


def copy_ledger(site: Site, name: str) -> Path:
    """Return a folder with the ledger as it is now."""
    copy = site.home / name
    copy.mkdir()
    for file in ledger_files(site.home / "data"):
        shutil.copy(file, copy)
    return copy


def replace_ledger(site: Site, copy: Path | None) -> None:
    """Put another ledger in place of the present one, or none."""
    for file in ledger_files(site.home / "data"):
        file.unlink()
    for file in ledger_files(copy) if copy else ():
        shutil.copy(file, site.home / "data")
