"""A dedup pipeline without Spark: what its tests drive directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from admitone.boundary import open_dedup
from admitone.evidence import open_evidence_writer
from admitone.transport.port import OUTGOING_SCHEMA
from admitone.transport.topic_contract import dedup_source
from tests.support.pipeline import Pipeline


class DedupPipeline(Pipeline):
    """A home folder with its stores and its dedup pipeline, driven in this process."""

    def __init__(self, home: Path, **sections: dict[str, Any]) -> None:
        super().__init__(home, **sections)
        self.boundary = open_dedup(self.settings)
        self.ledger, self.transport = self.boundary.ledger, self.boundary.transport
        self.topic = dedup_source(self.settings, self.transport)

    def append(self, *values: bytes | None, partition: int = 0, **columns: list[Any]) -> None:
        """Append records to one partition of the source, with their keys and headers."""
        table = pa.table(
            {
                "partition": [partition] * len(values),
                "key": columns.get("keys", [None] * len(values)),
                "value": list(values),
                "headers": columns.get("headers", [[]] * len(values)),
            },
            schema=OUTGOING_SCHEMA,
        )
        name = "tests"
        self.transport.append(name, self.transport.init_producer(name), {self.topic.name: table})

    def run(self, partitions: Any = None) -> None:
        super().run(partitions)
        pipeline = self.boundary.options.pipeline
        open_evidence_writer(self.settings, self.ledger, pipeline).write_pending(1)

    def written(self) -> list[dict[str, Any]]:
        """Return the records of the destination, partition by partition."""
        topic = self.transport.topic(self.settings.dedup.destination)
        return [
            record
            for partition, end in enumerate(self.transport.ends(topic))
            for batch in self.transport.read(topic, partition, 0, end)
            for record in batch.to_pylist()
        ]

    def values(self) -> list[bytes]:
        """Return what was written, without its headers."""
        return [record["value"] for record in self.written()]
