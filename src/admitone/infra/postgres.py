"""One PostgreSQL database: durable on commit, safe with many processes, migrated forwards only.

A transaction is a function that can be run again. When a connection is lost around its COMMIT the question is whether
it happened, and guessing either way is wrong: it may even still be on its way. So every connection has a row of its
own, and every transaction begins by writing its number there. After a loss, on a new connection:

1. The backend that ran it, if there still is one, is ended, so that it does not wait for us for ever.
2. The lost connection's row is written to, which succeeds only when the lost transaction has ended.
3. It holds the number: the transaction happened, and its result is known. It does not: it is run again.

A server that no longer knows a number whose COMMIT it had answered is an older one: a failover to a standby that
lagged. That is noticed on the first new connection, before anything is done on it.

The row tells the truth after a crash or a failover too. The id of the transaction (`pg_xact_status`) would not: after a
crash, ids that had not reached the disk are given out again and name another client's transaction.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast
from uuid import UUID, uuid4

import psycopg
from psycopg.errors import ReadOnlySqlTransaction, UndefinedTable
from psycopg.pq import TransactionStatus

from admitone.core.errors import IntegrityError
from admitone.infra.clock import Patience
from admitone.infra.postgres_connect import (
    Connection,
    connect,
    is_made,
    migrate,
    one,
    parameters_of,
    place_of,
)
from admitone.infra.postgres_errors import explained, is_worth_retrying, needs_another_connection

__all__ = ["PATIENCE_S", "Connection", "Database"]

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a server may be away before a call gives up."""
_FIRST_CONTACT_S = 10.0

_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED;"
    " INSERT INTO last_transaction (connection, number) VALUES ('{connection}', {number})"
    " ON CONFLICT (connection) DO UPDATE SET number = excluded.number, at = now()"
)
# A snapshot may be held while files are written.
_BEGIN_READING = (
    "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
    " SET LOCAL idle_in_transaction_session_timeout = 0"
)
_END_OTHER = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"
)
# Writing is what waits: a row that its transaction has inserted, but not committed, could not be read.
_LAST_NUMBER = (
    "INSERT INTO last_transaction AS last (connection, number) VALUES (%s, 0)"
    " ON CONFLICT (connection) DO UPDATE SET number = last.number RETURNING number"
)
_WITNESS = "SELECT pg_is_in_recovery(), (SELECT number FROM last_transaction WHERE connection = %s)"
# Rows are kept for seven days; what is older than one is not asked for.
_WITNESS_FOR_S = 86_400.0
_FORGET_OLD = (
    "DELETE FROM last_transaction WHERE connection IN (SELECT connection FROM last_transaction"
    " WHERE at < now() - interval '7 days' LIMIT 1000 FOR UPDATE SKIP LOCKED)"
)


@dataclass(slots=True)
class _Session:
    """A connection, and the row that holds the number of its last transaction."""

    db: Connection
    process: int
    backend: tuple[int, Any]
    name: UUID = field(default_factory=uuid4)
    number: int = 0


@dataclass(frozen=True, slots=True)
class _Witness:
    """The last transaction of a connection whose COMMIT the server answered."""

    name: UUID
    number: int
    process: int
    at: float = field(default_factory=time.monotonic)

    @property
    def is_young(self) -> bool:
        """Tell whether its row must still be there."""
        return self.process == os.getpid() and time.monotonic() - self.at < _WITNESS_FOR_S


@dataclass(slots=True)
class _Attempt(Generic[T]):
    """One try at a transaction, and how far it got."""

    session: _Session | None = None
    commit_sent: bool = False
    result: T | None = None


