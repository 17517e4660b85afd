"""A log whose topics are compacted: of the records with one key a reader gets only the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from admitone.core.contract import Keeping
from admitone.transport.port import Topic, TopicState, Transport


class Compacted:
    """Passes everything on, and reads as a broker's cleaner leaves it once `compact` was called.

    It may also be called while a reader is about to read: after whatever that one asked before.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._compacted = False
        self.compacts_when_read = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def compact(self) -> None:
        self._compacted = True

    def describe(self, names: Sequence[str]) -> dict[str, TopicState]:
        found = self._transport.describe(names)
        if not self._compacted:
            return found
        kept = Keeping(cleanup_policy="compact")
        return {name: replace(state, keeping=kept) for name, state in found.items()}

    def read(self, topic: Topic, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        self._compacted |= self.compacts_when_read
        if not self._compacted:
            yield from self._transport.read(topic, partition, start, end)
            return
        last: dict[bytes, int] = {}
        until = self._transport.ends(topic)[partition]
        for batch in self._transport.read(topic, partition, 0, until):
            last |= zip(
                batch.column("key").to_pylist(), batch.column("offset").to_pylist(), strict=True
            )
        for batch in self._transport.read(topic, partition, start, end):
            kept = [offset in last.values() for offset in batch.column("offset").to_pylist()]
            yield batch.filter(pa.array(kept))
