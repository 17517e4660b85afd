"""The ledger's database in PostgreSQL for questions: it needs no right but to read, and may not be made yet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from admitone.ledger.postgres.store import PostgresStore
from admitone.ledger.store import ReadStore, Rows, T


class PostgresReadStore:
    """A `ReadStore` in a PostgreSQL database; until a writer has made its tables, an empty store stands in for it."""

    def __init__(self, url: str, empty: ReadStore) -> None:
        self._made = PostgresStore(url, read_only=True)
        self._empty = empty
        self._local = threading.local()

    def read(self, work: Callable[[Rows], T]) -> T:
        """Ask questions of one consistent state."""
        return self._asked().read(work)

    @contextmanager
    def snapshot(self) -> Iterator[Rows]:
        """Read one consistent state, however long it takes; what is read within it sees the same."""
        outer, store = getattr(self._local, "within", None), self._asked()
        self._local.within = store
        try:
            with store.snapshot() as rows:
                yield rows
        finally:
            self._local.within = outer

    def close(self) -> None:
        """Close this thread's connection."""
        self._made.close()
        self._empty.close()

    def _asked(self) -> ReadStore:
        within: ReadStore | None = getattr(self._local, "within", None)
        return within or (self._made if self._made.is_made() else self._empty)
