"""One SQLite file: durable on commit, safe with several processes, migrated forwards only."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from admitone.core.errors import ConfigurationError, IntegrityError, ServiceUnreachable
from admitone.infra.clock import Patience

_BUSY_SECONDS = 60.0
LOOK_EVERY_S = 0.002
"""How often a process that waits for the write lock looks whether it is free."""


class Database:
    """A SQLite file with a connection of its own for each process and thread.

    Every writing transaction takes the write lock at its start, so it never has to be upgraded; readers
    see one snapshot and are never blocked. Connections are opened where they are used: one that
    crosses a fork corrupts the file.

    One that is opened read-only makes no file and changes none: until a writer has made the file, an empty store in
    memory stands in for it.
    """

    def __init__(
        self,
        path: Path,
        migrations: Sequence[str],
        functions: Mapping[str, Callable[..., int]] | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.path = path
        self._migrations = migrations
        self._functions = functions or {}
        self._read_only = read_only
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
        patience = Patience(_BUSY_SECONDS, LOOK_EVERY_S, LOOK_EVERY_S)
        while True:
            try:
                connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or not patience.pause():
                    raise

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
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None or self._local.pid != os.getpid() or self._is_made_now(connection):
            connection = self._local.connection = self._open()
            self._local.pid = os.getpid()
        elif self._is_replaced(connection):
            connection.close()
            connection = self._local.connection = self._open()
        return connection

    def _is_replaced(self, connection: sqlite3.Connection) -> bool:
        """Tell whether another file is in the place of the one that is open: what is written to that is lost."""
        opened: tuple[int, int] | None = self._local.file
        return opened is not None and not connection.in_transaction and opened != self._file()

    def _file(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _is_made_now(self, connection: sqlite3.Connection) -> bool:
        """Tell whether a file is there whose place an empty store in memory took so far."""
        stands_in: bool = self._local.stands_in
        return stands_in and not connection.in_transaction and self.path.exists()

    def _open(self) -> sqlite3.Connection:
        self._local.stands_in = False
        try:
            connection = self._read_only_connection() if self._read_only else self._writing_one()
        except sqlite3.DatabaseError as error:
            if not isinstance(error, sqlite3.OperationalError):
                raise IntegrityError(
                    f"{self.path.name} is damaged: {error}.", "restore it from a backup"
                ) from error
            raise self._cannot_open(error) from error
        except OSError as error:
            raise self._cannot_open(error) from error
        self._local.file = None if self._local.stands_in else self._file()
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA cache_size=-65536")
        connection.execute("PRAGMA mmap_size=4294967296")
        file = str(self._local.file)
        connection.create_function("file_number", 0, lambda: file, deterministic=True)
        for name, function in self._functions.items():
            connection.create_function(name, -1, function, deterministic=True)
        if self._read_only:
            return connection
        connection.execute("PRAGMA synchronous=FULL")
        # A block's random keys touch most pages of a table: copying them back every 4 MB is copying all
        # the time. With 256 MB a page is copied once for several blocks (16.6 to 12.5 us a key at 2 M keys).
        connection.execute("PRAGMA wal_autocheckpoint=65536")
        if self._migrated_in != os.getpid():
            self._migrate(connection)
            self._migrated_in = os.getpid()
        return connection

    def _writing_one(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = _connect(self.path)
        # The first to open a new file switches it over, and SQLite does not wait for that by itself.
        self._insist(connection, "PRAGMA journal_mode=WAL")
        return connection

    def _read_only_connection(self) -> sqlite3.Connection:
        if self.path.exists():
            connection = _connect(f"{self.path.resolve().as_uri()}?mode=ro")
            version = self._version(connection)
            if version == len(self._migrations):
                return connection
            connection.close()
            if version:
                raise ConfigurationError(
                    f"{self.path.name} has version {version}, this program reads {len(self._migrations)}.",
                    "admitone run, or admitone reconcile, brings it up to date",
                )
        self._local.stands_in = True
        connection = _connect(":memory:")
        self._migrate(connection)
        connection.execute("PRAGMA query_only=ON")
        return connection

    def _cannot_open(self, error: Exception) -> ServiceUnreachable:
        return ServiceUnreachable(
            f"Cannot open {self.path.name}: {error}.",
            "check that its folder exists and is writable",
        )

    def _version(self, connection: sqlite3.Connection) -> int:
        known = len(self._migrations)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > known:
            raise ConfigurationError(
                f"{self.path.name} has version {version}, this program knows up to {known}.",
                "use the version of admitone that wrote it, or a newer one",
            )
        return int(version)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        known = len(self._migrations)
        if self._version(connection) == known:
            return
        connection.execute("BEGIN EXCLUSIVE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for number in range(version, known):
            for statement in self._migrations[number].split(";\n\n"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={known}")
        connection.execute("COMMIT")


def _connect(place: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(
        place, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True
    )