class Database:
    """A database with a connection of its own for each process and thread, opened where it is used.

    `component` names what lives in it: several may share a database, each with its own version. One that is opened
    read-only makes no tables and changes none: before it is asked anything, `is_made` tells whether a writer has.
    """

    def __init__(
        self,
        url: str,
        component: str,
        migrations: Sequence[str],
        patience_s: float = PATIENCE_S,
        *,
        read_only: bool = False,
    ) -> None:
        self._parameters = parameters_of(url)
        self._component = component
        self._migrations = migrations
        self._patience_s = patience_s
        self._read_only = read_only
        self._local = threading.local()
        self._known_in: int | None = None
        self.name = place_of(self._parameters)

    def is_made(self) -> bool:
        """Tell whether the tables are there, as this program knows them; raise where they are older."""
        if self._known_in != os.getpid() and self.read(
            lambda db: is_made(db, self._component, len(self._migrations))
        ):
            self._known_in = os.getpid()
        return self._known_in == os.getpid()

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run a transaction until it is known to have happened, and return its result.

        It is committed unless the work rolled it back.
        """
        patience = self._patience()
        lost: _Attempt[T] | None = None
        while True:
            attempt: _Attempt[T] = _Attempt()
            try:
                if lost is not None and self._happened(lost):
                    return cast(T, lost.result)
                lost = None
                with self._transaction(attempt) as db:
                    attempt.result = work(db)
                return attempt.result
            except psycopg.Error as error:
                broken = self._lose_connection(error)
                if broken and attempt.session is not None:
                    lost = attempt
                if not (broken or is_worth_retrying(error)) or not patience.pause():
                    raise explained(error, self.name) from error

    def read(self, work: Callable[[Connection], T]) -> T:
        """Ask questions of one consistent state, again on a new connection when one is lost."""
        outer = self._inside()
        if outer is not None:
            return self._read_within(outer, work)
        patience = self._patience()
        while True:
            try:
                with self._snapshot() as db:
                    return work(db)
            except psycopg.Error as error:
                broken = self._lose_connection(error)
                if not (broken or is_worth_retrying(error)) or not patience.pause():
                    raise explained(error, self.name) from error

    def _read_within(self, outer: Connection, work: Callable[[Connection], T]) -> T:
        try:
            return work(outer)
        except psycopg.Error as error:
            # A transaction that is lost here is begun again; a snapshot cannot be had again.
            if not self._local.reading:
                raise
            raise explained(error, self.name) from error

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Read one consistent state, however long it takes; snapshots within it see the same."""
        outer = self._inside()
        if outer is not None:
            yield outer
            return
        try:
            self.read(lambda _: None)  # a connection that went stale is replaced before it matters
            with self._snapshot() as db:
                yield db
        except psycopg.Error as error:
            self._lose_connection(error)
            raise explained(error, self.name) from error

    def close(self) -> None:
        """Close this thread's connection."""
        session = self._present()
        if session is not None:
            session.db.close()
        self._local.session = self._local.witness = None

    @contextmanager
    def _transaction(self, attempt: _Attempt[Any]) -> Iterator[Connection]:
        if self._inside() is not None:
            raise RuntimeError(
                "a transaction cannot begin within a snapshot or another transaction"
            )
        session = self._session()
        db = session.db
        with self._used(db, reading=False):
            session.number += 1
            db.execute(_BEGIN.format(connection=session.name, number=session.number).encode())
            attempt.session = session
            if session.number == 1:
                db.execute(_FORGET_OLD)
            yield db
            if db.info.transaction_status is not TransactionStatus.IDLE:
                attempt.commit_sent = True
                if db.execute("COMMIT").statusmessage != "COMMIT":
                    raise IntegrityError("A transaction that had failed was about to be committed.")
                self._local.witness = _Witness(session.name, session.number, session.process)

    @contextmanager
    def _snapshot(self) -> Iterator[Connection]:
        db = self._session().db
        with self._used(db, reading=True):
            db.execute(_BEGIN_READING)
            yield db

    @contextmanager
    def _used(self, db: Connection, *, reading: bool) -> Iterator[None]:
        """Remember what is in use, and leave nothing open on it."""
        self._local.used, self._local.reading = db, reading
        try:
            yield
        finally:
            self._local.used = None
            if not db.closed and db.info.transaction_status is not TransactionStatus.IDLE:
                try:
                    db.execute("ROLLBACK")
                except psycopg.Error:
                    db.close()

    def _happened(self, lost: _Attempt[Any]) -> bool:
        """Tell whether a transaction whose connection was lost has committed; afterwards it cannot any more."""
        assert lost.session is not None
        db = self._session().db
        db.execute(_END_OTHER, lost.session.backend)
        if not lost.commit_sent:
            return False
        (number,) = one(db.execute(_LAST_NUMBER, (lost.session.name,)))
        return bool(number == lost.session.number)

    def _patience(self) -> Patience:
        met = self._known_in == os.getpid()
        return Patience(self._patience_s if met else min(self._patience_s, _FIRST_CONTACT_S))

    def _lose_connection(self, error: psycopg.Error) -> bool:
        """Let go of a connection that an error has broken; tell whether there was one."""
        session = self._present()
        if session is None or not (session.db.closed or needs_another_connection(error)):
            return False
        with suppress(psycopg.Error):
            session.db.close()
        self._local.session = None
        return True

    def _inside(self) -> Connection | None:
        """Return the connection of the transaction or snapshot this thread is in."""
        session = self._present()
        used: Connection | None = getattr(self._local, "used", None)
        return used if session is not None and used is session.db else None

    def _present(self) -> _Session | None:
        session: _Session | None = getattr(self._local, "session", None)
        # A connection of another process is left alone: closing it here would end it there.
        return session if session is not None and session.process == os.getpid() else None

    def _session(self) -> _Session:
        session = self._present()
        if session is None or session.db.closed:
            session = self._open()
            self._local.session, self._local.used = session, None
        return session

    def _open(self) -> _Session:
        db, backend = connect(self._parameters)
        try:
            self._refuse_older_server(db)
            if not self._read_only and self._known_in != os.getpid():
                migrate(db, self._component, self._migrations)
                self._known_in = os.getpid()
        except BaseException:
            db.close()
            raise
        return _Session(db, os.getpid(), backend)

    def _refuse_older_server(self, db: Connection) -> None:
        """Raise when the server does not know what it, or the one before it, had committed for this thread."""
        witness: _Witness | None = getattr(self._local, "witness", None)
        if witness is None or not witness.is_young:
            return
        try:
            is_standby, number = one(db.execute(_WITNESS, (witness.name,)))
        except UndefinedTable:
            is_standby, number = False, None  # It is older than its own tables.
        if number is not None and number >= witness.number:
            return
        if is_standby:
            raise ReadOnlySqlTransaction("connected to a standby that has not caught up")
        raise IntegrityError(
            f"{self.name} does not know a transaction whose commit it had confirmed: it is older than it was, as after"
            " a failover to a standby that lagged.",
            "make the server that has everything the primary again; or stop every pipeline on it and run admitone"
            " reconcile --restored, which reads back what the log holds. Going on with this one would publish events"
            " again",
        )
