"""A pipeline without Spark: what the tests of the boundary drive directly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from admitone.boundary import open_boundary
from admitone.boundary.admission import Boundary
from admitone.boundary.topic_partition import TopicPartition
from admitone.demo.traffic import Truth
from admitone.evidence import open_evidence_writer
from admitone.ledger.books import books
from admitone.ledger.decision_rows import decisions
from admitone.ledger.model import Filter
from admitone.settings import FILE_NAME, Settings, load_settings
from admitone.transport.ingest import ingest_lines
from admitone.transport.kafka.kafka_log import KafkaLog
from admitone.transport.topic_contract import raw_topic
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cluster import KafkaCluster
from tests.support.store_check import check_evidence, check_log

TIME = "2026-01-05T10:00:00.000Z"


def kafka_log(broker: KafkaBroker | KafkaCluster, **options: Any) -> KafkaLog:
    """Return the log on a broker, with `[transport.kafka]` as given."""
    kafka = {"bootstrap": broker.bootstrap, **options}
    return KafkaLog(Settings(transport={"kind": "kafka", "kafka": kafka}))


def event(
    event_id: str, payload: dict[str, Any] | None = None, time: str = TIME, **metadata: Any
) -> bytes:
    """Return one page view as a line of JSON."""
    return json.dumps(
        {
            "metadata": {
                "eventId": event_id,
                "eventType": "page_view",
                "source": "test",
                "timestamp": time,
                "partitionKey": "k",
                "schemaVersion": 1,
                **metadata,
            },
            "payload": {"url": "/a", **(payload or {})},
        }
    ).encode()


new_ledger: Callable[[], str] | None = None
"""Makes the URL of a ledger for a new home folder, where it is not to be the embedded one."""


class Pipeline:
    """A home folder with its stores, driven in this process."""

    def __init__(self, home: Path, **sections: dict[str, Any]) -> None:
        if new_ledger is not None and not (home / FILE_NAME).exists():
            (home / FILE_NAME).write_text(f'[ledger]\nurl = "{new_ledger()}"\n')
        sections = {"transport": {"raw_partitions": 2}, **sections}
        self.settings: Settings = load_settings(home, **sections)
        self.boundary: Boundary = open_boundary(self.settings)
        self.ledger, self.transport = self.boundary.ledger, self.boundary.transport
        self.topic = raw_topic(self.settings, self.transport)

    def ingest(self, *lines: bytes, run: str | None = None) -> None:
        for _ in ingest_lines(self.transport, self.topic, lines, run):
            pass

    def records(self, partition: int) -> pa.Table:
        (start, end) = (
            self.transport.starts(self.topic)[partition],
            self.transport.ends(self.topic)[partition],
        )
        return pa.Table.from_batches(list(self.transport.read(self.topic, partition, start, end)))

    def own(self, partition: int, generation: int) -> TopicPartition:
        return self.boundary.own(self.topic, partition, generation)

    def run(self, partitions: Iterable[int] | None = None) -> None:
        """Decide everything that is on the raw log, and write its evidence."""
        generation = self.boundary.start(self.topic)
        for partition in range(self.topic.partitions) if partitions is None else partitions:
            if self.transport.ends(self.topic)[partition]:
                list(self.own(partition, generation).admit(self.records(partition)))
        open_evidence_writer(self.settings, self.ledger).write_pending(1)

    def decisions(self, **wanted: Any) -> list[dict[str, Any]]:
        return list(decisions(self.ledger, Filter(**wanted)))

    def verdicts(self, event_id: str) -> list[tuple[str, str | None]]:
        return [(row["verdict"], row["reason"]) for row in self.decisions(event_id=event_id)]

    def problems(self, truth: Truth | None = None) -> list[str]:
        """Return everything that does not fit together."""
        found = check_log(self.ledger, self.transport, self.settings)
        found += check_evidence(self.ledger, self.settings)
        if truth is not None:
            found += truth.check_decisions(self.decisions())
            found += truth.check_books(books(self.ledger))
        return found
