"""What happens to a log behind the back of those who use it, done as its administrator would."""

from __future__ import annotations

import time

from admitone.simulation.log import SimulatedLog
from admitone.transport.folder_log import FolderLog
from admitone.transport.kafka.kafka_log import KafkaLog
from admitone.transport.port import Topic, Transport
from tests.support.pipeline import Pipeline

_PATIENCE_S = 60.0


def delete_topic(transport: Transport, name: str) -> None:
    """Delete a topic; of a folder log its files stay, but are no part of the log."""
    topic_id = transport.topic(name).topic_id
    if isinstance(transport, KafkaLog):
        transport._admin._client.delete_topics([name])[name].result(_PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        while transport.describe([name]):
            assert time.monotonic() < deadline, f"{name} does not go away"
            time.sleep(0.02)
        return
    if isinstance(transport, SimulatedLog):
        transport.delete_topic(name)
        return
    assert isinstance(transport, FolderLog)
    with transport._manifest.transaction() as db:
        for table in ("file", "partition", "topic"):
            db.execute(f"DELETE FROM {table} WHERE topic_id = ?", (topic_id,))  # noqa: S608


def truncate(transport: Transport, topic: Topic, partition: int, before: int) -> None:
    """Drop whole files of a folder log that lie before an offset, as a broker's retention does."""
    assert isinstance(transport, FolderLog)
    with transport._manifest.transaction() as db:
        db.execute(
            "UPDATE partition SET start_offset = ? WHERE topic_id = ? AND partition = ?",
            (before, topic.topic_id, partition),
        )
        names = db.execute(
            "DELETE FROM file WHERE topic_id = ? AND partition = ? AND base_offset + records <= ?"
            " RETURNING name",
            (topic.topic_id, partition, before),
        ).fetchall()
    for (name,) in names:
        (transport.path / name).unlink(missing_ok=True)


def on_the_log(pipeline: Pipeline) -> list[str]:
    """Return the event ids on the admitted topic, as a reader gets them."""
    topic = pipeline.transport.topic("admitted.traffic")
    return sorted(
        next(h["value"].decode() for h in headers if h["key"] == "event-id")
        for partition, end in enumerate(pipeline.transport.ends(topic))
        for batch in pipeline.transport.read(topic, partition, 0, end)
        for headers in batch.column("headers").to_pylist()
    )
