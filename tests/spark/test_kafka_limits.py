"""However much is waiting, a batch and a block are bounded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from admitone.spark.boundary_query import BYTES_AT_ONCE, gathered
from admitone.spark.checkpoints import batch_ends
from tests.servers.kafka import KafkaBroker
from tests.support.pipeline import event
from tests.support.running import kafka_pipeline, run_pipeline


def test_batches_and_blocks_stay_below_their_limits_however_much_is_waiting(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker, max_block=30, max_per_trigger=400)
    pipeline.ingest(*(event(f"e{number}") for number in range(2_000)))
    assert run_pipeline(tmp_path, "boundary").returncode == 0
    (checkpoint,) = (tmp_path / "data" / "checkpoints").glob("boundary-*")
    batches = len(list((checkpoint / "offsets").glob("[0-9]*")))
    reached = [0] + [
        sum(batch_ends(checkpoint, number)[pipeline.topic.name].values())
        for number in range(batches)
    ]

    assert batches >= 5
    assert max(after - before for before, after in pairwise(reached)) <= 400
    assert max(block.deliveries for block in pipeline.ledger.blocks()) == 30
    assert len(pipeline.decisions()) == 2_000


def test_records_are_gathered_until_they_make_a_block_by_number_or_by_size() -> None:
    def batch(rows: int, size: int) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"value": pa.array([b"x" * size] * rows, pa.binary())})

    small = [batch(10, 10)] * 25
    large = [batch(3, BYTES_AT_ONCE // 8)] * 8

    assert [table.num_rows for table in gathered(iter(small), 100)] == [100, 100, 50]
    assert [table.num_rows for table in gathered(iter(large), 100)] == [6, 6, 6, 6]
    assert all(table.nbytes <= BYTES_AT_ONCE for table in gathered(iter(large), 100))
    assert [table.num_rows for table in gathered([batch(0, 0), *small], 500)] == [250]
    assert list(gathered([batch(0, 0)], 500)) == []
