"""A transport that fails in every way a real one can, around one that works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from admitone.core.errors import (
    Fenced,
    NeedsFence,
    NotWritten,
    RecordsRefused,
)
from admitone.transport.port import Appended, Transport
from tests.support.pipeline import Pipeline


class Flaky:
    """Passes everything on; appends follow a plan, one word each, and succeed when it is used up.

    not-written   fails, and says that nothing was written
    lost-before   fails before anything was written, without saying so
    lost-after    writes, and loses the answer
    delayed       fails; the write is on its way and arrives when `arrive` is called
    down-before   as lost-before, and nothing answers any more until `heal`
    down-after    as lost-after, and nothing answers any more until `heal`
    refuse        refuses the first record of each topic, for good
    fenced        writes nothing, and says that the producer is fenced, though nobody took its name over
    fenced-after  writes, and says the same
    needs-fence   writes nothing, and nothing more before the producer is taken over again
    """

    def __init__(self, transport: Transport, *plan: str) -> None:
        self._transport = transport
        self._plan = list(plan)
        self._on_its_way: list[Callable[[], object]] = []
        self._down = False
        self._refused: set[bytes] = set()
        self._unfenced: set[str] = set()
        self.appends = 0

    def __getattr__(self, name: str) -> Any:
        if self._down and name not in ("cluster", "offset_kind", "close"):
            raise ConnectionError("the log does not answer")
        return getattr(self._transport, name)

    def heal(self) -> None:
        self._down = False

    def arrive(self) -> None:
        """Let delayed writes reach the log."""
        for write in self._on_its_way:
            write()

    def init_producer(self, name: str) -> int:
        if self._down:
            raise ConnectionError("the log does not answer")
        self._unfenced.discard(name)
        return self._transport.init_producer(name)

    def append(self, name: str, epoch: int, records: dict[str, pa.Table]) -> Appended:
        if self._down:
            raise ConnectionError("the log does not answer")
        self.appends += 1
        self._refuse(records)
        word = self._plan.pop(0) if self._plan else "fine"
        if word == "needs-fence":
            self._unfenced.add(name)
        if name in self._unfenced:
            raise NeedsFence("something of an earlier append is still on its way")
        if word == "not-written":
            raise NotWritten("the broker closed the door")
        if word == "delayed":
            self._on_its_way.append(lambda: self._transport.append(name, epoch, records))
        if word == "refuse":
            for table in records.values():
                self._refused.add(table["value"][0].as_py())
            self._refuse(records)
        self._down = word.startswith("down")
        if word == "fine" or word.endswith("-after"):
            appended = self._transport.append(name, epoch, records)
            if word == "fine":
                return appended
        if word.startswith("fenced"):
            raise Fenced("the transaction took too long")
        raise TimeoutError("no answer from the log")

    def _refuse(self, records: dict[str, pa.Table]) -> None:
        rows = {
            topic: [
                row
                for row, value in enumerate(table["value"].to_pylist())
                if value in self._refused
            ]
            for topic, table in records.items()
        }
        rows = {topic: chosen for topic, chosen in rows.items() if chosen}
        if rows:
            raise RecordsRefused("the broker refuses some records", rows)


def flaky(home: Path, *plan: str, **sections: Any) -> tuple[Pipeline, Flaky]:
    pipeline = Pipeline(
        home, **{"transport": {"raw_partitions": 1}, "pipeline": {"max_block": 4}, **sections}
    )
    transport = Flaky(pipeline.transport, *plan)
    pipeline.boundary.transport = transport
    return pipeline, transport
