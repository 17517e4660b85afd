"""A pipeline on machines whose clocks a test sets: brokers, a worker, a driver and the database of the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from admitone.analytics import open_sketch_store
from admitone.analytics.port import SketchStore
from admitone.analytics.recompute.rebuild import Recomputed, recompute
from admitone.analytics.recompute.record_sources import FromArchive, FromLog
from admitone.evidence import open_evidence_store
from admitone.ledger.port import Ledger
from admitone.settings import FILE_NAME
from admitone.transport.folder_log import FolderLog
from admitone.transport.port import OUTGOING_SCHEMA, Appended
from tests.support.clocks import clocked_sqlite
from tests.support.counting import count_next
from tests.support.ledgers import NOW
from tests.support.pipeline import Pipeline, event

MINUTE = 60_000
HOUR = 60 * MINUTE
DATABASE, WORKER, DRIVER = "database", "worker", "driver"
RETENTION, LATENESS, IDLE_AFTER = 30 * MINUTE, 10 * MINUTE, 10 * MINUTE

_CONFIGURATION = f"""\
[pipeline]
future_tolerance = "10000d"
[dedup]
retention = {RETENTION}
idle_after = {IDLE_AFTER}
[topk]
lateness = {LATENESS}
idle_after = {IDLE_AFTER}
width = 64
depth = 2
k = 10
[[topics]]
family = "traffic"
topic = "admitted.traffic"
event_types = ["page_view"]
partitions = {{sources}}
partitioner = "source"
"""


class ClockedLog(FolderLog):
    """A folder log whose partitions are led by one broker each, with a clock of its own.

    As with a real broker, its append time goes back when its clock does.
    """

    def __init__(self, path: Path, clock_of: Callable[[int], int]) -> None:
        super().__init__(path)
        self._clock_of = clock_of

    def append(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Appended:
        """Append, and let the leader of each partition date what it got."""
        appended = super().append(name, epoch, records)
        newest = 0
        with self._manifest.transaction() as db:
            for topic, table in records.items():
                places = zip(
                    table["partition"].to_pylist(), appended.offsets[topic].to_pylist(), strict=True
                )
                for partition, offset in places:
                    newest = max(newest, self._clock_of(partition))
                    db.execute(
                        "UPDATE file SET append_time = ? WHERE topic_id = ? AND partition = ? AND base_offset = ?",
                        (self._clock_of(partition), self.topic(topic).topic_id, partition, offset),
                    )
        return Appended(appended.offsets, newest)


class Machines:
    """Source partition n is led by broker n, and so is the admitted partition its events go to.

    `now` is the true time; each machine shows it with an error of its own, by its name.
    """

    def __init__(
        self,
        home: Path,
        sources: int,
        ledger: Callable[[], Ledger] | None = None,
        show: Callable[[int], None] | None = None,
    ) -> None:
        self.now, self.errors = NOW, Counter[str]()
        (home / FILE_NAME).write_text(_CONFIGURATION.format(sources=sources))
        self.pipeline = Pipeline(home, transport={"raw_partitions": sources})
        if ledger is None:
            opened, clock = clocked_sqlite(home / "data" / "clocked-ledger.db")
            ledger, show = opened, clock.set
        self._show = show or (lambda _: None)
        boundary = self.pipeline.boundary
        boundary.transport = self.pipeline.transport = ClockedLog(
            self.pipeline.settings.resolve(self.pipeline.settings.transport.path), self.broker
        )
        boundary.ledger = self.pipeline.ledger = ledger()
        boundary.clock = lambda: self.shown(WORKER)
        self.store: SketchStore = open_sketch_store(self.pipeline.settings)

    def shown(self, machine: str) -> int:
        """Return the time that a machine shows."""
        return self.now + self.errors[machine]

    def broker(self, partition: int) -> int:
        """Return the time that the broker shows that leads a partition."""
        return self.shown(f"broker {partition}")

    def pass_time(self, duration: int) -> None:
        """Let time pass."""
        self.now += duration
        self._show(self.shown(DATABASE))

    def jump(self, machine: str, by: int) -> None:
        """Set the clock of one machine."""
        self.errors[machine] += by
        self._show(self.shown(DATABASE))

    def deliver(self, source: int, *lines: bytes) -> None:
        """Append deliveries to a source partition."""
        transport = self.pipeline.transport
        epoch = transport.init_producer("clients")
        nothing = [None] * len(lines)
        columns = [[source] * len(lines), nothing, list(lines), nothing]
        table = pa.table(columns, schema=OUTGOING_SCHEMA)
        transport.append("clients", epoch, {self.pipeline.topic.name: table})

    def decide(self, sources: Sequence[int] | None = None) -> None:
        """Start a pipeline, which decides everything, or what these sources have, in their order."""
        self.pipeline.run(sources)

    def count(self, offsets: int = 1_000) -> None:
        """Count everything that is admitted."""
        while count_next(
            self.pipeline.settings,
            self.store,
            self.pipeline.transport,
            offsets,
            self.shown(DRIVER),
        ):
            pass

    def count_again(self, kind: str, *, lost: bool = False) -> Recomputed:
        """Count everything once more from the log or from the archive, beside the store or where it was lost."""
        settings, transport = self.pipeline.settings, self.pipeline.transport
        if lost:
            self.store.close()
            for file in (settings.home / "data").glob("analytics.db*"):
                file.unlink()
        source = {
            "log": lambda: FromLog(settings, transport),
            "archive": lambda: FromArchive(
                settings, self.pipeline.ledger, open_evidence_store(settings)
            ),
        }[kind]()
        done = recompute(settings, source, accept=False, report=lambda *_: None)
        self.store.close()
        self.store = open_sketch_store(settings)
        return done


def page_view(event_id: str, at: int, url: str = "/a") -> bytes:
    """Return an event of a moment."""
    time = datetime.fromtimestamp(at / 1_000, UTC).isoformat(timespec="milliseconds")
    return event(event_id, {"url": url}, time)
