"""One SQLite file: durable on commit, safe with several processes, migrated forwards only."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from admitone.core.errors import ConfigurationError, IntegrityError, ServiceUnreachable

_BUSY_SECONDS = 60.0
LOOK_EVERY_S = 0.002
"""How often a process that waits for the write lock looks whether it is free."""


class Database:
    """A SQLite file with a connection of its own for each process and thread.

    Every writing transaction takes the write lock at its start, so it never has to be upgraded; readers
    see one snapshot and are never blocked. Connections are opened where they are used: one that
    crosses a fork corrupts the file.
    """

    def __init__(self, path: Path, migrations: Sequence[str]) -> None:
        self.path = path
        self._migrations = migrations
        self._local = threading.local()
        self._migrated_in: int | None = None

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Hold the write lock; commit at the end unless it was rolled back, roll back on any error.

        What may be done again after a power failure need not wait for the disk while others wait for the lock.
        """
        connection = self._connection()
        if not durable:
            connection.execute("PRAGMA synchronous=NORMAL")
        try:
            self._begin(connection)
            yield connection
            if connection.in_transaction:
                connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        finally:
            if not durable:
                connection.execute("PRAGMA synchronous=FULL")

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Wait for the write lock, looking often: SQLite's own waiting sleeps up to 100 ms at a time."""
        connection.execute("PRAGMA busy_timeout=0")
        try:
            self._insist(connection, "BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise ServiceUnreachable(
                f"Waited for {self.path.name}: {error}.",
                "look for a suspended or stuck admitone process that holds it, and end it",
            ) from error
        finally:
            connection.execute(f"PRAGMA busy_timeout={int(_BUSY_SECONDS * 1000)}")

    @staticmethod
    def _insist(connection: sqlite3.Connection, statement: str) -> None:
        """Execute a statement as soon as nobody holds a lock that it needs."""
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_EVERY_S)

    @contextmanager
    def scratch(self) -> Iterator[sqlite3.Connection]:
        """Fill temporary tables, which takes no lock and stays when a transaction follows."""
        connection = self._connection()
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            connection.execute("COMMIT")

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Read one consistent state, however long it takes; snapshots within it see the same."""
        connection = self._connection()
        if connection.in_transaction:
            yield connection
            return
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None and self._local.pid == os.getpid():
            connection.close()
        self._local.connection = None

    def _connection(self) -> sqlite3.Connection:
        if getattr(self._local, "connection", None) is None or self._local.pid != os.getpid():
            self._local.connection = self._open()
            self._local.pid = os.getpid()
        connection: sqlite3.Connection = self._local.connection
        return connection

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            # The first to open a new file switches it over, and SQLite does not wait for that by itself.
            self._insist(connection, "PRAGMA journal_mode=WAL")
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):
                raise IntegrityError(
                    f"{self.path.name} is damaged: {error}.", "restore it from a backup"
                ) from error
            raise self._cannot_open(error) from error
        except OSError as error:
            raise self._cannot_open(error) from error
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA cache_size=-65536")
        connection.execute("PRAGMA mmap_size=4294967296")
        # A block's random keys touch most pages of a table: copying them back every 4 MB is copying all
        # the time. With 256 MB a page is copied once for several blocks (16.6 to 12.5 us a key at 2 M keys).
        connection.execute("PRAGMA wal_autocheckpoint=65536")
        if self._migrated_in != os.getpid():
            self._migrate(connection)
            self._migrated_in = os.getpid()
        return connection

    def _cannot_open(self, error: Exception) -> ServiceUnreachable:
        return ServiceUnreachable(
            f"Cannot open {self.path.name}: {error}.",
            "check that its folder exists and is writable",
        )

    def _migrate(self, connection: sqlite3.Connection) -> None:
        known = len(self._migrations)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > known:
            raise ConfigurationError(
                f"{self.path.name} has version {version}, this program knows up to {known}.",
                "use the version of admitone that wrote it, or a newer one",
            )
        if version == known:
            return
        connection.execute("BEGIN EXCLUSIVE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for number in range(version, known):
            for statement in self._migrations[number].split(";\n\n"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={known}")
        connection.execute("COMMIT")
