"""A ledger that goes back under a pipeline at work, batch by batch as a query does it, in this process."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow as pa

from admitone.boundary.batches import Batches, Begun, note_read
from admitone.boundary.restore.read_back import read_back
from admitone.core.errors import IntegrityError
from admitone.evidence import open_evidence_store
from admitone.transport.port import HEADERS_TYPE, OUTGOING_SCHEMA
from tests.servers.copies import copy_of
from tests.support.pipeline import Pipeline, event

PARTITIONS = 3
SECTIONS = {
    "transport": {"raw_partitions": PARTITIONS},
    "pipeline": {"max_block": 4, "quarantine_limit": 1.0},
    "dedup": {"cache": 3_000},
}
_numbers = count()


def deliver(pipeline: Pipeline, partition: int, *lines: bytes) -> None:
    """Append lines to one partition of the raw log."""
    table = pa.table(
        [
            pa.array([partition] * len(lines), pa.int32()),
            pa.nulls(len(lines), pa.binary()),
            pa.array(lines, pa.binary()),
            pa.array([[]] * len(lines), HEADERS_TYPE),
        ],
        schema=OUTGOING_SCHEMA,
    )
    name = f"test-{next(_numbers)}"
    epoch = pipeline.transport.init_producer(name)
    pipeline.transport.append(name, epoch, {pipeline.topic.name: table})


class Query:
    """What a query does with each batch, and what it remembers; its checkpoint knows how far it read."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.session = f"query-{next(_numbers)}"
        database = pipeline.ledger.database()
        self.generation = pipeline.boundary.start(pipeline.topic)
        self.read = [self._next(number) for number in range(PARTITIONS)]
        note_read(pipeline.boundary, pipeline.topic, dict(enumerate(self.read)), database)
        self.batches = Batches(pipeline.boundary, pipeline.topic, self.generation, database)

    def batch(self, within: Callable[[], None] = lambda: None) -> None:
        """Decide what was delivered since the last batch; `within` happens after the driver's look."""
        ends = self.pipeline.transport.ends(self.pipeline.topic)

        def tasks(begun: Begun) -> None:
            within()
            for number, end in enumerate(ends):
                if end > self.read[number]:
                    self.task(self.pipeline, number, begun)

        self.batches.decide(tasks, lambda: dict(enumerate(ends)))
        self.read = ends

    def task(self, worker: Pipeline, number: int, begun: Begun) -> None:
        """Decide what a batch holds of a partition, in some worker."""
        begin = begun.begins.get(number)
        owned = worker.boundary.own(
            worker.topic, number, begun.generation, self.session, begin, begun.database
        )
        records = worker.records(number)
        list(owned.admit(records.filter(records["offset"].to_numpy() >= self.read[number])))

    def _next(self, number: int) -> int:
        source = self.pipeline.boundary.source(self.pipeline.topic, number)
        return self.pipeline.ledger.next_offset(source) or 0


def goes_back(home: Path, seed: int) -> list[str]:
    """Let a ledger go back between two batches of a query; return what is wrong at the end, after the remedy."""
    rng = random.Random(seed)
    pipeline = Pipeline(home, **SECTIONS)
    query = Query(pipeline)
    sent: set[str] = set()

    def traffic() -> None:
        for number in rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS)):
            names = [f"e{rng.randrange(30)}" for _ in range(rng.randint(1, 9))]
            sent.update(names)
            deliver(pipeline, number, *(event(name) for name in names))

    for _ in range(rng.randint(0, 3)):
        traffic()
        query.batch()
    put_back = copy_of(pipeline.ledger, pipeline.settings, home / "copy")
    for _ in range(rng.randint(1, 3)):
        traffic()
        query.batch()
    before = published(pipeline)
    put_back()
    traffic()
    problems = []
    try:
        query.batch()
        problems.append("nobody noticed that the ledger went back")
    except IntegrityError as noticed:
        if "reconcile --restored" not in noticed.remedy:
            problems.append(f"it was noticed without the remedy: {noticed}")
    if published(pipeline) != before:
        problems.append("something was published before it was noticed")
    pipeline.ledger.close()
    restarted = Pipeline(home, **SECTIONS)
    read_back(restarted.boundary, restarted.topic, open_evidence_store(restarted.settings))
    restarted.run()
    found = published(restarted)
    problems += [
        f"{name} was published {times} times" for name, times in found.items() if times > 1
    ]
    problems += [f"{name} was not published" for name in sent - found.keys()]
    decided = len(restarted.decisions())
    on_log = sum(restarted.transport.ends(restarted.topic))
    if decided != on_log:
        problems.append(f"{decided} of {on_log} deliveries are decided")
    return problems + restarted.problems()


def published(pipeline: Pipeline) -> Counter[str]:
    """Return how often each event id is on the admitted topic."""
    found = Counter[str]()
    for state in pipeline.transport.describe(["admitted.traffic"]).values():
        for partition, end in enumerate(pipeline.transport.ends(state.topic)):
            for batch in pipeline.transport.read(state.topic, partition, 0, end):
                for headers in batch.column("headers").to_pylist():
                    found[next(h["value"].decode() for h in headers if h["key"] == "event-id")] += 1
    return found
