"""A pipeline with two destinations, and what can happen to one of them behind its back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from admitone.settings import FILE_NAME
from tests.support import pipeline as support
from tests.support.flaky import Flaky
from tests.support.logs import delete_topic
from tests.support.pipeline import Pipeline, event

VIEWS, ORDERS = "admitted.views", "admitted.orders"
MAP = f"""
[[topics]]
family = "traffic"
topic = "{VIEWS}"
event_types = ["page_view"]
partitions = 2

[[topics]]
family = "orders"
topic = "{ORDERS}"
event_types = ["purchase"]
partitions = 3
"""


def two_topics(home: Path, text: str = MAP, **sections: dict[str, Any]) -> Pipeline:
    """Return a pipeline that sends page views to one topic and purchases to another."""
    file = home / FILE_NAME
    ledger = file.read_text().partition("[[topics]]")[0] if file.exists() else ""
    if not ledger and support.new_ledger is not None:
        ledger = f'[ledger]\nurl = "{support.new_ledger()}"\n'
    file.write_text(ledger + text)
    return Pipeline(home, **{"transport": {"raw_partitions": 1}, **sections})


def order(event_id: str, **metadata: Any) -> bytes:
    return event(
        event_id,
        {"productId": "p"},
        **{"eventType": "purchase", "partitionKey": event_id, **metadata},
    )


def pairs(*numbers: int) -> list[bytes]:
    """Return a page view and a purchase for each number, in turn."""
    return [line for n in numbers for line in (event(f"v{n}"), order(f"o{n}"))]


def on_topic(pipeline: Pipeline, name: str) -> list[str]:
    """Return the event ids on a topic, as a reader gets them, in any order."""
    topic = pipeline.transport.topic(name)
    return sorted(
        next(h["value"].decode() for h in headers if h["key"] == "event-id")
        for partition, end in enumerate(pipeline.transport.ends(topic))
        for batch in pipeline.transport.read(topic, partition, 0, end)
        for headers in batch.column("headers").to_pylist()
    )


def delete(pipeline: Pipeline) -> None:
    delete_topic(pipeline.transport, ORDERS)


def recreate(pipeline: Pipeline) -> None:
    delete_topic(pipeline.transport, ORDERS)
    pipeline.transport.create_topic(ORDERS, 3)


def add_partitions(pipeline: Pipeline, name: str = ORDERS, to: int = 5) -> None:
    """Do to the folder log what an administrator does to Kafka."""
    topic = pipeline.transport.topic(name)
    with sqlite3.connect(pipeline.settings.home / "data/log/manifest.db") as db:
        db.execute("UPDATE topic SET partitions = ? WHERE topic_id = ?", (to, topic.topic_id))
        db.executemany(
            "INSERT INTO partition (topic_id, partition) VALUES (?, ?)",
            [(topic.topic_id, number) for number in range(topic.partitions, to)],
        )
    db.close()


Change = Callable[[Pipeline], None]


class Meanwhile(Flaky):
    """Lets something happen to the log right before the first append."""

    def __init__(self, pipeline: Pipeline, change: Callable[[], None]) -> None:
        super().__init__(pipeline.transport)
        self._happens = [change]

    def append(self, *arguments: Any) -> Any:
        while self._happens:
            self._happens.pop()()
        return super().append(*arguments)
