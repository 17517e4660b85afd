"""A producer as the boundary is one: behind a new fence where the log asks for it."""

from __future__ import annotations

import pyarrow as pa

from admitone.core.errors import NeedsFence
from admitone.transport.port import Appended, Transport


class Appender:
    """Appends under one name."""

    def __init__(self, log: Transport, name: str) -> None:
        self._log, self._name = log, name
        self._epoch = log.init_producer(name)

    def append(self, records: dict[str, pa.Table]) -> Appended:
        """Append, however long the transaction before took to end."""
        while True:
            try:
                return self._log.append(self._name, self._epoch, records)
            except NeedsFence:
                self._epoch = self._log.init_producer(self._name)
