"""A checkpoint folder is never believed: what somebody writes there passes over no record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import orjson
import pytest
from pyspark.sql import DataFrame

from admitone.analytics import open_sketch_reader
from admitone.core.errors import ServiceUnreachable
from admitone.spark import analytics_query, boundary_query
from tests.servers.kafka import KafkaBroker
from tests.support.pipeline import event
from tests.support.running import kafka_pipeline, run_pipeline

Work = Callable[[DataFrame, int], None]


def ends_are_raised(home: Path, ends: dict[str, list[int]], work: Work) -> Work:
    """Write other ends behind the back of the first batch, and let the second one fail."""

    def done(batch: DataFrame, number: int) -> None:
        if number:
            raise ServiceUnreachable("The machine is switched off.")
        for file in (home / "data" / "checkpoints").glob("*/offsets/0"):
            lines = file.read_bytes().splitlines()
            planned = orjson.loads(lines[-1])
            raised = {
                topic: dict(enumerate(ends[topic])) if topic in ends else given
                for topic, given in planned.items()
            }
            lines[-1] = orjson.dumps(raised, option=orjson.OPT_NON_STR_KEYS)
            file.write_bytes(b"\n".join(lines))
        work(batch, number)

    return done


@pytest.mark.parametrize("query", ["boundary", "analytics"])
def test_an_end_in_the_offset_files_that_no_task_was_given_passes_over_nothing(
    query: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    pipeline = kafka_pipeline(tmp_path, kafka_broker, max_per_trigger=40)
    pipeline.ingest(*(event(f"e{number}") for number in range(200)))
    topics = [pipeline.topic]
    module, name = boundary_query, "admit_batch"
    if query == "analytics":
        assert run_pipeline(tmp_path, "boundary").returncode == 0
        topics = [pipeline.transport.topic(entry.topic) for entry in pipeline.settings.topics]
        module, name = analytics_query, "count_into"
    ends = {topic.name: pipeline.transport.ends(topic) for topic in topics}
    make = getattr(module, name)
    with patch.object(module, name, lambda *given: ends_are_raised(tmp_path, ends, make(*given))):
        assert run_pipeline(tmp_path, query).returncode != 0
    assert run_pipeline(tmp_path, query).returncode == 0

    assert len(pipeline.decisions()) == 200
    if query == "analytics":
        reader = open_sketch_reader(pipeline.settings)
        assert sum(mark.counted for mark in reader.state().marks) == 200
        reader.close()
