"""A job that copies a topic is killed, falls back to an old checkpoint and writes batches again; none counts twice.

The whole situation on a real broker, for as many, fewer and more partitions than the source has, with records
of strangers among the copies.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from admitone.core.wire import StreamMetadata
from tests.servers.kafka import KafkaBroker, read_committed
from tests.spark.copying_jobs import PRODUCER
from tests.support.pipeline import Pipeline, event

SOURCE_PARTITIONS = 3
COPIES = {"as many": 3, "fewer": 2, "more": 5}
EVENTS = {
    (partition, number): event(f"e{partition}-{number}")
    for partition in range(SOURCE_PARTITIONS)
    for number in range(60)
}


class Copied:
    """The topics after the job that copies was killed and started again."""

    def __init__(self, broker: KafkaBroker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.source = broker.new_topic(SOURCE_PARTITIONS)
        self.aggregates = broker.new_topic()
        # As a raw topic must be, so that the boundary reads it too.
        kept = {"message_timestamp_type": "LogAppendTime", "retention_ms": "604800000"}
        self.topics = {name: broker.new_topic(count, **kept) for name, count in COPIES.items()}
        self.strangers = 0

    def write_source(self) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for (partition, _), value in EVENTS.items():
            producer.produce(self.source, value, partition=partition)
        assert producer.flush(30) == 0

    def write_strangers(self) -> None:
        """Write records without a key, with somebody's key, and with another producer's metadata to every copy."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        other = StreamMetadata(PRODUCER + 1, 0, 0).to_bytes()
        for name, count in COPIES.items():
            for number, key in enumerate((None, b"customer-7", other, other)):
                value = event(f"stranger-{self.strangers}-{number}")
                producer.produce(self.topics[name], value, key, partition=number % count)
        assert producer.flush(30) == 0
        self.strangers += 1

    def start(self, job: str) -> subprocess.Popen[bytes]:
        module = [sys.executable, "-m", "tests.spark.copying_jobs", job]
        copies = [f"{self.topics[name]}:{count}" for name, count in COPIES.items()]
        with (self.folder / "spark.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *module,
                    self.broker.bootstrap,
                    self.source,
                    self.folder,
                    self.aggregates,
                    *copies,
                ],
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
                start_new_session=True,
            )

    def commits(self) -> int:
        """Return how many batches of every copy are done."""
        found = [
            len(list((self.folder / "checkpoints" / topic / "commits").glob("[0-9]*")))
            for topic in self.topics.values()
        ]
        return min(found)

    def wait_for_commits(self, wanted: int, job: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 180
        while self.commits() < wanted:
            assert job.poll() is None, "the job ended before it was killed"
            assert time.monotonic() < deadline, "the job does not get on"
            time.sleep(0.05)

    def keep_checkpoint(self) -> None:
        """Copy what is done first: a batch that is planned and not done is simply run again."""
        for topic in self.topics.values():
            kept = self.folder / "kept" / topic
            ongoing = shutil.ignore_patterns("*.tmp", ".*")
            shutil.copytree(
                self.folder / "checkpoints" / topic / "commits", kept / "commits", ignore=ongoing
            )
            shutil.copytree(
                self.folder / "checkpoints" / topic, kept, dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("commits", "*.tmp", ".*"),
            )  # fmt: skip

    def go_back(self) -> None:
        shutil.rmtree(self.folder / "checkpoints")
        shutil.move(self.folder / "kept", self.folder / "checkpoints")

    def records(self, name: str) -> Counter[tuple[bytes | None, bytes]]:
        found = read_committed(self.broker.bootstrap, self.topics[name])
        return Counter((message.key(), message.value()) for message in found)


@pytest.fixture(scope="module")
def copied(kafka_broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    copied = Copied(kafka_broker, tmp_path_factory.mktemp("copied"))
    copied.write_source()
    copied.write_strangers()
    first = copied.start("copy")
    try:
        copied.wait_for_commits(1, first)
        copied.keep_checkpoint()
        copied.wait_for_commits(3, first)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(30)
    copied.write_strangers()
    copied.go_back()
    second = copied.start("copy-and-read")
    copied.write_strangers()
    assert second.wait(500) == 0, (copied.folder / "spark.log").read_text(errors="replace")[-3000:]
    return copied


def originals() -> set[bytes]:
    return set(EVENTS.values())


@pytest.mark.parametrize("name", COPIES)
def test_what_is_read_is_what_there_would_be_without_replays(copied: Copied, name: str) -> None:
    written = copied.records(name)
    strangers = Counter(
        {
            record: count
            for record, count in written.items()
            if (metadata := StreamMetadata.from_bytes(record[0])) is None
            or metadata.producer_id != PRODUCER
        }
    )
    ours = written - strangers
    assert max(ours.values()) > 1, "nothing was written again"
    assert strangers.total() == 12
    expected = strangers + Counter(dict.fromkeys(ours, 1))
    assert {value for _, value in ours} == originals()

    folder, topic = copied.folder / "read", copied.topics[name]
    streamed = pq.read_table(folder / f"{topic}-streamed", columns=["key", "value"])
    batch = pq.read_table(folder / f"{topic}-batch")
    for table in (
        streamed,
        batch.filter([kind != "replayed" for kind in batch["replay"].to_pylist()]),
    ):
        found = Counter(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert found == expected
    kinds = Counter(batch["replay"].to_pylist())
    assert kinds == {
        "new": len(EVENTS),
        "replayed": ours.total() - len(EVENTS),
        "unkeyed": 3,
        "foreign": 9,
    }


@pytest.mark.parametrize("name", COPIES)
def test_the_boundary_admits_the_originals_and_names_the_replays(
    copied: Copied, name: str, tmp_path: Path
) -> None:
    admitted = copied.broker.new_topic(2, retention_ms="604800000")
    (tmp_path / "admitone.toml").write_text(
        f'[[topics]]\nfamily = "t"\ntopic = "{admitted}"\nevent_types = ["page_view"]\npartitions = 2\n'
    )
    pipeline = Pipeline(
        tmp_path,
        transport={
            "kind": "kafka",
            "kafka": {"bootstrap": copied.broker.bootstrap},
            "raw_topic": copied.topics[name],
            "raw_partitions": COPIES[name],
            "filter_replays": True,
            "producers": [PRODUCER],
        },
        pipeline={"max_block": 50},
    )
    pipeline.run()

    verdicts = Counter(row["verdict"] for row in pipeline.decisions())
    total = copied.records(name).total()
    assert verdicts == {
        "ADMITTED": len(EVENTS) + 12,
        "REPLAYED": total - len(EVENTS) - 12,
    }
    seen = pipeline.ledger.upstreams()
    assert sorted(one.upstream for one in seen) == [(PRODUCER, n) for n in range(SOURCE_PARTITIONS)]
    assert all(one.order_violations >= 1 for one in seen)
    assert pipeline.problems() == []


def test_aggregates_that_were_cut_elsewhere_are_named_and_the_rest_counts_once(
    copied: Copied,
) -> None:
    table = pq.read_table(copied.folder / "read" / copied.aggregates).sort_by("offset")
    found: dict[int, list[tuple[str, int]]] = {}
    for key, value, kind in zip(
        *(table[name].to_pylist() for name in ("key", "value", "replay")), strict=True
    ):
        metadata = StreamMetadata.from_bytes(key)
        assert metadata is not None
        (group,) = json.loads(value)
        found.setdefault(metadata.partition, []).append((kind, group["records"]))

    assert found.keys() == set(range(SOURCE_PARTITIONS))
    for kinds in found.values():
        assert kinds == [("new", 20), ("new", 20), ("replayed", 20), ("shifted", 20), ("new", 20)]
