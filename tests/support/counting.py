"""The analytics without Spark: counts what is on the admitted log, batch by batch, and sends answers out.

As a program it is a driver that fault tests kill, suspend and race against another:

    python -m tests.support.counting HOME OFFSETS_AT_ONCE
"""

from __future__ import annotations

import sys
from pathlib import Path

from admitone.analytics import item_rules, open_sketch_store
from admitone.analytics.batch_counter import BatchCounter
from admitone.analytics.port import NOTHING_READ, SketchStore
from admitone.core.errors import MarkMoved, ServiceUnreachable
from admitone.infra.crash_points import crash_point
from admitone.results import open_outlets
from admitone.results.publisher import publish
from admitone.settings import Settings, load_settings
from admitone.transport import open_transport
from admitone.transport.port import Transport

COUNTED_AT = 1_763_200_000_000


def count_next(
    settings: Settings,
    store: SketchStore,
    transport: Transport,
    offsets: int,
    now: int = COUNTED_AT,
) -> bool:
    """Count the next offsets of every partition in one commit; tell whether there were any."""
    topics = [transport.topic(entry.topic) for entry in settings.topics]
    counting = BatchCounter(store, settings, {topic.name: topic.topic_id for topic in topics})
    plan = counting.plan()
    records, ends = [], {}
    for topic in topics:
        for partition, end in enumerate(transport.ends(topic)):
            start = plan.marks.get((topic.name, partition), NOTHING_READ) + 1
            stop = min(end, start + offsets)
            if start < stop:
                records += list(transport.read(topic, partition, start, stop))
                ends.setdefault(topic.name, {})[partition] = stop
    if not ends:
        return False
    deltas = counting.count(plan, records, now)
    crash_point("analytics.counted")
    batch = counting.gather(plan, deltas, now, ends)
    crash_point("analytics.committing")
    store.commit(batch)
    crash_point("analytics.committed")
    return True


def count_all(settings: Settings, store: SketchStore, offsets: int = 100_000) -> None:
    """Count everything that is on the log."""
    transport = open_transport(settings)
    while count_next(settings, store, transport, offsets):
        pass
    transport.close()


def drive(home: Path, offsets: int) -> None:
    """Count everything and send it out, beginning again from the marks where somebody else was faster."""
    settings = load_settings(home)
    store, transport = open_sketch_store(settings), open_transport(settings)
    outlets, rules = open_outlets(settings), item_rules(settings)
    more = True
    while more:
        try:
            more = count_next(settings, store, transport, offsets)
        except MarkMoved:
            continue
        for outlet in outlets:
            while True:
                try:
                    publish(store, rules, outlet)
                    break
                except ServiceUnreachable as error:
                    # As the publisher does: it is tried again until it works.
                    print(error, file=sys.stderr)


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]))
